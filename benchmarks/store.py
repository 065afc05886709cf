"""Two figures of the map store: writing against raw safetensors, and bytes moved to read one example from a Hub.

    python benchmarks/store.py            # writes benchmarks/results/store.json

2,000 examples x 4 methods x 6 layers of 10 to 60 tokens, float32. The store gets padded batches, as
a model leaves them, and writes index, examples and checksums too; "raw" cuts the same batches to
length and saves them with safetensors alone. The Hub is the loopback server of the tests, read by
the real client.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from ctxmix_hf import ContextMixingMap, MapStore  # noqa: E402
from ctxmix_hf.hub.manifest import Manifest, method_entries  # noqa: E402
from ctxmix_hf.recipes import resolve  # noqa: E402
from ctxmix_hf.text.tokens import Tokens  # noqa: E402
from tests.hub.loopback import LoopbackHub  # noqa: E402

METHODS = ["alti", "attention", "norm_res", "value_zeroing"]
EXAMPLES, LAYERS, BATCH, REPEATS = 2000, 6, 16, 5


def sizes() -> list[int]:
    """Lengths of the examples, the same in every run."""
    rng = random.Random(0)
    return [rng.randint(10, 60) for _ in range(EXAMPLES)]


def batches(names: list[str]) -> list[tuple[list[str], dict[str, ContextMixingMap]]]:
    """Padded maps as a model call returns them."""
    lengths, made = sizes(), []
    generator = torch.Generator().manual_seed(0)
    for start in range(0, EXAMPLES, BATCH):
        part = lengths[start : start + BATCH]
        mask = torch.arange(max(part))[None] < torch.tensor(part)[:, None]
        tokens = [
            Tokens(tuple(f"w{i}" for i in range(max(part))), ids=tuple(range(max(part))))
            for _ in part
        ]
        maps = {
            name: ContextMixingMap(
                name,
                torch.rand(len(part), LAYERS, max(part), max(part), generator=generator),
                mask,
                tokens,
                meta={"options": recipe.method.options()},
            )
            for name, recipe in resolve(names).items()
        }
        made.append(([f"test-{start + i}" for i in range(len(part))], maps))
    return made


def manifest(names: list[str]) -> Manifest:
    about = {"weights": "0" * 64, "dtype": "float32", "model_type": "bert"}
    return Manifest(
        about,
        None,
        "float32",
        method_entries(resolve(names)),
        {"model_id": "synthetic", "versions": {}},
    )


def write_store(folder: Path, data: Any, names: list[str]) -> tuple[float, float]:
    """(wall seconds, processor seconds)."""
    start = time.perf_counter(), time.process_time()
    with MapStore.from_manifest(folder, manifest(names)) as store:
        for ids, maps in data:
            store.add_maps(ids, maps, split="test")
    return time.perf_counter() - start[0], time.process_time() - start[1]


def write_raw(folder: Path, data: Any, names: list[str]) -> tuple[float, float]:
    """The same batches, cut to length, in one safetensors file per method: no index, no texts, no checksums."""
    folder.mkdir()
    start = time.perf_counter(), time.process_time()
    for name in names:
        save_file(cut(data, name), folder / f"{name}.safetensors")
    return time.perf_counter() - start[0], time.process_time() - start[1]


def write_only(folder: Path, data: Any, names: list[str]) -> tuple[float, float]:
    """As `write_raw`, but the matrices were cut and are held in memory before the clock starts."""
    ready = {name: cut(data, name) for name in names}
    folder.mkdir()
    start = time.perf_counter(), time.process_time()
    for name, tensors in ready.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return time.perf_counter() - start[0], time.process_time() - start[1]


def cut(data: Any, name: str) -> dict[str, torch.Tensor]:
    """The matrices of a method without padding."""
    lengths, found = sizes(), {}
    for ids, maps in data:
        for b, example in enumerate(ids):
            size = lengths[len(found)]
            found[example] = maps[name].layers[b, :, :size, :size].contiguous()
    return found


def measure_writing(work: Path, names: list[str]) -> dict[str, Any]:
    data = batches(names)
    store: list[tuple[float, float]] = []
    raw: list[tuple[float, float]] = []
    only: list[tuple[float, float]] = []
    for i in range(REPEATS):
        for times, write, name in (
            (raw, write_raw, "raw"),
            (only, write_only, "only"),
            (store, write_store, "store"),
        ):
            shutil.rmtree(work / name, ignore_errors=True)
            os.sync()
            times.append(write(work / name, data, names))
            print(f"{name} {i}: {times[-1][0]:.2f} s, processor {times[-1][1]:.2f} s")
    total = sum(path.stat().st_size for path in (work / "store").rglob("*") if path.is_file())
    figures: dict[str, Any] = {}
    for name, times in (("store", store), ("raw", raw), ("save_file_alone", only)):
        figures[name] = {
            "seconds": [round(one[0], 3) for one in times],
            "processor_seconds": [round(one[1], 3) for one in times],
        }
    for name, times in (("raw", raw), ("save_file_alone", only)):
        figures[f"store_by_{name}"] = {
            "best": min(s[0] for s in store) / min(o[0] for o in times),
            "median": statistics.median(s[0] for s in store)
            / statistics.median(o[0] for o in times),
            "processor_median": statistics.median(s[1] for s in store)
            / statistics.median(o[1] for o in times),
        }
    return {
        **figures,
        "store_bytes": total,
        "raw_bytes": sum(path.stat().st_size for path in (work / "raw").iterdir()),
    }


def measure_reading(work: Path, name: str) -> dict[str, Any]:
    with LoopbackHub(work / "hub") as server:
        sha = MapStore.open(work / "store").push_to_hub(
            "tester/maps", endpoint=server.url, token=server.token
        )
        store = MapStore.from_hub(
            "tester/maps", sha, endpoint=server.url, token=server.token, cache_dir=work / "cache"
        )
        index = server.bytes_sent("/resolve/")
        ids = random.Random(1).sample(store.ids(), 50)
        server.requests.clear()
        start = time.perf_counter()
        moved = 0
        for example in ids:
            made = store[example, name]
            assert made.layers is not None
            moved += made.layers.numel() * 4
        seconds = time.perf_counter() - start
        sent = sum(one.bytes_sent for one in server.requests)
    return {
        "examples": len(ids),
        "bytes_of_the_maps": moved,
        "bytes_moved": sent,
        "ratio": sent / moved,
        "requests_per_example": len(server.requests) / len(ids),
        "milliseconds_per_example": 1000 * seconds / len(ids),
        "index_bytes": index,
    }


def main() -> None:
    torch.set_num_threads(1)
    names = METHODS
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        result = {
            "examples": EXAMPLES,
            "methods": names,
            "layers": LAYERS,
            "tokens": "10-60",
            "batch": BATCH,
            "writing": measure_writing(work, names),
            "reading_one": measure_reading(work, names[0]),
            "load_average": os.getloadavg()[0],
        }
    path = ROOT / "benchmarks" / "results" / "store.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
