#!/usr/bin/env bash
# Everything a fresh machine needs for the tests, then the tests. SLOW=1 adds the long ones, Ray, and the oldest transformers.
set -euo pipefail
cd "$(dirname "$0")/.."
slow="${SLOW:-}"
bash scripts/setup.sh "test${slow:+,ray}"
if [ ! -x /usr/bin/chromium ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk fonts-noto-color-emoji) >/dev/null 2>&1 ||
    echo "chromium could not be installed: browser tests will be skipped"
fi
.venv/bin/ruff check ctxmix_hf tests benchmarks training spaces scripts
.venv/bin/mypy ctxmix_hf
marks="not network"
[ -n "$slow" ] || marks="$marks and not slow"
.venv/bin/python -m pytest -n 2 --dist loadgroup -m "$marks" "$@"
[ -z "$slow" ] || bash scripts/test_oldest.sh
