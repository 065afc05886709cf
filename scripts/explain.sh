#!/usr/bin/env bash
# The main job, offline: explains an example sentence with the bundled model. Arguments go to `ctxmix explain`.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh flow,plot
HF_HUB_OFFLINE=1 exec .venv/bin/ctxmix explain "$@"
