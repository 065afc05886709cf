"""Coverage-guided fuzzing (atheris) of everything that reads a file somebody else wrote.

    python scripts/fuzz.py                  # a few CPU minutes, writes benchmarks/results/fuzz.json
    python scripts/fuzz.py --seconds 5      # short, writes nothing, as CI does

Each reader starts from small valid files and keeps what reached new code in
`tests/fuzz_corpus/<reader>` (with `--keep`). A reader may refuse a file in one sentence of ours or
read it; any other exception is a find: its input is saved and the exit code is 1.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "fuzz_corpus"
RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"
ROOM = 11_000  # bytes of a reader's corpus
READING = ("formats", "results", "hub", "corpora", "evaluation.data")  # what is watched
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@functools.cache
def scratch() -> Path:
    """The one folder of this run; forked readers write into it too, and whoever made it removes it."""
    folder = tempfile.mkdtemp(prefix="ctxmix-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


# ---- readers
# ----------------------------------------------------------------------------------------------------------
def _results(suffix: str, kind: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        import ctxmix_hf as cm

        classes = {
            "map": cm.ContextMixingMap,
            "attribution": cm.Attribution,
            "ledger": cm.Ledger,
            "similarity": cm.Similarity,
        }
        path = _written(data, suffix)
        made = classes[kind].load(path, max_bytes=1 << 22)
        str(made)

    return read


def _written(data: bytes, suffix: str) -> Path:
    path = scratch() / f"foreign{suffix}"
    path.write_bytes(data)
    return path


def _rows(suffix: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        from ctxmix_hf.evaluation.data import read_data

        read_data(str(_written(data, suffix))).notes()

    return read


def _store(part: str) -> Callable[[bytes], None]:
    """One file of a store is foreign, the others are as they were."""

    def read(data: bytes) -> None:
        import ctxmix_hf as cm

        whole = _sample_store()
        copy = scratch() / "foreign-store"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        target = next(
            path
            for path in sorted(copy.rglob("*"))
            if path.is_file() and re.search(part, path.name)
        )
        target.write_bytes(data)
        store = cm.MapStore.open(copy)
        for name in store.ids():
            str(store[name, "alti"])

    return read


def _certificate(data: bytes) -> None:
    from ctxmix_hf.certifying import read_certificate

    read_certificate(_written(data, ".json"))


def _run(part: str) -> Callable[[bytes], None]:
    """One file that `ctxmix precompute` left in its folder is foreign."""

    def read(data: bytes) -> None:
        from ctxmix_hf.precompute.folder import Folder

        home = scratch() / "foreign-run"
        folder = Folder(home)
        target = home / "run" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        {
            "options.json": lambda: folder.check_options({"methods": ["alti"]}),
            "plan.json": folder.load_plan,
            "tasks/000000.json": lambda: folder.read_task(0),
        }[part]()

    return read


KINDS, FORMATS = ("map", "attribution", "ledger", "similarity"), ("json", "npz", "safetensors")
STORE = {  # reader -> the file of a store it is about
    "store-manifest": r"^ctxmix\.json$",
    "store-shard": r"\.safetensors$",
    "store-index": r"^index\.jsonl$",
    "store-examples": r"^train\.jsonl$",
}
RUN = {"run-options": "options.json", "run-plan": "plan.json", "run-task": "tasks/000000.json"}
READERS: dict[str, Callable[[bytes], None]] = {
    **{f"{kind}.{end}": _results(f".{end}", kind) for kind in KINDS for end in FORMATS},
    **{f"rows.{end}": _rows(f".{end}") for end in ("csv", "tsv", "json", "jsonl", "parquet")},
    **{name: _store(part) for name, part in STORE.items()},
    **{name: _run(part) for name, part in RUN.items()},
    "certificate": _certificate,
}


# ---- small valid files
# ------------------------------------------------------------------------------------------------
@functools.cache
def _sample_store() -> Path:
    import ctxmix_hf as cm

    folder = scratch() / "store"
    model, tokenizer = cm.load_default()
    with cm.MapStore.create(folder, model=model, tokenizer=tokenizer, methods=["alti"]) as store:
        store.add(["a"], ["keys [MASK]"])
    return folder


def seeds(name: str) -> list[bytes]:
    """A valid file of this reader, and nearly nothing."""
    import ctxmix_hf as cm

    if name.startswith("rows"):
        csv = b"text,label\nThe keys are old.,1\nnothing,0\n"
        lines = b'{"text": "The keys are old.", "label": 1}\n{"text": "x"}\n'
        whole = b'[{"text": "The keys are old.", "label": 1}]'
        return [csv, csv.replace(b",", b"\t"), lines, whole, _parquet(), b""]
    if name.startswith("run"):
        plan = {"rows": 1, "digest": "0", "tasks": 1, "examples": 1, "tokens": 3, "truncated": 0}
        plan |= {"skipped": [], "checksum": ""}
        task = [[["a", "The keys are old.", 1], ["b", ["two", "texts"], None]]]
        return [json.dumps(made).encode() for made in ({"methods": ["alti"]}, plan, task, {}, [[]])]
    if name == "certificate":
        return [json.dumps(cm.certify("ctxmix/agreement")).encode(), b"{}"]
    if name.startswith("store"):
        part = STORE[name]
        files = [
            p for p in sorted(_sample_store().rglob("*")) if p.is_file() and re.search(part, p.name)
        ]
        return [files[0].read_bytes(), b"{}"]
    model, tokenizer = cm.load_default()
    kind, _, suffix = name.partition(".")
    text = "keys [MASK]"
    made: Any = {
        "map": lambda: cm.explain(model, text, "alti", tokenizer=tokenizer),
        "attribution": lambda: cm.explain(model, text, "alti", tokenizer=tokenizer).attribution(
            "[MASK]"
        ),
        "ledger": lambda: cm.ledger(model, text, tokenizer=tokenizer),
        "similarity": lambda: cm.similarity(
            model, "keys", "old", pooling="mean", tokenizer=tokenizer
        ),
    }[kind]()
    path = made.save(scratch() / f"seed.{suffix}")
    return [path.read_bytes(), b"{}", b""]


def _parquet() -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:  # the reader says so too
        return b"PAR1"
    held = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["The keys are old."], "label": [1]}), held)
    return held.getvalue()


# ---- one reader, in a process of its own
# ------------------------------------------------------------------------------
def instrument() -> None:
    """Import what is watched, once for all readers."""
    import atheris
    import torch

    torch.set_num_threads(1)  # readers are forked
    with atheris.instrument_imports(include=[f"ctxmix_hf.{part}" for part in READING]):
        import ctxmix_hf  # noqa: F401
        from ctxmix_hf.evaluation import data  # noqa: F401
        from ctxmix_hf.formats import json, npz, safetensors  # noqa: F401
        from ctxmix_hf.hub import store  # noqa: F401


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    import ctxmix_hf as cm

    warnings.simplefilter("ignore")
    read = READERS[name]

    def once(data: bytes) -> None:
        with contextlib.suppress(cm.CtxmixError):
            read(data)

    options = [
        f"-max_total_time={seconds}",
        "-max_len=65536",
        "-timeout=60",
        "-rss_limit_mb=6000",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}/find-", str(corpus)], once)
    atheris.Fuzz()


def run(name: str, seconds: int, keep: bool) -> dict[str, Any]:
    """(executions, finds) of one reader."""
    corpus = scratch() / f"corpus-{name}"
    corpus.mkdir()
    try:
        for i, seed in enumerate(seeds(name)):
            (corpus / f"seed-{i}").write_bytes(seed)
        for path in sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []:
            (corpus / path.name).write_bytes(path.read_bytes())
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                try:
                    fuzz(name, seconds, corpus)
                except SystemExit as end:  # the folder is the parent's to remove
                    os._exit(int(end.code or 0))
                finally:
                    os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            log = said.read().decode(errors="replace")
        found = re.search(r"stat::number_of_executed_units:\s*(\d+)", log)
        finds = sorted(path.name for path in corpus.glob("find-*"))
        for path in corpus.glob("find-*"):
            target = ROOT / "tests" / "artifacts" / f"fuzz-{name}-{path.name}"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
        if status and not finds:
            raise SystemExit(f"{name}: the fuzzer could not run:\n{log[-2000:]}")
        if keep:
            _keep(name, corpus)
        if finds:
            print(log[-3000:], file=sys.stderr)
        return {
            "executions": int(found.group(1)) if found else 0,
            "finds": len(finds),
            "seconds": seconds,
        }
    finally:
        shutil.rmtree(corpus, ignore_errors=True)


def _keep(name: str, corpus: Path) -> None:
    """Files that reached new code, small and large ones in turn, named by their content."""
    files = sorted(
        (p for p in corpus.iterdir() if not p.name.startswith("find-")),
        key=lambda p: p.stat().st_size,
    )
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    total = 0
    while files:
        for k in (0, -1)[: len(files)]:
            data = files.pop(k).read_bytes()
            if total + len(data) <= ROOM:
                total += len(data)
                (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="for each reader")
    parser.add_argument(
        "--keep", action="store_true", help="write the corpus and benchmarks/results/fuzz.json"
    )
    parser.add_argument("--only", nargs="*", choices=sorted(READERS), help="these readers")
    args = parser.parse_args()
    instrument()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    made: dict[str, Any] = {"commit": head.stdout.strip()[:12], "readers": {}}
    if args.only and args.keep:
        made["readers"] = json.loads(RESULT.read_text())["readers"]
    rows = made["readers"]
    for name in args.only or READERS:
        rows[name] = row = run(name, args.seconds, args.keep)
        print(
            f"{name:20} {row['executions']:>9,} inputs in {row['seconds']} s, {row['finds']} finds",
            flush=True,
        )
        if args.keep:
            RESULT.write_text(json.dumps(made, indent=1) + "\n")
    return 1 if any(row["finds"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
