"""Evaluation results where the Hub shows them: tables as a dataset repository, scores as a model's `.eval_results`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

from ctxmix_hf import __version__
from ctxmix_hf.addresses import REPOSITORY
from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.evaluation.table import EvaluationReport, EvaluationTable, save_tables
from ctxmix_hf.hub.answers import hub_errors, require_token

RESULTS = ".eval_results/ctxmix.yaml"


def push_results(
    made: EvaluationReport | EvaluationTable,
    repo_id: str,
    *,
    model_repo: str | None = None,
    model: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """The tables into a dataset repository; with `model_repo` also the scores into that model's page.

    Args:
        made: What `evaluate` returned.
        repo_id: The dataset repository, made if it is not there.
        model_repo: The model repository whose `.eval_results/ctxmix.yaml` is written.
        model: What was evaluated, for the card.
        private: Of a new dataset repository.
        token: None: the one that is signed in.
        endpoint: Of the Hub.

    Returns:
        The commit of the tables.

    Raises:
        StoreError: No token, or the Hub refused; nothing is half written in one repository.
    """
    api = HfApi(endpoint=endpoint, token=token)
    require_token(repo_id, token)
    tables = (made,) if isinstance(made, EvaluationTable) else made.tables
    with tempfile.TemporaryDirectory() as folder, hub_errors(repo_id, None, token):
        report = made if isinstance(made, EvaluationReport) else None
        save_tables(tables, folder, pictures=False, report=report)
        (Path(folder) / "README.md").write_text(card(tables, model), encoding="utf-8")
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Evaluation of context mixing methods",
        )
    sha = str(done.oid)
    if model_repo is not None:
        text = yaml_dump(entries(tables, repo_id, sha), sort_keys=False)
        with hub_errors(model_repo, None, token):
            api.upload_file(
                repo_id=model_repo,
                path_or_fileobj=text.encode(),
                path_in_repo=RESULTS,
                commit_message="Evaluation of context mixing methods",
            )
    return sha


def entries(tables: Sequence[EvaluationTable], repo_id: str, revision: str) -> list[dict[str, Any]]:
    """One entry per method and row of the tables that have one number per method, as the Hub reads them."""
    try:
        from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    except ImportError as error:
        raise MissingDependencyError(
            "Writing .eval_results needs a newer huggingface_hub: pip install -U huggingface_hub."
        ) from error
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = []
    for table in tables:
        if table.form is None or "method" not in table.columns:
            continue
        for row in table:
            value = row[table.form.value]
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            words = [str(cell) for cell in row.values() if isinstance(cell, str)]
            found.append(
                EvalResultEntry(
                    dataset_id=repo_id,
                    task_id=".".join([table.name, *words]),
                    value=round(float(value), 6),
                    dataset_revision=revision,
                    date=date,
                    source_url=REPOSITORY,
                    source_name=f"ctxmix_hf {__version__}",
                    notes=f"{table.form.value}: {table.caption}",
                )
            )
    return eval_result_entries_to_yaml(found)


def card(tables: Sequence[EvaluationTable], model: str | None) -> str:
    """The dataset's page: each table is a configuration that the viewer shows."""
    configs = [{"config_name": table.name, "data_files": f"{table.name}.csv"} for table in tables]
    head = yaml_dump({"tags": ["ctxmix_hf", "evaluation"], "configs": configs}, sort_keys=False)
    about = f" on `{model}`" if model else ""
    body = "\n\n".join(f"## {table.name}\n\n{table.to_markdown()}" for table in tables)
    return (
        f"---\n{head}---\n# Which context mixing method should be believed{about}?\n\n"
        f"Made by [ctxmix_hf]({REPOSITORY}) {__version__}.\n\n{body}\n"
    )
