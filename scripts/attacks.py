"""Attacks the library and the page, and writes what came of it into docs/security.md.

    python scripts/attacks.py              # all tries, writes the table
    python scripts/attacks.py --short      # fewer tries, writes nothing, as CI does

Exit code 1 if an attack got through, or was not tried. Everything happens on this machine, at 127.0.0.1.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gc
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch  # noqa: E402

import ctxmix_hf as cm  # noqa: E402
from benchmarks.serving import Page, Refused, commit, megabytes, serve  # noqa: E402
from ctxmix_hf.demo import gate, settings, shelf  # noqa: E402
from ctxmix_hf.demo.door import known_host  # noqa: E402
from tests.demo import overruns  # noqa: E402

PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- written by scripts/attacks.py -->", "<!-- end -->"
SINCE = "Added since:"
TEXT = "The keys to the cabinet [MASK] on the table."


@dataclass(frozen=True)
class Outcome:
    """What was tried how often, and how often it got through."""

    attack: str
    tries: int
    through: int
    result: str


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------
class Struck(KeyboardInterrupt): ...


def interrupts(tries: int) -> Iterator[Outcome]:
    model, tokenizer = cm.load_default()
    ids = [torch.randint(5, 90, (1, n)) for n in (6, 9)]
    calls: dict[str, Callable[[], Any]] = {
        "a direct call": lambda: model(
            input_ids=ids[0], output_context_mixing=["alti", "value_zeroing"]
        ),
        "explain": lambda: cm.explain(model, TEXT, ["alti", "norm_enc"]),
        "attribute": lambda: cm.attribute(model, TEXT, "integrated_gradients", steps=8),
    }
    with torch.no_grad():
        plain = model(input_ids=ids[1]).logits

    def ring(*_: Any) -> None:
        raise Struck

    before, chance = signal.signal(signal.SIGALRM, ring), random.Random(0)
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        call()
        seconds, dirty, struck = time.perf_counter() - began, 0, 0
        for _ in range(20 * tries):  # some calls end before the alarm
            if struck == tries:
                break
            try:
                signal.setitimer(signal.ITIMER_REAL, max(1e-5, chance.random() * seconds))
                call()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            clean = torch.is_grad_enabled() and not torch._C._len_torch_function_stack()
            with torch.no_grad():
                out = model(input_ids=ids[1])
            dirty += not (
                clean and torch.equal(out.logits, plain) and not hasattr(out, "context_mixing")
            )
        yield Outcome(
            f"Ctrl-C at random moments of {name}",
            struck,
            dirty,
            "the next call is clean, the thread's modes as before",
        )
    signal.signal(signal.SIGALRM, before)


# ---- damaged files --------------------------------------------------------------------------------------------
def damaged(data: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, cut out, doubled or zeroed."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at, kind = chance.randrange(max(1, len(made))), chance.randrange(4)
        if kind == 0 and made:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del made[at : at + chance.randint(1, 64)]
        elif kind == 2:
            made[at:at] = made[at : at + 32]
        else:
            made[at : at + 16] = bytes(len(made[at : at + 16]))
    return bytes(made)


def files(tries: int) -> Iterator[Outcome]:
    """Every format that can be read, and a store."""
    model, tokenizer = cm.load_default()
    made, chance = cm.explain(model, TEXT, "alti", tokenizer=tokenizer), random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("json", "npz", "safetensors"):
            path = Path(folder) / f"map.{suffix}"
            made.save(path)
            whole, foreign = path.read_bytes(), 0
            for _ in range(tries):
                path.write_bytes(damaged(whole, chance))
                foreign += not _ours(lambda path=path: cm.ContextMixingMap.load(path))
            yield Outcome(
                f"damaged .{suffix} maps",
                tries,
                foreign,
                "one sentence of ours, or a map whose shapes agree",
            )
        store = Path(folder) / "store"
        with cm.MapStore.create(
            store, model=model, tokenizer=tokenizer, methods=["alti"]
        ) as writing:
            writing.add(["a", "b"], [TEXT, "The boys [MASK] tired."])
        names = [path for path in store.rglob("*") if path.is_file()]
        right = {key: cm.MapStore.open(store)[key, "alti"] for key in ("a", "b")}
        foreign = wrong = 0
        for number in range(tries):
            copy = Path(folder) / "copy"
            shutil.copytree(store, copy)
            path = copy / names[number % len(names)].relative_to(store)
            path.write_bytes(damaged(path.read_bytes(), chance))
            for key, expected in right.items():
                got: list[Any] = []
                foreign += not _ours(
                    lambda copy=copy, key=key, got=got: got.append(
                        cm.MapStore.open(copy)[key, "alti"]
                    )
                )
                wrong += bool(got) and not torch.equal(got[0].layers, expected.layers)
            shutil.rmtree(copy)
        yield Outcome(
            "damaged files of a store, every example read",
            2 * tries,
            foreign + wrong,
            "a sentence of ours, or right numbers",
        )


def _ours(call: Callable[[], Any]) -> bool:
    """Whether a call ended well or with an error of ours."""
    try:
        call()
    except cm.CtxmixError:
        return True
    except Exception as error:
        print(f"foreign: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


# ---- the page -------------------------------------------------------------------------------------------------
def workers(tries: int) -> Iterator[Outcome]:
    """What a request might do inside a worker process."""
    numbers = {"KILL": "1", "PROCESS_MEGABYTES": "3000", "ANSWER_MEGABYTES": "2"}
    limits = {
        settings.HOST: "0.0.0.0",
        **{f"CTXMIX_DEMO_{name}": value for name, value in numbers.items()},
    }
    code = "import sys; sys.path.insert(0, sys.argv[1]); from scripts import attacks; attacks.inside(int(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(ROOT), str(tries)],
        env={**os.environ, **limits, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    for row in json.loads(done.stdout.splitlines()[-1]):
        yield Outcome(*row)


def inside(tries: int) -> None:
    """The attacks of `workers`, in a process whose limits are small; prints a list of outcomes."""
    made, rows = gate.Gate(1), []
    hostile: list[tuple[str, Callable[..., Any], tuple[Any, ...], str]] = [
        ("a request that computes for a minute", overruns.spin, (60.0,), "stopped after its time"),
        (
            "a request that cannot be interrupted",
            overruns.deaf,
            (60.0,),
            "its process is killed and replaced",
        ),
        ("a request for 8 GB of memory", overruns.eat, (8,), "refused by the limit of its process"),
        (
            "a request that ends its process",
            overruns.die,
            (),
            "one sentence; the process is replaced",
        ),
        ("an answer of 5 MB where 2 are allowed", overruns.talk, (5,), "refused with its size"),
    ]
    for name, function, args, result in hostile:
        through = 0
        for _ in range(tries):
            try:
                made.run(gate.Task("hostile"), function, args, {})
                through += 1
            except cm.CtxmixError:
                pass
            through += made.run(gate.Task("next"), overruns.say, ("x",), {})[0] != "x"
        rows.append((name, tries, through, f"{result}; the next visitor is served"))
    leaks = 0
    for function in (overruns.tell, overruns.stumble):
        try:
            made.run(gate.Task("hostile"), function, (), {})
        except cm.CtxmixError as error:
            leaks += "secrets" in str(error)
    rows.append(
        (
            "errors that name a path of the server",
            2,
            leaks,
            "the path is not in what the visitor reads",
        )
    )
    made.close()
    print(json.dumps(rows))


def door(_: int) -> Iterator[Outcome]:
    hosts = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.7", ""]
    yield Outcome(
        "host names of others (DNS rebinding)",
        len(hosts),
        sum(map(known_host, hosts)),
        "refused (421)",
    )
    names = [
        "/etc/passwd",
        "../x",
        "a/../../etc",
        "~/x",
        ".",
        "google/vit-base",
        "a\\b",
        "/proc/self/environ",
    ]
    with _environment({settings.HOST: "0.0.0.0"}):
        through = sum(_accepted(name) for name in names)
    yield Outcome(
        "paths and Hub ids on a page that strangers reach",
        len(names),
        through,
        "only the bundled models",
    )
    names.remove("google/vit-base")
    with _environment(
        {"SPACE_ID": "me/space", "CTXMIX_DEMO_ANY_MODEL": "1", "CTXMIX_DEMO_LOCAL_PATHS": "1"}
    ):
        through = sum(_accepted(name) for name in [*names, "ctxmix_hf/demo"])
    yield Outcome(
        "paths on a Space, also of folders beside the app",
        len(names) + 1,
        through,
        "never a folder",
    )


def _accepted(name: str) -> bool:
    try:
        shelf.check_name(name)
    except cm.CtxmixError:
        return False
    return True


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def models(_: int) -> Iterator[Outcome]:
    """Configurations that promise little and cost much."""
    base = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 100,
    }
    hostile = {
        "a vocabulary of 800 million numbers": {"vocab_size": 100_000_000},
        "a middle layer of 1.2 billion": {"intermediate_size": 80_000_000},
        "3 million tiny layers": {"num_hidden_layers": 3_000_000},
        "a table of 800 million positions": {"max_position_embeddings": 100_000_000},
    }
    through, longest = 0, 0.0
    for config in hostile.values():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps({**base, **config}))
            began = time.perf_counter()
            try:
                shelf.load(folder)
                through += 1
            except cm.CtxmixError as error:
                through += "million parameters" not in str(error) and "too many layers" not in str(
                    error
                )
            longest = max(longest, time.perf_counter() - began)
    said = f"refused before anything is loaded, the slowest after {longest:.1f} s"
    yield Outcome(f"configurations: {', '.join(hostile)}", len(hostile), through, said)


def visitors(tries: int) -> Iterator[Outcome]:
    """A real server: requests that nobody waits for, visitors who leave, bodies that are too large,
    text that is a script.
    """
    with serve() as page:
        for number in range(10 * tries):
            page.abandon(
                "map",
                ["ctxmix/agreement", "value_zeroing", f"{TEXT} {number}", ""],
                "127.0.0.66",
                f"gone{number}",
            )
        waited = _served(page)
        until = time.monotonic() + 60
        while page.counts()["waiting"] and time.monotonic() < until:
            time.sleep(0.5)
        computed = page.counts()["computed"].get("127.0.0.66", 0)
        yield Outcome(
            "requests abandoned at once",
            10 * tries,
            computed,
            f"not computed; meanwhile another visitor waited {waited:.1f} s",
        )
        big, through = "data:image/png;base64," + "A" * 9_000_000, 0
        for _ in range(tries):
            try:
                page.ask("image_map", [big, "ctxmix/agreement", "alti"], "127.0.0.67")
                through += 1
            except Refused:
                pass
        yield Outcome("bodies of 9 MB", tries, through, "refused (413)")
        bomb, through, server = _bomb(), 0, page.counts()["server"]
        url = "data:image/png;base64," + base64.b64encode(bomb).decode()
        meta, asked = {"_type": "gradio.FileData"}, ["ctxmix/digits", "alti", None, ""]
        ways: list[Callable[[], Any]] = [
            lambda: page.ask("image_map", [url, "ctxmix/digits", "alti"], "127.0.0.68"),
            lambda: page.ask("show_image", [page.upload(bomb), *asked], "127.0.0.68")[0],
            lambda: page.ask("show_image", [{"url": url, "meta": meta}, *asked], "127.0.0.68")[0],
        ]
        most = megabytes(server, "VmHWM")
        for way in ways:
            through += _shown(way)
        through += megabytes(server, "VmHWM") - most > 100
        yield Outcome(
            "a picture of 400 million pixels in 400 kB: to the API, uploaded, in place of an upload",
            len(ways),
            through,
            "refused by its header in a worker; the server's memory does not grow",
        )
        with tempfile.TemporaryDirectory() as folder:
            from PIL import Image

            path = str(Path(folder) / "secret.png")
            Image.new("RGB", (8, 8)).save(path)
            forged: list[Any] = [{"path": path}, {"path": path, "meta": meta}, {"url": path}, path]
            through = sum(
                _shown(lambda given=given: page.ask("show_image", [given, *asked], "127.0.0.68")[0])
                for given in forged
            )
        yield Outcome(
            "paths of the server where an uploaded picture belongs",
            len(forged),
            through,
            "refused: only what was uploaded is opened",
        )
        yield Outcome(
            "the server after all this", 1, int(_served(page) > 60), "an ordinary visitor is served"
        )


def _served(page: Page) -> float:
    began = time.perf_counter()
    made = page.ask("map", ["ctxmix/agreement", "alti", f"{TEXT} {began}", ""], "127.0.0.11")[0]
    assert made["tokens"][0]["text"].startswith("The keys")
    return time.perf_counter() - began


def _shown(ask: Callable[[], Any]) -> bool:
    """Whether a picture was answered with a map."""
    try:
        return "error" not in ask()
    except Refused:
        return False


def _bomb() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, format="PNG")
    return file.getvalue()


# ---- files that a fuzzer found, and forks
# ---------------------------------------------------------------------------------------------------------------
def fuzzed(_: int) -> Iterator[Outcome]:
    """The kept corpus again, here; the long search is `scripts/fuzz.py`, and its result is quoted."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import fuzz

    tries = through = 0
    for name, read in fuzz.READERS.items():
        for path in sorted((fuzz.CORPUS / name).glob("*")):
            tries += 1
            try:
                read(path.read_bytes())
            except cm.CtxmixError:
                pass
            except Exception:
                through += 1
    yield Outcome(
        f"files kept by the fuzzer, {len(fuzz.READERS)} readers",
        tries,
        through,
        "one sentence of ours, or a result",
    )
    found = json.loads(fuzz.RESULT.read_text(encoding="utf-8"))
    yield Outcome(
        f"coverage-guided fuzzing of {len(found['readers'])} readers (`scripts/fuzz.py`, commit {found['commit']})",
        sum(row["executions"] for row in found["readers"].values()),
        sum(row["finds"] for row in found["readers"].values()),
        "one sentence of ours, or a result",
    )


