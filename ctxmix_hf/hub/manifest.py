"""The manifest of a store: everything that changes the numbers, where the model came from, and what
each shard must be.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxmix_hf.attribution import ATTRIBUTIONS, AbstractAttribution
from ctxmix_hf.errors import CtxmixError, OptionError, StoreError
from ctxmix_hf.hub.folders import (
    INDEX,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    canonical,
    check_split,
    digest,
    examples_file,
    folder_name,
    is_folder,
    write_atomic,
)
from ctxmix_hf.recipes import Recipe, Wanted, checked_top_k, method, plain_name
from ctxmix_hf.text.segments import UNITS

SCHEMA = 1
DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2)}
_PARTS = {"layers", "input", "heads"}


@dataclass(frozen=True)
class Shard:
    """A finished shard: its size and sha256, and where its data begins behind the safetensors header."""

    size: int
    sha256: str
    data: int


@dataclass(frozen=True)
class Part:
    """One series of shards: the layer maps of a method, its input maps, or the maps of its heads."""

    folder: str
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True)
class MethodEntry:
    """A method as it was asked for: its name with all its options, and how its layers become input maps."""

    options: dict[str, Any]
    aggregation: str
    shares: bool  # rows are divided by their sum before they are multiplied
    parts: dict[
        str, Part
    ]  # "layers" and/or "input"; beside layers, "heads" (head after head of each layer)

    def identity(self) -> dict[str, Any]:
        return {"options": self.options, "aggregation": self.aggregation, "shares": self.shares}


@dataclass(frozen=True)
class Manifest:
    """`identity` decides whether two stores hold the same numbers; `origin` tells people where they came from."""

    model: dict[str, Any]  # weights (sha256), dtype, model_type
    tokenizer: str | None  # sha256
    dtype: str  # of the stored matrices
    methods: dict[str, MethodEntry]
    origin: dict[str, Any] = field(default_factory=dict)
    shard_size: int = 256 << 20
    complete: bool = False
    files: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # index and examples: size, sha256, rows
    segments: str | None = (
        None  # the units of the maps where they are not tokens: "sentences", "paragraphs"
    )
    # scores per token of the model's own answer, in the examples' lines: a name to all its options
    attributions: dict[str, dict[str, Any]] = field(default_factory=dict)
    targets: tuple[Any, ...] | None = None  # whose rows are kept instead of maps, one each
    top_k: int | None = None  # of every row only this many sources are kept, and the rest's sum

    @cached_property
    def itemsize(self) -> int:
        return DTYPES[self.dtype][1]

    @cached_property
    def parts(self) -> list[Part]:
        """Every series of shards, in the order of a row's places in the index."""
        return [part for entry in self.methods.values() for part in entry.parts.values()]

    @property
    def splits(self) -> list[str]:
        return [
            name.removeprefix("examples/").removesuffix(".jsonl")
            for name in self.files
            if name.startswith("examples/")
        ]

    def slice_shape(self, size: int) -> tuple[int, ...]:
        """Of one layer's map of an example, or of one target's row; of a sparse map values, rest and sources."""
        if self.targets is not None:
            return (size,)
        return (size, size if self.top_k is None else 2 * self.top_k + 1)

    def wanted(self) -> Wanted | None:
        """What a call is asked for instead of whole maps of tokens."""
        if self.segments is None and self.targets is None and self.top_k is None:
            return None
        return Wanted(self.targets or (), self.targets is None, self.segments, self.top_k)

    def recipes(self) -> dict[str, Recipe]:
        """The store's methods with their options, as a call takes them."""
        return {
            key: replace(method(plain_name(key), **entry.options), name=key)
            for key, entry in self.methods.items()
        }

    def scorers(self) -> dict[str, AbstractAttribution]:
        """The store's attributions with their options, as `attribute` takes them."""
        return {name: ATTRIBUTIONS.get(name)(**opts) for name, opts in self.attributions.items()}

    def identity(self) -> dict[str, Any]:
        methods = {key: entry.identity() for key, entry in self.methods.items()}
        return {
            "schema": SCHEMA,
            "model": self.model,
            "tokenizer": self.tokenizer,
            "dtype": self.dtype,
            "methods": methods,
            **self._units(),
        }

    def _units(self) -> dict[str, Any]:
        """What only some stores have; the others are written, and recognised, as before it existed."""
        units = {} if self.segments is None else {"segments": self.segments}
        rows = {} if self.targets is None else {"targets": list(self.targets)}
        largest = {} if self.top_k is None else {"top_k": self.top_k}
        scores = {"attributions": self.attributions} if self.attributions else {}
        return {**units, **rows, **largest, **scores}

    @property
    def fingerprint(self) -> str:
        return digest(self.identity())

    def with_shards(self, folder: str, shards: tuple[Shard, ...]) -> Manifest:
        """The same manifest with another list of shards for one series."""
        methods = {
            key: replace(
                entry,
                parts={
                    k: replace(p, shards=shards) if p.folder == folder else p
                    for k, p in entry.parts.items()
                },
            )
            for key, entry in self.methods.items()
        }
        return replace(self, methods=methods)

    def to_json(self) -> str:
        methods = {
            key: {
                **entry.identity(),
                "parts": {kind: _part_json(part) for kind, part in entry.parts.items()},
            }
            for key, entry in self.methods.items()
        }
        order = list(self.methods)
        body = {
            "kind": "ctxmix-maps",
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "model": self.model,
            "tokenizer": self.tokenizer,
            "dtype": self.dtype,
            "methods": methods,
            "order": order,
            "origin": self.origin,
            "shard_size": self.shard_size,
            "complete": self.complete,
            "files": self.files,
            **self._units(),
        }
        return json.dumps(json.loads(canonical(body)), indent=1, ensure_ascii=False) + "\n"

    def save(self, root: Path) -> None:
        write_atomic(root / MANIFEST, self.to_json())


