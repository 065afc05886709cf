#!/usr/bin/env bash
# Other people's packages (captum, quantus, shap, spaCy, polars, bertviz, inseq, HanTa, JupyterLab) in a venv of their own,
# so that what they pin does not decide what everything else is tested with. Nothing may be skipped here.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-interop
stamp="$venv/.ready-$(cat pyproject.toml constraints.txt scripts/test_interop.sh | sha256sum | cut -c1-12)"
if [ ! -f "$stamp" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q -c constraints.txt torch==2.13.0
  "$venv/bin/pip" install -q -c constraints.txt -e ".[data,interop,notebook,pos]" \
    bertviz inseq ipython jupyterlab nbformat ipykernel playwright pytest pytest-timeout
  touch "$stamp"
fi
NOTHING_SKIPPED=1 "$venv/bin/python" -m pytest -m "not network" -rs \
  tests/test_interop.py tests/viz/test_jupyter.py tests/evaluation/test_paper_cases.py::test_a_real_tagger \
  tests/evaluation/test_paper_cases.py::test_parts_of_speech_of_the_papers_by_a_real_tagger "$@"
