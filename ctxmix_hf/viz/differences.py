"""Drawings of a `MapDifference`: the widget's data, the page, the terminal's list of largest changes."""

from __future__ import annotations

from typing import Any

from ctxmix_hf.results.differences import MapDifference
from ctxmix_hf.text.targets import first_shown
from ctxmix_hf.viz.canvas import fragment, page
from ctxmix_hf.viz.payload import VERSION, block, check_state, token_fields


def difference_payload(d: MapDifference, **state: Any) -> dict[str, Any]:
    """What the browser widget draws; `state` are its options."""
    maps = {"input": {**block(d.input), "label": "from the input"}}
    if d.layers is not None:
        maps["layer"] = block(d.layers)
    return {
        "version": VERSION,
        "method": "difference",
        "aggregation": d.second.aggregation,
        "depth": d.depth,
        "layers": list(d.layer_numbers),
        "maps": maps,
        "signed": True,
        "title": d.title,
        "pin": str(first_shown(d.tokens, bool(d.second.meta.get("causal")))),
        "notes": [f"Left out of the difference: {', '.join(side)}." for side in d.left_out if side],
        "legend": "second − first",
        "state": check_state(state, d.layer_numbers, list(maps)),
        **token_fields(d.tokens),
    }


def difference_fragment(d: MapDifference, **state: Any) -> str:
    return fragment(difference_payload(d, **state))


def difference_page(d: MapDifference, **state: Any) -> str:
    data = difference_payload(d, **state)
    seen = data["state"]
    where = d.where(seen.get("layer", -1), seen.get("scope", "input"))
    return page(data, f"{data['title']}, {where}")


def difference_text(d: MapDifference) -> str:
    """The largest changes from the input to the last layer."""
    values = d.input[-1]
    order = values.abs().flatten().argsort(descending=True)[:8].tolist()
    names, n = d.tokens.shown(), len(d.tokens)
    rows = [f"  {values[k // n, k % n]:+.4f}  {names[k % n]} → {names[k // n]}" for k in order]
    return "\n".join([f"{d.title} · largest changes, {d.where()}", *rows])
