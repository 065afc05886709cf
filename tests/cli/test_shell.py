"""Every command once through a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import ctxmix_hf as cm
from ctxmix_hf.cli.parser import COMMANDS
from tests.cli.conftest import environment
from tests.hub.loopback import LoopbackHub


def test_help_is_light(shell) -> None:
    heavy = (
        "import sys; from ctxmix_hf.cli import main; main(['--help']); print({'torch', "
        "'transformers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", heavy], capture_output=True, text=True, env=environment(), timeout=60
    )
    assert done.stdout.splitlines()[-1] == "set()"
    assert all(name in done.stdout for name, *_ in COMMANDS) and "examples:" in done.stdout
    started = os.times()
    assert shell("--help").code == 0
    ended = os.times()
    assert (
        ended.children_user
        + ended.children_system
        - started.children_user
        - started.children_system
        < 0.5
    )


def test_version_and_wrong_usage(shell) -> None:
    assert shell("--version").out.strip() == f"ctxmix {cm.__version__}"
    for args in ([], ["explian"], ["precompute"], ["bench", "--tokens", "0"]):
        done = shell(*args)
        assert done.code == 2 and done.out == ""
        assert len(done.err.splitlines()) == 1 and done.err.startswith("ctxmix: ")


def test_explain_example_offline(shell) -> None:
    done = shell("explain", FORCE_COLOR="1", HTTPS_PROXY="http://127.0.0.1:9")
    assert done.code == 0 and done.err == ""
    assert "alti" in done.out and "cabinet" in done.out and "\x1b[48;2;" in done.out


def test_explain_stdin_as_json(shell) -> None:
    done = shell(
        "explain",
        "-",
        "--method",
        "alti",
        "--target",
        "[CLS]",
        "--json",
        stdin="A fine film.\n\nThe key is here.\n",
    )
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first["text"] == "A fine film." and second["attribution"]["target"] == "[CLS]"
    m = cm.ContextMixingMap.from_json(done.out.splitlines()[0])
    assert m.method == "alti" and m.tokens[0].text == "A fine film."


def test_methods_into_a_closed_pipe() -> None:
    line = f"{sys.executable} -m ctxmix_hf methods | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert done.stdout.strip() == "0" and done.stderr == ""


def test_models(shell) -> None:
    done = shell("models", "bert", "--json")
    assert {"bert", "roberta"} <= {row["model_type"] for row in json.loads(done.out)["families"]}


def test_doctor(shell) -> None:
    done = shell("doctor", "ctxmix/sentiment", "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["exact"] and found["family"] == "bert"
    assert found["ledger"] < 1e-5 and "balances to" in shell("doctor", "ctxmix/sentiment").out
    assert {row["method"] for row in found["methods"]} == {info.name for info in cm.list_methods()}


def test_compare(shell) -> None:
    done = shell("compare", "--methods", "alti,globenc")
    assert done.code == 0 and "rank correlation" in done.out and "globenc" in done.out


def test_evaluate(shell, tmp_path: Path) -> None:
    done = shell(
        "evaluate",
        "--suite",
        "faithfulness",
        "--methods",
        "alti",
        "--limit",
        "3",
        "--json",
        "--out",
        str(tmp_path / "made"),
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["name"] == "faithfulness"
    assert (tmp_path / "made" / "faithfulness.csv").exists()


def test_evaluate_writes_its_pictures(
    shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = shell("evaluate", "--suite", "special_tokens", "--methods", "alti", "--limit", "3")
    assert done.code == 0, done.err
    assert {path.suffix for path in (tmp_path / "ctxmix-special_tokens").iterdir()} >= {
        ".csv",
        ".json",
        ".png",
    }


def test_bench(shell) -> None:
    done = shell(
        "bench",
        "--methods",
        "attention,alti",
        "--tokens",
        "12",
        "--batch",
        "2",
        "--repeat",
        "1",
        "--json",
    )
    found = json.loads(done.out)
    assert [row["method"] for row in found["methods"]] == ["attention", "alti"] and found[
        "methods"
    ][1]["ratio"] > 0


def test_completion(shell, tmp_path: Path) -> None:
    script = tmp_path / "bash"
    script.write_text(shell("completion", "bash").out)
    ask = f'source {script}; COMP_WORDS=(ctxmix explain --method alt); COMP_CWORD=3; _ctxmix; echo "${{COMPREPLY[@]}}"'
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout.split() == [
        info.name for info in cm.list_methods() if info.name.startswith("alt")
    ]
    ask = (
        f'source {script}; COMP_WORDS=(ctxmix pre); COMP_CWORD=1; _ctxmix; echo "${{COMPREPLY[@]}}"'
    )
    assert (
        subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout.strip()
        == "precompute"
    )


def test_precompute_push_pull(shell, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("name,review\na,A fine film.\nb,\nc,The keys [MASK] here.\n")
    options = [
        "precompute",
        "--dataset",
        str(data),
        "--text-column",
        "review",
        "--id-column",
        "name",
        "--methods",
        "alti",
    ]
    done = shell(*options, "--out", str(tmp_path / "maps"))
    assert done.code == 0 and done.err == "", done.err
    assert "2 examples of alti" in done.out and "1 rows were skipped" in done.out
    with LoopbackHub(tmp_path / "hub") as server:
        hub = {
            "HF_ENDPOINT": server.url,
            "HF_TOKEN": server.token,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        repo = f"{server.user}/maps"
        pushed = shell("push", str(tmp_path / "maps"), repo, "--tag", "v1", "--json", **hub)
        assert pushed.code == 0, pushed.err
        pulled = shell("pull", repo, "--revision", "v1", "--out", str(tmp_path / "again"), **hub)
        assert pulled.code == 0 and "2 examples" in pulled.out, pulled.err
    assert cm.MapStore.open(tmp_path / "again").ids() == ["a", "c"]
    assert len(json.loads(pushed.out)["commit"]) == 40


def test_demo_serves_until_interrupted() -> None:
    pytest.importorskip("gradio", reason="the extra [demo] is not installed")
    process = subprocess.Popen(
        [sys.executable, "-m", "ctxmix_hf", "demo", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        url = json.loads("".join(lines))["url"]
        with urllib.request.urlopen(url, timeout=60) as page:
            assert page.status == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and err.strip().endswith("ctxmix: Interrupted.")
    finally:
        process.kill()