def forks(tries: int) -> Iterator[Outcome]:
    """In a process of its own, which may hang."""
    code = f"from tests.test_hardening import forks_among_threads as f; f({tries})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=100 + 70 * tries,
            check=False,
        )
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    yield Outcome(
        "forks while threads use a model, a map computed in the child",
        tries,
        tries if failed else 0,
        "the same numbers, with one thread, and a warning that says so",
    )


# ---- writing --------------------------------------------------------------------------------------------------
# ---- what the tests attack ------------------------------------------------------------------------------------
TESTED = {  # tests/..., and what happens
    "Ctrl-C in precompute, pipeline, ledger, lens": (
        [
            "instrumentation/test_interrupt.py",
            "-k",
            "precompute or pipeline or ledger or lens or store",
        ],
        "model, thread and next call as before",
    ),
    "power cuts and zeroed pages in a store": (
        ["hub/test_store_power.py", "hub/test_store_crash.py"],
        "checksums find them; resuming computes them again",
    ),
    "servers that are silent, endless, gzip bombs, or say wait for a day": (
        ["hub/test_remote_limits.py"],
        "timeouts and ceilings; one sentence",
    ),
    "bits flipped in texts, tokens and labels of a store": (
        ["hub/test_store_text.py", "hub/test_store_damage.py"],
        "refused on reading",
    ),
    "appending into the Hub's cache": (
        ["hub/test_store_cached.py"],
        "refused; the cache is unchanged",
    ),
    "result files: every place of the JSON changed, bits flipped, bombs": (
        ["formats/test_damaged_files.py"],
        "read or refused in one sentence, before memory is taken",
    ),
    "spreadsheet formulas in texts and names": (["formats/test_spreadsheets.py"], "escaped"),
    "workers and Ray killed": (["precompute/test_kill.py"], "the same bytes after resuming"),
    "YAML and templates in names on cards": (
        ["hub/test_cards.py", "-k", "hostile"],
        "they stay names",
    ),
    "markup in stored texts and ids, in Chromium": (
        ["demo/test_manners.py", "-k", "stored_text"],
        "shown as text",
    ),
    "models and stores of the Hub that are not what was weighed": (
        ["hub/test_page_hub.py"],
        "refused before anything of them is fetched, or pinned to what was weighed",
    ),
    "DataLoader workers": (["test_hardening.py", "-k", "dataloader"], "the same maps"),
}


