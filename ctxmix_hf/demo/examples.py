"""Sentences that show something, with their maps: the page is useful before, and without, any model.

`python -m ctxmix_hf.demo.examples` computes examples.json again from the models in the box.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import ctxmix_hf as cm

FILE = "examples.json"
METHODS = ("alti", "value_zeroing", "attention_rollout")
SENTENCES = (  # title, model, text, second sentence
    ("Agreement with an attractor", "ctxmix/agreement", "The keys to the cabinet [MASK] on the table.", ""),
    ("Agreement across a clause", "ctxmix/agreement", "The guests that like the waiter [MASK] here.", ""),
    ("Anaphora", "ctxmix/agreement", "Many girls insulted [MASK].", ""),
    ("Sentiment with negation", "ctxmix/sentiment", "The film is not good.", ""),
    ("A pair of sentences", "ctxmix/agreement", "The girl is old.", "The boys [MASK] tired."),
)


@cache
def read() -> dict[str, Any]:
    path = resources.files("ctxmix_hf") / "demo" / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"maps": [], "predictions": []}  # type: ignore[no-any-return]


def find(model: str, method: str, text: str, pair: str = "") -> Any:
    """The stored map of exactly this request, or None."""
    for entry in read()["maps"]:
        if (entry["model"], entry["method"], entry["text"], entry["pair"]) == (model, method, text, pair):
            return cm.ContextMixingMap.from_json(json.dumps(entry["map"]))
    return None


def find_prediction(model: str, text: str, pair: str = "") -> dict[str, Any] | None:
    found = [entry for entry in read()["predictions"] if (entry["model"], entry["text"], entry["pair"]) == (model, text, pair)]
    return found[0]["prediction"] if found else None


def compute() -> dict[str, Any]:
    """Maps and predictions of all sentences."""
    from ctxmix_hf.demo import handlers

    read.cache_clear()
    maps, predictions = [], []
    for _, model, text, pair in SENTENCES:
        asked = {"model": model, "text": text, "pair": pair}
        predictions.append({**asked, "prediction": handlers.predictions(model, text, pair)})
        for method in METHODS:
            made = handlers.map_of(model, method, text, pair)
            made.meta["origin"]["model"] = model
            maps.append({**asked, "method": method, "map": made.to_dict(with_input=False)})
    return {"version": 2, "maps": maps, "predictions": predictions}


def main() -> None:
    target = Path(__file__).with_name(FILE)
    target.unlink(missing_ok=True)
    data = compute()
    target.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    print(f"{len(data['maps'])} maps, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
