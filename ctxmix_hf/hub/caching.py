"""`model(..., output_context_mixing=..., cache=store)`: hits come from the store, only the misses are computed."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.errors import OptionError, StoreError
from ctxmix_hf.hub.comparing import model_gaps, require_options
from ctxmix_hf.hub.computing import heads_of, kept
from ctxmix_hf.hub.keys import batch_keys, quick_mark
from ctxmix_hf.hub.manifest import MethodEntry
from ctxmix_hf.recipes import Recipe, Specs, compute_maps, resolve
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.results.maps import ContextMixingMap


def cached_maps(
    store: Any, record: ModelRecord, methods: Specs, options: dict[str, Any]
) -> dict[str, ContextMixingMap]:
    """What the call asked for. A method the store does not keep is computed; other options or
    another model are refused.
    """
    if options.get("create_graph"):
        raise OptionError(
            "cache= and create_graph=True do not go together: stored maps have no graph."
        )
    if (wanted := store.manifest.wanted()) is not None:
        what = (
            f"maps of {wanted.segments}"
            if wanted.segments is not None
            else "rows"
            if wanted.targets
            else "sparse maps"
        )
        raise StoreError(
            f"This store holds {what}, a cache needs maps of tokens: read it by id, store['id', 'alti']."
        )
    recipes, memory = resolve(methods), options.get("max_memory")
    kept = {key: recipe for key, recipe in recipes.items() if key in store.manifest.methods}
    for key, recipe in kept.items():
        require_options(key, store.manifest.methods[key], recipe.method.options())
    trust(store, record.replay.module)
    hits = [
        store.index.by_key.get(key) if key else None
        for key in batch_keys(_inputs(record), record.mask)
    ]
    misses = [b for b, name in enumerate(hits) if name is None]
    kept = kept if len(misses) < len(hits) else {}
    rest = {key: recipe for key, recipe in recipes.items() if key not in kept}
    made = _computed(record, rest, memory) if rest else {}
    fresh = _rerun(record, kept, misses, memory) if misses and kept else {}
    for key in kept:
        made[key] = _joined(store, store.manifest.methods[key], key, record, hits, fresh.get(key))
    return {key: made[key] for key in recipes}


def trust(store: Any, module: Any) -> None:
    """Compare model and store once, and again whenever the weights were touched."""
    mark = quick_mark(module)
    known = store._known.get(id(module))
    if known is not None and known[0]() is module and known[1] == mark:
        return
    gaps = model_gaps(store.manifest, module)
    if gaps:
        raise StoreError(f"This cache does not belong to this model: {'; '.join(gaps)}.")
    store._known[id(module)] = (weakref.ref(module), mark)


def _inputs(record: ModelRecord) -> dict[str, Any]:
    """The recorded call's arguments by name."""
    replay = record.replay
    names = list(inspect.signature(replay.module.forward).parameters)
    return {**dict(zip(names, replay.args, strict=False)), **replay.kwargs}


def _computed(
    record: ModelRecord, recipes: dict[str, Recipe], memory: Any
) -> dict[str, ContextMixingMap]:
    return dict(
        zip(recipes, compute_maps(record, list(recipes.values()), memory).values(), strict=True)
    )


def _rerun(
    record: ModelRecord, recipes: dict[str, Recipe], rows: list[int], memory: Any
) -> dict[str, ContextMixingMap]:
    """The maps of some examples of the batch: the same call again with those rows only."""
    replay, count = record.replay, len(record.mask)

    def pick(value: Any) -> Any:
        whole = isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
        return value[torch.tensor(rows, device=value.device)] if whole else value

    kwargs = {**{key: pick(value) for key, value in replay.kwargs.items()}, "return_dict": True}
    out = replay.module(
        *map(pick, replay.args),
        **kwargs,
        output_context_mixing=list(recipes.values()),
        max_memory=memory,
    )
    return dict(zip(recipes, out.context_mixing.values(), strict=True))


def _joined(
    store: Any,
    entry: MethodEntry,
    key: str,
    record: ModelRecord,
    hits: list[str | None],
    fresh: ContextMixingMap | None,
) -> ContextMixingMap:
    """One map of the batch from stored and fresh examples, padded as the batch is."""
    dtype = torch.float64 if record.layers[0].attention.dtype == torch.float64 else torch.float32
    places = {b: i for i, b in enumerate(b for b, name in enumerate(hits) if name is None)}
    stored = {
        b: store.values(store.index.rows[name], entry)
        for b, name in enumerate(hits)
        if name is not None
    }
    joined = {}
    for kind in entry.parts:
        depth = next(iter(stored.values()))[kind].shape[1]
        size = record.mask.shape[1]
        values = torch.zeros(len(hits), depth, size, size, dtype=dtype, device=record.mask.device)
        for b in range(len(hits)):
            real = record.mask[b].nonzero().squeeze(-1)
            if b in stored:
                values[b][:, real[:, None], real] = stored[b][kind][0].to(values)
            elif fresh is not None:
                values[b] = kept(fresh, kind)[places[b]].to(values)
        joined[kind] = values
    meta = {
        "options": dict(entry.options),
        "rolls_out_shares": entry.shares,
        "origin": record.origin,
        "causal": record.causal,
        "notes": {"from_store": hits},
    }
    return ContextMixingMap(
        key,
        joined.get("layers"),
        record.mask,
        list(record.tokens),
        entry.aggregation,
        meta=meta,
        given_input=joined.get("input"),
        heads=heads_of(joined),
    )
