#!/usr/bin/env bash
# Everything a fresh machine needs for the tests, then the tests. SLOW=1 adds the long ones,
# Ray, the fuzzer, the oldest transformers and other people's packages (CI); EXHAUSTIVE=1 also every check on every family.
set -euo pipefail
cd "$(dirname "$0")/.."
slow="${SLOW:-${EXHAUSTIVE:-}}"
bash scripts/setup.sh "test${slow:+,ray,fuzz}"
bash scripts/testbed.sh
if [ ! -x /usr/bin/chromium ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk fonts-noto-color-emoji) >/dev/null 2>&1 ||
    echo "chromium could not be installed: browser tests will be skipped"
fi
.venv/bin/ruff check ctxmix_hf tests benchmarks training spaces scripts
.venv/bin/ruff format --check -q ctxmix_hf tests benchmarks training spaces scripts
.venv/bin/mypy ctxmix_hf
marks="not network"
[ -n "${EXHAUSTIVE:-}" ] || marks="$marks and not exhaustive"
[ -n "$slow" ] || marks="$marks and not slow"
bash scripts/unchanged.sh .venv/bin/python -m pytest -n 2 --dist loadgroup -m "$marks" "$@"
[ -z "$slow" ] || bash scripts/unchanged.sh bash scripts/test_oldest.sh
[ -z "$slow" ] || bash scripts/unchanged.sh bash scripts/test_interop.sh
