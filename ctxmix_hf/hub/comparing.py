"""Is this store of this model? Never used silently when it is not: every difference has a sentence."""

from __future__ import annotations

import json
from typing import Any

from ctxmix_hf.errors import StoreError, UnknownNameError
from ctxmix_hf.hub.folders import canonical
from ctxmix_hf.hub.keys import model_identity, tokenizer_hash
from ctxmix_hf.hub.manifest import Manifest, MethodEntry, method_entries
from ctxmix_hf.recipes import Specs, resolve
from ctxmix_hf.results.attributions import unit_name
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model


def find_method(manifest: Manifest, wanted: Any) -> tuple[str, MethodEntry]:
    """The store's entry for a method: by name, or by a method with options, which must be the store's."""
    if isinstance(wanted, str):
        if wanted not in manifest.methods:
            raise UnknownNameError.among("method in this store", wanted, manifest.methods)
        return wanted, manifest.methods[wanted]
    (key, asked), *_ = method_entries(resolve(wanted)).items()
    find_method(manifest, key)
    require_options(key, manifest.methods[key], asked.options)
    return key, manifest.methods[key]


def require_options(key: str, entry: MethodEntry, options: Any) -> None:
    """Raise unless these options are the ones the store was computed with. None: nothing is known of them."""
    if options is not None:
        gaps = option_gaps(key, entry.options, json.loads(canonical(options)))
        if gaps:
            raise StoreError(f"This store is not what was asked for: {'; '.join(gaps)}.")


def require_units(manifest: Manifest, made: Any) -> None:
    """Raise unless a map is of the store's kind: of its units (tokens, sentences, ...), its rows or its size."""
    rows = [list(one) if isinstance(one, tuple) else one for one in getattr(made, "targets", ())]
    found = {"targets": rows or None, "top_k": getattr(made, "top_k", None)}
    held = {"targets": manifest.targets and list(manifest.targets), "top_k": manifest.top_k}
    if found["top_k"] is not None and made.size < (held["top_k"] or 0):
        found["top_k"] = held["top_k"]  # shorter texts have no more sources
    for name in ("targets", "top_k"):
        if found[name] != held[name]:
            raise StoreError(
                f"This store keeps {name}={held[name]}, the result of {made.method} has {found[name]}: make a store "
                f"of its own for it (MapStore.create(..., {name}=...))."
            )
    kept = None if manifest.segments is None else unit_name(manifest.segments)
    unit = made.meta.get("unit")
    if unit != kept:
        names = [name or "token" for name in (kept, unit)]
        raise StoreError(
            f"This store keeps one row and column per {names[0]}, the map of {made.method} has one per "
            f"{names[1]}: make a store of its own for it (MapStore.create(..., segments=...))."
        )


def option_gaps(key: str, stored: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    names = sorted(name for name in {**stored, **asked} if stored.get(name) != asked.get(name))
    return [
        f"{key}: {name} is {stored.get(name)!r} in the store, {asked.get(name)!r} was asked for"
        for name in names
    ]


def differences(
    manifest: Manifest,
    model: Model,
    tokenizer: Tokenizer | None = None,
    methods: Specs | None = None,
) -> list[str]:
    """Sentences, one per difference; empty if the store is this model's."""
    found = model_gaps(manifest, model)
    if tokenizer is not None and tokenizer_hash(tokenizer) != manifest.tokenizer:
        found.append(
            "the tokenizer is another one"
            if manifest.tokenizer
            else "the store was made without a tokenizer"
        )
    if methods is not None:
        for key, entry in method_entries(resolve(methods)).items():
            if key not in manifest.methods:
                found.append(f"the store has no maps of {key!r}")
            else:
                found += option_gaps(key, manifest.methods[key].options, entry.options)
    return found


def model_gaps(manifest: Manifest, model: Model) -> list[str]:
    """Differences of the model alone."""
    stored = manifest.model
    config = base_model(model).config
    if config.model_type != stored.get("model_type"):
        return [
            f"the store is of a {stored.get('model_type')} model, this is a {config.model_type}"
        ]
    own = model_identity(model)
    found = []
    if own["dtype"] != stored.get("dtype"):
        found.append(f"the model ran in {stored.get('dtype')}, this one is in {own['dtype']}")
    elif own["weights"] != stored.get("weights"):
        origin = manifest.origin
        name = f"{origin.get('model_id')} at revision {origin.get('revision') or 'unknown'}"
        found.append(
            f"the weights differ: the store is of {name} (weights {str(stored.get('weights'))[:12]}), "
            f"this model has weights {own['weights'][:12]}"
        )
    return found


def require_same(
    manifest: Manifest,
    model: Model,
    tokenizer: Tokenizer | None = None,
    methods: Specs | None = None,
) -> None:
    gaps = differences(manifest, model, tokenizer, methods)
    if gaps:
        raise StoreError(f"This store does not belong to this model: {'; '.join(gaps)}.")
