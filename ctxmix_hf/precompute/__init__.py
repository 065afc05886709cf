"""Maps of a whole dataset: rows -> plan of batches -> workers -> `MapStore`. Stopped at any moment, it continues.

rows.py      rows of a file or a Hub dataset, one at a time
plan.py      rows to batches of similar length, before anything is computed: the same data gives the same batches
folder.py    what the output folder knows of its run: options, plan, tasks, parts, failures
compute.py   a planned batch through the model, halved when memory ends, single bad rows left out
work.py      a task (some batches) into a store: the output itself, or a part of it
engines.py   tasks in this process, or in several;  ray_engine.py  on Ray Data
run.py       all of it: `precompute(job)`
"""

from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.run import Summary, precompute

__all__ = ["Job", "Summary", "precompute"]
