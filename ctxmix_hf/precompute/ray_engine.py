"""The same tasks on Ray Data: actors that load the model once and write their parts where they are."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.work import TaskWorker

CPUS = 0.5  # of an actor: whole ones would leave no slot for reading where there are as many actors as cores


class TaskActor:
    """One model; a row of the dataset is the number of a task."""

    def __init__(self, job: Job) -> None:
        self.worker = TaskWorker.begin(job, "cuda" if job.device.startswith("cuda") else None)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"task": self.worker.make_part(int(row["task"]))}


def on_ray(job: Job, numbers: Sequence[int]) -> Iterator[int]:
    """Tasks as they finish. Ray starts lost actors again and repeats what they had; a begun part is continued."""
    ray = connect()
    data = ray.data.from_items(
        [{"task": number} for number in numbers], override_num_blocks=len(numbers)
    )
    needs: dict[str, Any] = {"num_gpus": 1} if job.device.startswith("cuda") else {"num_cpus": CPUS}
    made = data.map(
        TaskActor,
        fn_constructor_args=(job,),
        concurrency=min(job.workers, len(numbers)),
        max_restarts=-1,
        **needs,
    )
    for row in made.iter_rows():
        yield int(row["task"])


def connect() -> Any:
    """The cluster of RAY_ADDRESS, or a small one on this machine."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingDependencyError.of("ray", "ray") from error
    if not ray.is_initialized():
        local: dict[str, Any] = (
            {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        )
        ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=True, **local)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray
