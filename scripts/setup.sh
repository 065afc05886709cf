#!/usr/bin/env bash
# Makes .venv with ctxmix_hf and the extras given as the first argument. Run again, it only checks.
set -euo pipefail
cd "$(dirname "$0")/.."
extras="${1:-flow,plot}"
stamp=".venv/.ready-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-12)-${extras//,/-}"
said=(-q) # pip names its steps and draws its bar only where somebody watches (with -q there is no bar)
[ ! -t 1 ] || said=(--progress-bar on)
if [ ! -f "$stamp" ]; then
  echo "1/3 an environment in .venv"
  python3 -m venv .venv
  .venv/bin/pip install -q --upgrade pip 2>/dev/null || true
  echo "2/3 torch (the largest download, a few hundred MB)"
  .venv/bin/pip install "${said[@]}" -c constraints.txt torch==2.13.0
  echo "3/3 ctxmix_hf with [${extras}]"
  .venv/bin/pip install "${said[@]}" -c constraints.txt -e ".[${extras}]"
  touch "$stamp"
  echo "ready: .venv/bin/ctxmix --help"
fi
