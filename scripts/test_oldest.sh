#!/usr/bin/env bash
# The library on the oldest transformers it supports, in a venv of its own: numbers, identities, families and manners.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-oldest
stamp="$venv/.ready-$(cat pyproject.toml constraints-oldest.txt | sha256sum | cut -c1-12)"
if [ ! -f "$stamp" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q -c constraints-oldest.txt torch==2.13.0
  "$venv/bin/pip" install -q -c constraints-oldest.txt -e ".[flow,plot]" pytest pytest-timeout pytest-xdist scipy networkx
  touch "$stamp"
fi
"$venv/bin/python" -m pytest -n 2 --dist loadgroup -m "not slow and not exhaustive and not network and not browser" \
  tests/test_goldens.py tests/test_identities.py tests/instrumentation/test_operations.py tests/test_bad_input.py tests/contract/test_families.py "$@"
