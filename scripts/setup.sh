#!/usr/bin/env bash
# Makes .venv with ctxmix_hf and the extras given as the first argument. Run again, it only checks.
set -euo pipefail
cd "$(dirname "$0")/.."
extras="${1:-flow,plot}"
stamp=".venv/.ready-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-12)-${extras//,/-}"
if [ ! -f "$stamp" ]; then
  python3 -m venv .venv
  .venv/bin/pip install -q --upgrade pip 2>/dev/null || true
  .venv/bin/pip install -q -c constraints.txt torch==2.13.0
  .venv/bin/pip install -q -c constraints.txt -e ".[${extras}]"
  touch "$stamp"
fi
