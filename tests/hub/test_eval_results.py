"""`ctxmix evaluate --to-hub`: tables and a model's `.eval_results` on the loopback Hub, read by the real client."""

from __future__ import annotations

import csv
import socket
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from huggingface_hub import HfApi

from .conftest import RunPython

parse = getattr(huggingface_hub, "parse_eval_result_entries", None)
RUN = """
    import sys
    from ctxmix_hf.cli import main
    words = "evaluate --suite faithfulness --methods alti,attention_rollout --limit 3 --to-hub {data}"
    sys.exit(main([*words.split(), *{more}]))
"""


@pytest.mark.skipif(parse is None, reason="this huggingface_hub knows no .eval_results yet")
def test_tables_and_entries_reach_the_hub(
    api: HfApi, repo_id: str, run_python: RunPython, tmp_path: Path
) -> None:
    data, model = repo_id, f"{repo_id}-model"[:96]
    api.create_repo(model)
    run_python(RUN.format(data=data, more=["--model-repo", model]))  # the advice
    assert {"faithfulness.csv", "faithfulness.json", "README.md"} <= set(
        api.list_repo_files(data, repo_type="dataset")
    )
    fetch = {"local_dir": tmp_path / "got"}
    text = Path(api.hf_hub_download(model, ".eval_results/ctxmix.yaml", **fetch)).read_text()
    found = parse(yaml.safe_load(text))
    path = api.hf_hub_download(data, "faithfulness.csv", repo_type="dataset", **fetch)
    with Path(path).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    means = {f"faithfulness.{row['method']}.{row['reference']}": float(row["mean"]) for row in rows}
    assert len(found) == len(means) >= 4
    for entry in found:
        assert entry.value == pytest.approx(means[entry.task_id], abs=1e-5)
        assert entry.dataset_id == data and entry.source_url and entry.date
        assert entry.dataset_revision == api.dataset_info(data).sha
    card = Path(api.hf_hub_download(data, "README.md", repo_type="dataset", **fetch)).read_text()
    configs = yaml.safe_load(card.split("---")[1])["configs"]
    assert configs == [{"config_name": "faithfulness", "data_files": "faithfulness.csv"}]


def test_without_a_token_nothing_is_computed(
    repo_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ctxmix_hf.cli import main
    from ctxmix_hf.cli.commands import evaluate
    from ctxmix_hf.hub import answers

    monkeypatch.setattr(answers, "get_token", lambda: None)
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, **__: pytest.fail("computed"))
    assert main(["evaluate", "--to-hub", repo_id]) == 2
    assert "There is no Hub token" in capsys.readouterr().err
    assert main(["evaluate", "--model-repo", repo_id]) == 2


def test_a_hub_out_of_reach_is_one_sentence(repo_id: str, run_python: RunPython) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # nobody listens there
        said = run_python(
            f"""
            import contextlib, io
            from ctxmix_hf.cli import main
            said = io.StringIO()
            words = "evaluate --suite faithfulness --methods alti --limit 2 --json --to-hub {repo_id}"
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                code = main(words.split())
            print(code)
            print(said.getvalue(), end="")
            """,
            {"HF_ENDPOINT": f"http://127.0.0.1:{port}"},
        ).splitlines()
    assert said[0] == "2" and len(said) == 2
    assert said[1].startswith("ctxmix: Nothing was computed") and repo_id in said[1]
    assert (
        "check the name, the token (HF_TOKEN) and the network" in said[1] and "hf_" not in said[1]
    )
