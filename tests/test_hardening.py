"""Short versions of the long runs (their committed results carry the commit), and processes beside threads."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

import ctxmix_hf as cm
from tests.alone import alone

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.xdist_group("hardening")
@pytest.mark.parametrize(
    "words",
    [
        [
            "benchmarks/load.py",
            "--requests",
            "5",
        ],  # no ordinary request fails or starves, nothing abandoned is computed
        ["benchmarks/soak.py", "--calls", "300"],
        ["scripts/attacks.py", "--short"],
    ],
    ids=["load", "soak", "attacks"],
)
def test_short(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _require_commit(name: str) -> None:
    """A commit of this repository, where all of it is here to ask."""
    git = ["git", "-C", str(ROOT)]
    asked = [*git, "rev-parse", "--is-shallow-repository"]
    shallow = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not (ROOT / ".git").exists() or shallow != "false":
        pytest.skip("no git repository with its whole history")
    asked = [*git, "cat-file", "-e", f"{name}^{{commit}}"]
    assert not subprocess.run(asked, check=False).returncode, f"{name} is no commit of ours"


@pytest.mark.parametrize("name", ["load", "soak", "fuzz"])
def test_committed_results_say_which_commit_made_them(name: str) -> None:
    made = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert len(made["commit"]) == 12  # with changes, it would be longer
    if name == "soak":
        assert (
            made["calls"] >= 2000
            and max(made["megabytes_per_call_in_the_last_half"].values()) <= made["flat_below"]
        )
    elif name == "load":
        assert not made["failed"] and made["abandoned_and_computed"] == 0
    else:
        assert not any(row["finds"] for row in made["readers"].values())
    _require_commit(made["commit"])


TABLE = ROOT / "docs" / "security.md"


def _rows() -> dict[str, tuple[int, int]]:
    """Attack: tries, and how many got through; of two tables the later one."""
    found = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| .+ \|$", TABLE.read_text(), re.M)
    return {attack: (int(tries), int(through)) for attack, tries, through in found}


def test_every_attack_of_the_table_was_tried_and_none_got_through() -> None:
    rows = _rows()
    assert len(rows) > 30
    assert not [attack for attack, (tries, through) in rows.items() if through or not tries]
    assert {f"{attack} (tests)" for attack in _tested()} <= rows.keys()


def test_the_table_of_attacks_says_which_commit_made_it() -> None:
    written = TABLE.read_text().partition("<!-- written by")[2].partition("<!-- end -->")[0]
    cited = set(re.findall(r"[Cc]ommit ([^,)]+)[,)]", written))
    assert cited
    for name in cited:
        assert re.fullmatch(r"[0-9a-f]{12}", name), name
        _require_commit(name)


def test_the_table_says_what_the_fuzzer_found() -> None:
    made = json.loads((ROOT / "benchmarks" / "results" / "fuzz.json").read_text())
    kept = [path for path in (ROOT / "tests" / "fuzz_corpus").glob("*/*") if path.is_file()]
    readers, rows = len(made["readers"]), _rows()
    words = f"{readers} readers (`scripts/fuzz.py`, commit {made['commit']})"
    executions = sum(row["executions"] for row in made["readers"].values())
    assert rows[f"coverage-guided fuzzing of {words}"] == (executions, 0)
    assert rows[f"files kept by the fuzzer, {readers} readers"] == (len(kept), 0)


def _tested() -> dict[str, tuple[list[str], str]]:
    """What `scripts/attacks.py` runs, read and not imported: it changes the environment."""
    tree = ast.parse((ROOT / "scripts" / "attacks.py").read_text(encoding="utf-8"))
    (found,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TESTED"
    )
    return ast.literal_eval(found)


@pytest.mark.parametrize("attack", sorted(_tested()))
def test_every_test_that_the_table_counts_exists(attack: str) -> None:
    """Files by their path, and each word of `-k` in the name of a test or of one of its cases."""
    words, _ = _tested()[attack]
    files = [ROOT / "tests" / word for word in words if word.endswith(".py")]
    assert files and all(path.is_file() for path in files), files
    said = {
        str(getattr(node, "name", getattr(node, "value", "")))
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.Constant)
    }
    for word in words[words.index("-k") + 1].split() if "-k" in words else ():
        assert word in ("or", "and", "not") or any(word in name for name in said), word


@pytest.mark.parametrize(
    "words",
    [["test_hardening.py", "-k", "no_such_test"], ["viz/test_gone.py"]],
    ids=["name", "file"],
)
def test_tests_that_are_gone_are_an_attack_that_got_through(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS"):  # put back afterwards
        monkeypatch.setenv(name, "1")
    from scripts import attacks

    monkeypatch.setattr(attacks, "TESTED", {"gone": (words, "nothing")})
    (row,) = attacks.tested(2)
    assert (row.tries, row.through) == (0, 1)


LOADER = """
import warnings; warnings.simplefilter("ignore")
import sys, threading, torch, ctxmix_hf as cm
from torch.utils.data import DataLoader, Dataset

class Maps(Dataset):
    def __init__(self, model): self.model = model
    def __len__(self): return 4
    def __getitem__(self, n):
        torch.set_num_threads(1)
        return self.model(input_ids=torch.full((1, 5), 10 + n), output_context_mixing=["alti"]).context_mixing["alti"].layers[0].detach()

if __name__ == "__main__":
    model, _ = cm.load_default()
    expected = [Maps(model)[n] for n in range(4)]
    thread = threading.Thread(target=Maps(model).__getitem__, args=(0,)); thread.start(); thread.join()
    loader = DataLoader(Maps(model), batch_size=None, num_workers=2, multiprocessing_context=sys.argv[1], timeout=100)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, loader, strict=True))
    print("same")
"""  # noqa: E501


@pytest.mark.parametrize("way", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_dataloader_workers_compute_the_same_maps(way: str, tmp_path: Path) -> None:
    """After threads have run. Spawned, the model goes along by pickling; forked, as torch's default
    is on Linux, each worker computes with one thread.
    """
    (tmp_path / "loader.py").write_text(LOADER)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(tmp_path / "loader.py"), way]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "same", done.stderr[-2000:]


def forks_among_threads(count: int) -> None:
    """Threads use a model, the process forks under them, and the child computes a map too."""
    torch.set_num_threads(2)  # torch's own threads are what a child waits for
    model, tokenizer = cm.load_default()
    explain = partial(cm.explain, model, "The keys [MASK] old.", "alti", tokenizer=tokenizer)
    expected, over = explain().layers, threading.Event()

    def work() -> None:
        while not over.is_set():
            explain()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    outcomes = []
    for number in range(count):
        time.sleep(0.03 * number)
        child = os.fork()
        if not child:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                same = torch.allclose(explain().layers, expected, atol=1e-6)
            told = any("forked" in str(warning.message) for warning in said)
            os._exit(0 if same and told else 3)
        until, status = time.monotonic() + 60, None
        while status is None and time.monotonic() < until:
            done, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
            time.sleep(0.01)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        outcomes.append(status)
    over.set()
    for thread in threads:
        thread.join()
    assert outcomes == [0] * count, f"exit codes of the children (None: hung): {outcomes}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_process_forked_among_threads_computes_the_same_map() -> None:
    alone(forks_among_threads, 2, seconds=200)
