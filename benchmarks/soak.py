"""Does the page's memory stay where it is? 2,000 calls, and the resident memory of the server and
of its workers along the way.

    python benchmarks/soak.py                 # writes benchmarks/results/soak.json
    python benchmarks/soak.py --calls 200     # as CI does, without writing

Exit code 1 if the tail is not flat: the last half of the calls may add at most 0.02 MB a call to
the server and to each worker.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.serving import Page, commit, megabytes, serve  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "soak.json"
FLAT = 0.02  # megabytes a call
MODEL = "ctxmix/agreement"
PICTURES = ("digit 0", "digit 1", "digit 2")


def call(page: Page, number: int) -> None:
    """A new sentence each time, through the endpoints in turn; twenty calls per session, as a person makes."""
    text = f"The {'very ' * (number % 7)}old boys number {number} [MASK] tired."
    kinds: list[tuple[str, list[Any]]] = [
        ("map", [MODEL, ("alti", "value_zeroing", "attention_rollout")[number % 3], text, ""]),
        ("predictions", [MODEL, text, ""]),
        ("html", [MODEL, "alti", text, ""]),
        ("scores", [MODEL, text, "blank_out", ""]),
        ("csv", [MODEL, "norm_res", text, ""]),
        ("ledger", [MODEL, text, "", "are", "is"]),
        ("similarity", [MODEL, text, "A dog sleeps here.", ""]),
        ("rank", [MODEL, text, ["A dog sleeps here.", "The boys are tired."]]),
        ("image_map", [PICTURES[number % len(PICTURES)], "ctxmix/digits", "alti"]),
    ]
    name, data = kinds[number % len(kinds)]
    page.ask(name, data, visitor=f"127.0.0.{10 + number % 2}", session=f"session{number // 20}")


def slope(points: list[tuple[int, float]]) -> float:
    """Megabytes a call, by least squares over the last half."""
    tail = points[len(points) // 2 :]
    x, y = (sum(values) / len(tail) for values in zip(*tail, strict=True))
    return sum((a - x) * (b - y) for a, b in tail) / max(1e-9, sum((a - x) ** 2 for a, _ in tail))


def soak(calls: int) -> dict[str, Any]:
    seen: dict[str, list[tuple[int, float]]] = {"server": [], "workers": []}
    at = commit()
    with serve() as page:
        began = time.perf_counter()
        for number in range(calls):
            call(page, number)
            if number % max(1, calls // 40) == 0:
                counts = page.counts()
                seen["server"].append((number, round(megabytes(counts["server"]), 1)))
                seen["workers"].append(
                    (
                        number,
                        round(sum(map(megabytes, counts["workers"])) / len(counts["workers"]), 1),
                    )
                )
        seconds = time.perf_counter() - began
    return {
        "commit": at,
        "calls": calls,
        "seconds": round(seconds, 1),
        "flat_below": FLAT,
        "megabytes_per_call_in_the_last_half": {
            who: round(slope(points), 4) for who, points in seen.items()
        },
        "megabytes": seen,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    made = soak(args.calls)
    target = args.out or (RESULT if args.calls >= 2000 else None)
    if target is not None:
        target.write_text(json.dumps(made) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in made.items() if key != "megabytes"}))
    # the first hundreds of calls warm allocators up: a short run only shows that it is no large leak
    most = FLAT if args.calls >= 1000 else 0.2
    return int(max(made["megabytes_per_call_in_the_last_half"].values()) > most)


if __name__ == "__main__":
    sys.exit(main())
