"""Files that the fuzzer kept (`scripts/fuzz.py`): every reader refuses them in a sentence or reads them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ctxmix_fuzz", ROOT / "scripts" / "fuzz.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


FUZZ = script()


@pytest.mark.parametrize("name", FUZZ.READERS)
def test_what_the_fuzzer_kept_is_read_or_refused(name: str) -> None:
    """Anything but an error of ours fails this test by itself."""
    read, outcomes = FUZZ.READERS[name], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in sorted((FUZZ.CORPUS / name).iterdir()):
            try:
                read(path.read_bytes())
                outcomes.append("read")
            except cm.CtxmixError as error:
                assert str(error).strip()
                outcomes.append("refused")
    assert "refused" in outcomes, "the corpus holds nothing hostile"


def test_the_corpus_is_small_and_its_run_is_recorded() -> None:
    files = [path for path in FUZZ.CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    found = json.loads(FUZZ.RESULT.read_text())
    assert found["commit"] and set(found["readers"]) == set(FUZZ.READERS)
    assert all(row["executions"] and not row["finds"] for row in found["readers"].values())


@pytest.mark.slow
def test_the_fuzzer_finds_nothing_in_a_few_seconds() -> None:
    pytest.importorskip("atheris", reason="pip install 'ctxmix-hf[fuzz]' (Linux)")
    words = [sys.executable, "scripts/fuzz.py", "--seconds", "3", "--only", "map.json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0 and "0 finds" in done.stdout, done.stderr[-3000:]
