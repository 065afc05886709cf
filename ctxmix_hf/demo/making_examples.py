"""Computes examples.json again from the bundled models: `python -m ctxmix_hf.demo.making_examples`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ctxmix_hf.demo import handlers
from ctxmix_hf.demo.examples import FILE, METHODS, SENTENCES, read


def compute() -> dict[str, Any]:
    """Maps and predictions of all sentences."""
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
