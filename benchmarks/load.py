"""Ordinary visitors, alone and then together with hostile ones: how much longer do they wait?

    python benchmarks/load.py                 # writes benchmarks/results/load.json
    python benchmarks/load.py --requests 5    # as CI does, without writing

Six ordinary visitors ask for maps of new sentences, one after the other. Then the same, while
hostile ones at other addresses abandon requests, leave in the middle, ask for what is nearly too
expensive, for what is, for models and pictures that are larger than they look and for stored maps
without end, and send what is too large. Exit code 1 if an ordinary request failed or waited longer
than a minute, or if an abandoned one was computed. The ratio is recorded, not asserted.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.serving import Page, Refused, commit, serve  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "load.json"
MODEL, LIBRARY = "ctxmix/agreement", "ctxmix/library"
STARVED, ATTACK = 60.0, 240.0
LONG = "The boys that the old teacher of the girls likes " * 4


def ordinary(page: Page, who: int, requests: int, times: list[float], failed: list[str]) -> None:
    for turn in range(requests):
        text = f"The boys number {who} of {turn} [MASK] tired."
        began = time.perf_counter()
        try:
            made = page.ask(
                "map",
                [MODEL, ("alti", "attention", "norm_res")[turn % 3], text, ""],
                visitor=f"127.0.0.{11 + who}",
            )[0]
            if made["tokens"][0]["text"] != text:
                failed.append(f"another visitor's answer for {text!r}")
        except (Refused, OSError) as error:
            failed.append(f"{text}: {error}")
        times.append(time.perf_counter() - began)
        time.sleep(0.2)  # a person looks at the map


def crowd(page: Page, requests: int) -> tuple[list[float], list[str]]:
    times: list[float] = []
    failed: list[str] = []
    threads = [
        threading.Thread(target=ordinary, args=(page, who, requests, times, failed))
        for who in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times), failed


def hostile(page: Page, folder: Path) -> dict[str, Callable[[int], Any]]:
    """Each at an address of its own. Every loop over them is bounded in count and in time."""
    about = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8}
    about |= {"num_attention_heads": 1, "intermediate_size": 8}
    sizes = {
        "deep": {"num_hidden_layers": 3_000_000, "vocab_size": 99},
        "wide": {"num_hidden_layers": 1, "vocab_size": 100_000_000},
    }
    for name, size in sizes.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**about, **size}))
    bomb = io.BytesIO()
    Image.new("L", (6000, 6000)).save(bomb, format="PNG")
    keys = [row["id"] for row in page.ask("browse", [LIBRARY, "all", ""])[0]]
    big = "data:image/png;base64," + "A" * 9_000_000

    def refused(name: str, data: list[Any], visitor: str) -> None:
        try:
            page.ask(name, data, visitor)
        except Refused:
            return

    return {
        "abandons at once": lambda n: page.abandon(
            "map", [MODEL, "value_zeroing", f"{LONG} {n}", ""], "127.0.0.61", f"a{n}"
        ),
        "leaves in the middle": lambda n: page.abandon(
            "agreement", [MODEL, f"{LONG} {n}", 0, ""], "127.0.0.62", f"l{n}", listen=0.3
        ),
        "asks for the most expensive": lambda n: refused(
            "map", [MODEL, "value_zeroing+flow", f"{LONG} {n}", ""], "127.0.0.63"
        ),
        "asks for too much": lambda n: refused(
            "map", [str(folder / ("deep", "wide")[n % 2]), "alti", "x", ""], "127.0.0.63"
        ),
        "sends too much": lambda n: refused("image_map", [big, MODEL, "alti"], "127.0.0.64"),
        "uploads a picture of 36 million pixels": lambda n: refused(
            "show_image",
            [page.upload(bomb.getvalue(), "127.0.0.65"), "ctxmix/digits", "alti", None, ""],
            "127.0.0.65",
        ),
        "asks for every stored map": lambda n: refused(
            "stored_map", [LIBRARY, keys[n % len(keys)], "alti"], "127.0.0.66"
        ),
    }


def percentile(times: list[float], share: float) -> float:
    return round(times[min(len(times) - 1, int(share * len(times)))], 3)


def load(requests: int) -> dict[str, Any]:
    at = commit()
    with serve() as page, tempfile.TemporaryDirectory() as folder:
        crowd(page, 2)  # everything is loaded
        quiet, first = crowd(page, requests)
        stop, done = threading.Event(), Counter[str]()

        def attack(name: str, act: Callable[[int], Any]) -> None:
            until = time.monotonic() + ATTACK
            for number in range(400):
                if stop.is_set() or time.monotonic() > until:
                    return
                try:
                    act(number)
                except OSError:
                    time.sleep(0.1)
                done[name] += 1

        threads = [
            threading.Thread(target=attack, args=item)
            for item in hostile(page, Path(folder)).items()
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        time.sleep(1)
        busy, second = crowd(page, requests)
        stop.set()
        for thread in threads:
            thread.join(150)
        until = time.monotonic() + 90
        while (counts := page.counts())["waiting"] + counts["running"] and time.monotonic() < until:
            time.sleep(0.5)
    return {
        "commit": at,
        "ordinary_requests": 2 * len(busy),
        "failed": first + second,
        "slowest": round(busy[-1], 2),
        "quiet": {"p50": percentile(quiet, 0.5), "p95": percentile(quiet, 0.95)},
        "under_attack": {"p50": percentile(busy, 0.5), "p95": percentile(busy, 0.95)},
        "ratio_of_p95": round(percentile(busy, 0.95) / percentile(quiet, 0.95), 2),
        "goal": 3,
        "hostile_acts": dict(done),
        "abandoned_and_computed": counts["computed"].get("127.0.0.61", 0),
        "left_in_the_middle": {
            "begun": counts["computed"].get("127.0.0.62", 0),
            "stopped": counts["stopped"].get("127.0.0.62", 0),
        },
        "dropped": counts["dropped"],
        "left": counts["waiting"] + counts["running"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--requests", type=int, default=30, help="of each ordinary visitor, in each half"
    )
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    made = load(args.requests)
    target = args.out or (RESULT if args.requests >= 30 else None)
    if target is not None:
        target.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(made))
    return int(
        bool(made["failed"])
        or made["slowest"] > STARVED
        or made["abandoned_and_computed"] > 0
        or made["left"] > 0
    )


if __name__ == "__main__":
    sys.exit(main())
