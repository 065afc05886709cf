"""From texts or tensors to what a store keeps: one model call per batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.errors import InputError, StoreError
from ctxmix_hf.hub.keys import batch_keys
from ctxmix_hf.hub.manifest import Manifest
from ctxmix_hf.hub.shards import to_array
from ctxmix_hf.hub.writing import NewExample
from ctxmix_hf.pooling import read_pooling
from ctxmix_hf.recipes import Recipe, TargetRows, Wanted
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.sparse import SparseMap, Tops
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.tokens import Tokens
from ctxmix_hf.unwrapping import base_model

Kept = ContextMixingMap | TargetRows | SparseMap  # what a store can hold of a method


def batches(count: int, given: Any, size: int) -> list[tuple[slice, Any]]:
    """`given` in pieces of at most `size` examples: a list is sliced, tensors are sliced along the batch."""
    cuts = [slice(i, min(i + size, count)) for i in range(0, count, size)]
    if isinstance(given, Mapping):
        tensors = {key: value for key, value in given.items() if isinstance(value, Tensor)}
        if any(len(value) != count for value in tensors.values()) or not tensors:
            raise InputError(f"{count} ids need tensors with {count} rows.")
        rest = {key: value for key, value in given.items() if key not in tensors}
        return [
            (cut, {**rest, **{key: value[cut] for key, value in tensors.items()}}) for cut in cuts
        ]
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != count:
        raise InputError(
            f"{count} ids need a list of {count} texts (or pairs), or tensors with {count} rows."
        )
    return [(cut, list(given[cut])) for cut in cuts]


def compute(
    model: Model,
    tokenizer: Tokenizer | None,
    methods: dict[str, Recipe],
    given: Any,
    options: dict[str, Any],
    wanted: Wanted | None = None,
    attributions: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str | None]]:
    """(maps of the batch, what the examples file says of each example, cache keys)."""
    from ctxmix_hf.calling import call, read_batch  # a store opens without transformers

    if tokenizer is None and not isinstance(given, Mapping):
        raise InputError(
            "Texts need a tokenizer: pass tokenizer=... to MapStore.create, and the same one to MapStore.open."
        )
    batch = read_batch(model, given, tokenizer)
    if wanted is not None:
        from ctxmix_hf.explaining import pooled

        pooling = read_pooling(base_model(model).config._name_or_path)
        named = lambda made, out: pooled(made, pooling, getattr(out, "last_hidden_state", None))
        options = {**options, "targets": replace(wanted, named=named)}
    out = call(model, batch, output_context_mixing=list(methods.values()), **options)
    maps = dict(zip(methods, out.context_mixing.values(), strict=True))
    first = next(iter(maps.values()))
    inputs = {  # without the start token that a decoder was given
        key: value
        for key, value in batch.tensors.items()
        if key != "decoder_input_ids" or (isinstance(given, Mapping) and key in given)
    }
    predictions = _predictions(getattr(out, "logits", None), len(first))
    about = [
        _about(first.tokens[b], first.mask[b], batch.texts and batch.texts[b], predictions[b])
        for b in range(len(first))
    ]
    if attributions:
        scores = _attributed(model, tokenizer, attributions, inputs, first.mask)
        about = [{**line, "attributions": one} for line, one in zip(about, scores, strict=True)]
    if wanted is not None and wanted.targets:
        about = [{**line, "depth": first.outline.depth} for line in about]
    none: list[str | None] = [None] * len(first)  # a cache holds whole maps of tokens
    keys = batch_keys(inputs, first.mask) if wanted is None else none
    return maps, about, keys


def _attributed(
    model: Model,
    tokenizer: Tokenizer | None,
    wanted: Mapping[str, Any],
    inputs: Mapping[str, Any],
    mask: Tensor,
) -> list[dict[str, Any]]:
    """Each example's scores by name, computed by itself and without padding: what `attribute` gives for it alone."""
    from ctxmix_hf.explaining import attribute  # a store opens without transformers

    def alone(value: Any, b: int) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != len(mask):
            return value
        per_token = value.dim() == 2 and value.shape[1] == mask.shape[1]
        return value[b : b + 1][:, mask[b].to(value.device)] if per_token else value[b : b + 1]

    found = []
    for b in range(len(mask)):
        one = {name: alone(value, b) for name, value in inputs.items()}
        made = {name: attribute(model, one, m, tokenizer=tokenizer) for name, m in wanted.items()}
        found.append(
            {
                name: {
                    "scores": got.scores[0].float().tolist(),
                    "target": got.target,
                    "class_index": got.meta["class_index"][0],
                    "of": got.meta["of"],
                }
                for name, got in made.items()
            }
        )
    return found


def _predictions(logits: Any, count: int) -> list[int | None]:
    """The predicted class of each example, for classifiers of whole examples; one output alone predicts no class."""
    if (
        not isinstance(logits, Tensor)
        or logits.dim() != 2
        or len(logits) != count
        or logits.shape[-1] == 1
    ):
        return [None] * count
    return [int(i) for i in logits.argmax(dim=-1).tolist()]


