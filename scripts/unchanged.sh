#!/usr/bin/env bash
# Runs a command and fails if it left tracked files changed: bash scripts/unchanged.sh pytest tests
set -euo pipefail
if ! git rev-parse --verify -q HEAD >/dev/null 2>&1; then
  exec "$@" # not a checkout: nothing is tracked
fi
before="$(git diff HEAD --binary | sha256sum)"
code=0
"$@" || code=$?
if [ "$(git diff HEAD --binary | sha256sum)" != "$before" ]; then
  echo "Tracked files changed during the run. Tests write to a temporary folder or to tests/artifacts/, never elsewhere:" >&2
  git status --short --untracked-files=no >&2
  [ "$code" != 0 ] || code=1
fi
exit "$code"