def _part_json(part: Part) -> dict[str, Any]:
    return {"folder": part.folder, "shards": [vars(shard) for shard in part.shards]}


def method_entries(
    recipes: dict[str, Recipe], wanted: Wanted | None = None
) -> dict[str, MethodEntry]:
    """Entries for what `resolve` made of the methods a store was asked for. Flow keeps its input
    maps: they are the costly part; and so do segments and sparse maps, whose input maps are not those of
    their layers. Of rows there is nothing else.
    """
    made = {}
    for key, recipe in recipes.items():
        options = json.loads(canonical(recipe.method.options()))
        per_head = bool(options.get("per_head"))
        if per_head and wanted is not None:
            raise StoreError(
                f"{key}: segments, rows and sparse maps have no maps per head; leave per_head out."
            )
        kinds = (
            ["input"]
            if recipe.method.kind == "input" or (wanted is not None and wanted.targets)
            else ["layers", "input"]
            if recipe.aggregation == "flow" or wanted is not None
            else ["layers"]
        )
        kinds += ["heads"] if per_head and "layers" in kinds else []
        name = folder_name(key)
        parts = {kind: Part(name if kind == kinds[0] else f"{name}-{kind}") for kind in kinds}
        made[key] = MethodEntry(
            options,
            "rollout" if recipe.aggregation == "none" else recipe.aggregation,
            recipe.method.rolls_out_shares,
            parts,
        )
    return made


def attribution_options(wanted: Any, segments: str | None = None) -> dict[str, dict[str, Any]]:
    """Names to all options of the attributions a store was asked to keep: names, or objects."""
    made: dict[str, dict[str, Any]] = {}
    for one in [wanted] if isinstance(wanted, str | AbstractAttribution) else wanted:
        scorer = one if isinstance(one, AbstractAttribution) else ATTRIBUTIONS.get(one)()
        name = next((n for n in ATTRIBUTIONS if ATTRIBUTIONS.get(n) is type(scorer)), None)
        if name is None:
            raise StoreError(
                f"{type(scorer).__name__} cannot be kept: a store knows attributions by their registered names."
            )
        if name in made:
            raise StoreError(f"{name} is asked for twice: a store keeps one of each name.")
        if segments is not None:
            raise StoreError(
                f"{name}: a store of segments keeps no scores of tokens; leave it out."
            )
        made[name] = json.loads(
            canonical({f.name: getattr(scorer, f.name) for f in fields(scorer)})
        )
    return made


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest; anything that is not as this library writes it is a StoreError."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise StoreError(f"{MANIFEST} is too large to be a manifest.")
        body = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise StoreError(f"No map store in {path.parent.name!r}: there is no {MANIFEST}.") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{MANIFEST} is damaged: not JSON.") from error
    if not isinstance(body, dict) or body.get("kind") != "ctxmix-maps":
        raise StoreError(f"{MANIFEST} does not describe a map store.")
    if body.get("schema") != SCHEMA:
        raise StoreError(
            f"This store has schema {body.get('schema')!r:.40}; this version of ctxmix_hf reads schema {SCHEMA}."
        )
    try:
        manifest = _manifest(body)
    except (KeyError, TypeError, ValueError, AttributeError, CtxmixError) as error:
        raise StoreError(
            f"{MANIFEST} is damaged: {type(error).__name__} at {error!s:.80}."
        ) from error
    if body.get("fingerprint") != manifest.fingerprint:
        raise StoreError(f"{MANIFEST} is damaged: its fingerprint does not belong to its content.")
    return manifest