def _about(
    tokens: Tokens, mask: Tensor, text: str | tuple[str, str] | None, prediction: int | None
) -> dict[str, Any]:
    """An example's line, without id and label; `text` is what was given, where it was text."""
    seen = tokens if bool(mask.all()) else tokens.take(np.flatnonzero(mask.cpu().numpy()).tolist())
    first, second = (text, None) if isinstance(text, str) else text or (seen.text, None)
    return {
        "text": first,
        "text_pair": second,
        "tokens": list(seen.pieces),
        "input_ids": None if seen.ids is None else list(seen.ids),
        "words": None if seen.words is None else list(seen.words),
        "special": None if seen.special is None else list(seen.special),
        "spans": None
        if seen.spans is None
        else [None if s is None else list(s) for s in seen.spans],
        "prediction": prediction,
        **({} if seen.parts is None else {"parts": [list(part) for part in seen.parts]}),
    }


def about_map(made: Kept, example: int) -> dict[str, Any]:
    """An example's line from a map that was computed elsewhere."""
    line = _about(made.tokens[example], made.mask[example], None, None)
    return {**line, "depth": made.outline.depth} if isinstance(made, TargetRows) else line


def new_examples(
    manifest: Manifest,
    ids: Sequence[str],
    split: str,
    maps: Mapping[str, Kept],
    about: Sequence[dict[str, Any]],
    keys: Sequence[str | None],
    labels: Sequence[Any] | None,
) -> list[NewExample]:
    """A batch of maps as examples to write, without their padding."""
    first = next(iter(maps.values()))
    if len(first) != len(ids):
        raise InputError(f"{len(ids)} ids for maps of {len(first)} examples.")
    series, causal, made = (
        [values.detach().cpu().numpy() for values in _values(manifest, maps)],
        bool(first.meta.get("causal")),
        [],
    )
    for b, (name, real) in enumerate(
        zip(ids, map(np.flatnonzero, first.mask.cpu().numpy()), strict=True)
    ):
        line = {"id": name, **about[b], "label": None if labels is None else labels[b]}
        arrays = [
            to_array(_cut(values[b], real, manifest), manifest.dtype, name) for values in series
        ]
        made.append(NewExample(name, split, len(real), keys[b], causal, line, arrays))
    return made


def _values(manifest: Manifest, maps: Mapping[str, Kept]) -> list[Tensor]:
    """`[B, L, T, T]` of every series of shards (rows: `[B, N, T]`; sparse maps: `[B, L, T, 2 K + 1]`)."""
    found = []
    for key, entry in manifest.methods.items():
        for kind in entry.parts:
            made = maps[key]
            if isinstance(made, TargetRows):
                found.append(made.scores)
            elif isinstance(made, SparseMap):
                assert manifest.top_k is not None
                found.append(_packed(made, kind, manifest.top_k))
            else:
                found.append(kept(made, kind))
    return found


def _packed(made: SparseMap, kind: str, k: int) -> Tensor:
    """`[B, L, T, 2 K + 1]`: the values, the rest, and the sources as columns of the example without its padding."""
    tops = made.input if kind == "input" else made.layers
    if tops is None:
        raise StoreError(f"The maps of {made.method!r} have no {kind}.")
    before = made.mask.long().cumsum(dim=1) - 1
    columns = before.clamp(min=0)[:, None, None].expand(-1, *tops.sources.shape[1:3], -1)
    sources = columns.gather(-1, tops.sources).to(tops.values.dtype)
    wide = lambda values: torch.nn.functional.pad(values, (0, k - values.shape[-1]))
    return torch.cat([wide(tops.values), tops.rest[..., None], wide(sources)], dim=-1)


def unpacked(values: Tensor, k: int) -> Tops:
    """What `_packed` made of one example, `[1, L, T, 2 K + 1]`."""
    held = min(k, values.shape[2])
    sources = values[..., k + 1 : k + 1 + held].long()
    if bool((sources < 0).any()) or bool((sources >= values.shape[2]).any()):
        raise StoreError("The store is damaged: a sparse map names a token that is not there.")
    return Tops(sources, values[..., :held], values[..., k])


def kept(made: ContextMixingMap, kind: str) -> Tensor:
    """`[B, L, T, T]` as a series keeps it; of heads `[B, L * H, T, T]`, head after head of each layer."""
    if kind == "input":
        return made.input
    values = made.layers if kind == "layers" else made.heads
    if values is None:
        raise StoreError(f"The maps of {made.method!r} have no {kind}.")
    return values if kind == "layers" else values.flatten(1, 2)


def heads_of(values: Mapping[str, Tensor]) -> Tensor | None:
    """`[B, L, H, T, T]` from what a store read of a map, or None where it keeps no heads."""
    if "heads" not in values:
        return None
    depth, count = values["layers"].shape[1], values["heads"].shape[1]
    if count % depth:
        raise StoreError(f"The store is damaged: {count} maps of heads for {depth} layers.")
    return values["heads"].unflatten(1, (depth, count // depth))


def _cut(values: Any, real: Any, manifest: Manifest) -> Any:
    """`[L, T, T]` without padding; a view where the real tokens stand together. Rows have no targets' axis, and of
    sparse maps only that is one of tokens.
    """
    if not len(real):
        raise InputError("An example has no tokens: its attention mask is all zero.")
    if manifest.targets is not None or manifest.top_k is not None:
        return values[:, real]
    first, last = int(real[0]), int(real[-1]) + 1
    return (
        values[:, first:last, first:last]
        if last - first == len(real)
        else values[:, real[:, None], real]
    )
