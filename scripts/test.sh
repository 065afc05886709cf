#!/usr/bin/env bash
# Everything a fresh machine needs for the tests, then the tests. With SLOW=1 the long ones run too.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh test
if [ ! -x /usr/bin/chromium ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk fonts-noto-color-emoji) >/dev/null 2>&1 ||
    echo "chromium could not be installed: browser tests will be skipped"
fi
.venv/bin/ruff check ctxmix_hf tests benchmarks training spaces
.venv/bin/mypy ctxmix_hf
marks="not slow and not network"
[ -n "${SLOW:-}" ] && marks="not network"
.venv/bin/python -m pytest -n 2 --dist loadgroup -m "$marks" "$@"