def tested(tries: int) -> Iterator[Outcome]:
    """Attacks that stand in the tests, each test a try; CI runs them by themselves. Tests that could not be run, or
    of which none was, are an attack that got through.
    """
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    for attack, (words, result) in TESTED.items() if tries > 1 else ():
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            files = [f"tests/{word}" if word.endswith(".py") else word for word in words]
            command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files]
            done = subprocess.run(
                [*command, f"--junitxml={report}"],
                cwd=ROOT,
                env=env,  # they have Hubs of their own
                capture_output=True,
                text=True,
                check=False,
            )
            count = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
            if report.exists():
                suite = next(ElementTree.parse(report).iter("testsuite"))
                count = {key: int(suite.get(key, 0)) for key in count}
        failed, tries = count["failures"] + count["errors"], count["tests"] - count["skipped"]
        if (done.returncode or not tries) and not failed:
            print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
            failed = 1
        yield Outcome(f"{attack} (tests)", tries, failed, result)


KINDS: tuple[Callable[[int], Iterator[Outcome]], ...] = (
    interrupts,
    files,
    fuzzed,
    forks,
    workers,
    door,
    models,
    visitors,
    tested,
)


def table(rows: list[Outcome], at: str) -> str:
    lines = [f"| {row.attack} | {row.tries} | {row.through} | {row.result} |" for row in rows]
    head = f"Commit {at}, torch {torch.__version__}, Python {sys.version.split()[0]}.\n\n"
    return (
        head
        + "| attack | tries | got through | what happens |\n|---|---|---|---|\n"
        + "\n".join(lines)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true")
    names = [kind.__name__ for kind in KINDS]
    parser.add_argument(
        "--only", nargs="*", choices=names, help="their rows move into a table of their own, below"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    many = {interrupts: 30, files: 60, forks: 6, workers: 2, visitors: 6, tested: 2}
    few = {interrupts: 10, files: 20, forks: 1, workers: 1, visitors: 2}
    counts = few if args.short else many
    rows, at = [], commit()
    for kind in KINDS:
        if not args.only or kind.__name__ in args.only:
            for row in kind(counts.get(kind, 1)):
                rows.append(row)
                print(f"{row.attack}: {row.tries} tries, {row.through} through", flush=True)
            gc.collect()
    if not args.short:
        text = PAGE.read_text(encoding="utf-8")
        before, (held, _, after) = text.partition(BEGIN)[0], text.partition(BEGIN)[2].partition(END)
        made = table(rows, at)
        if args.only:  # of another commit: a table of its own, in place of the one before
            again = tuple(f"| {row.attack} | " for row in rows)
            lines = held.partition(SINCE)[0].strip().splitlines()
            first = "\n".join(line for line in lines if not line.startswith(again))
            made = f"{first}\n\n{SINCE} {made[0].lower()}{made[1:]}"
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")
    return int(any(row.through or not row.tries for row in rows))


if __name__ == "__main__":
    sys.exit(main())