def _manifest(body: dict[str, Any]) -> Manifest:
    methods = {str(key): _entry(body["methods"][key]) for key in body["order"]}
    folders = [part.folder for entry in methods.values() for part in entry.parts.values()]
    if len(set(folders)) != len(folders) or len(methods) != len(body["methods"]) or not methods:
        raise ValueError("methods")
    if body["dtype"] not in DTYPES:
        raise ValueError("dtype")
    files = {
        str(name): {
            "size": whole(v["size"]),
            "sha256": _hash(v["sha256"]),
            "rows": whole(v["rows"]),
        }
        for name, v in body["files"].items()
    }
    for name in set(files) - {INDEX}:
        if name != examples_file(
            check_split(name.removeprefix("examples/").removesuffix(".jsonl"))
        ):
            raise ValueError(name)
    model = {str(k): v if v is None else str(v) for k, v in body["model"].items()}
    tokenizer = body["tokenizer"]
    return Manifest(
        model,
        tokenizer if tokenizer is None else str(tokenizer),
        body["dtype"],
        methods,
        dict(body["origin"]),
        whole(body["shard_size"]),
        body["complete"] is True,
        files,
        None if body.get("segments") is None else _unit(body["segments"]),
        {str(name): dict(options) for name, options in body.get("attributions", {}).items()},
        None if body.get("targets") is None else stored_targets(body["targets"]),
        None if body.get("top_k") is None else checked_top_k(body["top_k"]),
    )


def stored_targets(given: Any) -> tuple[Any, ...]:
    """Targets as a manifest can hold them: positions and names, or lists of these to average."""
    targets = Wanted.of(given).targets
    plain = lambda one: type(one) in (int, str)
    for target in targets:
        several = isinstance(target, list | tuple) and target and all(map(plain, target))
        if not plain(target) and not several:
            raise OptionError(
                f"targets: {target!r:.60} cannot be kept. Give positions, words, '[CLS]', 'mean_pool' or "
                "'embedding', or lists of these."
            )
    return tuple(list(one) if isinstance(one, list | tuple) else one for one in targets)


def _unit(value: Any) -> str:
    if not isinstance(value, str) or value not in UNITS:
        raise ValueError("segments")
    return value


def _entry(body: dict[str, Any]) -> MethodEntry:
    parts = {
        kind: _part(part) for kind, part in sorted(body["parts"].items(), reverse=True)
    }  # layers before input before heads
    if "heads" in parts and "layers" not in parts:
        raise ValueError("heads")
    if not parts or not set(parts) <= _PARTS or body["aggregation"] not in ("rollout", "flow"):
        raise ValueError("method")
    return MethodEntry(dict(body["options"]), body["aggregation"], body["shares"] is True, parts)


def _part(body: dict[str, Any]) -> Part:
    if not is_folder(body["folder"]):
        raise ValueError("folder")
    shards = tuple(
        Shard(whole(s["size"]), _hash(s["sha256"]), whole(s["data"])) for s in body["shards"]
    )
    if any(shard.data > shard.size for shard in shards):
        raise ValueError("shards")
    return Part(body["folder"], shards)


def whole(value: Any, most: int = 1 << 50) -> int:
    """A number from a file: an int, not negative, not absurd."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is not a sensible number")
    return value


def _hash(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ValueError("sha256")
    return value
