"""`MapStore`: maps computed once, kept in a folder or on the Hub, and read back one example at a
time without any model.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download

from ctxmix_hf.errors import InputError, OptionError, StoreError, UnknownNameError
from ctxmix_hf.hub import caching, cards, comparing, computing, merging, parquet, reading, recovery
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.hub.folders import (
    CARD,
    INDEX,
    MANIFEST,
    check_id,
    check_split,
    disk_errors,
    file_digest,
    is_cached,
    make_folder,
    require_own_files,
    shard_file,
    write_atomic,
)
from ctxmix_hf.hub.index import Index, IndexRow, load_index
from ctxmix_hf.hub.keys import model_identity, model_origin, tokenizer_hash
from ctxmix_hf.hub.manifest import (
    DTYPES,
    Manifest,
    MethodEntry,
    attribution_options,
    load_manifest,
    method_entries,
    stored_targets,
)
from ctxmix_hf.hub.measuring import measure
from ctxmix_hf.hub.publishing import commit_files, compare
from ctxmix_hf.hub.reading import FolderSource, Source
from ctxmix_hf.hub.remote import HubSource, fetch_first
from ctxmix_hf.hub.shards import to_tensor
from ctxmix_hf.hub.weights import cached_weights_differ
from ctxmix_hf.hub.writing import Writer, locked_store
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.recipes import Specs, TargetRows, Wanted, resolve
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.results.attributions import Attribution, unit_name
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.sparse import SparseMap
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.segments import UNITS
from ctxmix_hf.unwrapping import base_model

LOG = logging.getLogger(__name__)


class MapStore:
    """Maps of many examples by a few methods of one model. Made with `create`, `open` or `from_hub`."""

    def __init__(
        self, manifest: Manifest, index: Index, source: Source, root: Path | None = None
    ) -> None:
        self.manifest, self.index, self.source, self.root = manifest, index, source, root
        self.model: Model | None = None
        self.tokenizer: Tokenizer | None = None
        self._writer: Writer | None = None
        self._known: dict[Any, Any] = {}  # models that were compared with this store

    def __getstate__(self) -> dict[str, Any]:
        """A pickled store reads: it carries no writer, no model and no token."""
        return {**self.__dict__, "_known": {}, "_writer": None, "model": None, "tokenizer": None}

    def __repr__(self) -> str:
        place = self.root.name if self.root is not None else repr(self.source)
        return f"MapStore({place}, {len(self)} examples, methods: {', '.join(self.methods)})"

    # ---- making -----------------------------------------------------------------------------------------------
    @classmethod
    @keeps_modes
    def create(
        cls,
        path: str | Path,
        *,
        model: Model,
        tokenizer: Tokenizer | None = None,
        methods: Specs,
        dtype: str = "float32",
        shard_size: int = 256 << 20,
        model_id: str | None = None,
        revision: str | None = None,
        segments: str | None = None,
        targets: Sequence[Any] | None = None,
        top_k: int | None = None,
        attributions: Sequence[Any] = (),
    ) -> MapStore:
        """An empty store in a new folder, open for `add`.

        Args:
            path: The folder; it is made, or must be empty.
            model: What computes the maps; an instrumented model.
            tokenizer: Needed where texts are added.
            methods: Names or methods with options. One with `per_head=True` keeps the maps of its heads too.
            dtype: `"float32"`, or `"float16"`, half as large, for display.
            shard_size: Bytes after which a new file begins.
            model_id: The model's name for people, where it is not that of its files.
            revision: The model's commit; None: read off the cache where the weights are that commit's.
            segments: Keep the maps of `"sentences"` or `"paragraphs"` instead of the tokens', for long texts.
            targets: Keep one row each instead of maps, `["mean_pool", ...]` (`TargetRows`), for long texts.
            top_k: Keep the largest sources of every row (`SparseMap`), for long texts.
            attributions: Names or objects of scores that are kept too, of the model's own answer, as
                `attribute` gives them: `store.attribution(id, name)`.

        Raises:
            StoreError: There is something in the folder already.
            OptionError: An option has no such value.

        Example:
            >>> with cm.MapStore.create("maps", model=model, tokenizer=tokenizer, methods=["alti"]) as store:
            ...     store.add(["a", "b"], ["The cats sleep.", "A dog runs."])
        """
        root = Path(path)
        if dtype not in DTYPES:
            raise OptionError.among("dtype", dtype, DTYPES)
        if shard_size < 1 << 14:
            raise OptionError("shard_size is at least 16384 bytes.")
        if segments is not None and segments not in UNITS:
            raise OptionError(
                f"segments={segments!r:.60} cannot be kept: a store has one kind of unit, "
                f"{' or '.join(map(repr, UNITS))}."
            )
        asked = {"targets": targets, "segments": segments, "top_k": top_k}
        wanted = Wanted.asked(asked)
        if top_k is not None and dtype != "float32":
            raise OptionError(
                "top_k=... keeps the places of sources: store it with dtype='float32'."
            )
        entries = method_entries(resolve(methods), wanted)
        if (root / MANIFEST).exists():
            raise StoreError(
                f"There is a store in {root.name!r} already: go on with MapStore.open(path, append=True, model=...)."
            )
        if root.exists() and any(root.iterdir()):
            raise StoreError(f"The folder {root.name!r} is not empty.")
        origin = model_origin(model, model_id, revision)
        if (
            revision is None
            and origin["revision"]
            and cached_weights_differ(base_model(model), origin["model_id"], origin["revision"])
        ):
            # trained since, or from another commit: the hash of the weights says what it is
            origin["revision"] = None
        manifest = Manifest(
            model_identity(model),
            tokenizer_hash(tokenizer),
            dtype,
            entries,
            origin,
            shard_size,
            segments=segments,
            attributions=attribution_options(attributions, segments),
            targets=None if targets is None else stored_targets(targets),
            top_k=top_k,
        )
        return cls.from_manifest(root, manifest, model, tokenizer)

    @classmethod
    def from_manifest(
        cls,
        root: Path,
        manifest: Manifest,
        model: Model | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> MapStore:
        """An empty store that says of itself what `manifest` says.

        Args:
            root: The folder.
            manifest: What the store is of.
            model: What computes the maps.
            tokenizer: Needed where texts are added.
        """
        index = Index(depths=[0] * len(manifest.parts))
        store = cls(manifest, index, FolderSource(root, manifest), root)
        store.model, store.tokenizer = model, tokenizer
        with disk_errors(root):
            make_folder(root)
            with locked_store(root) as lock:
                manifest.save(root)
                store._writer = Writer(root, manifest, index, lock, store._set_manifest)
        return store

    @classmethod
    @keeps_modes
    def open(
        cls,
        path: str | Path,
        *,
        append: bool = False,
        repair: bool = False,
        model: Model | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> MapStore:
        """An existing folder, also one whose writer was killed. `append=True` goes on writing where it ended.

        What a kill or a power cut left unfinished is forgotten, so that it can be added again;
        `repair=True` (with `append=True`) reads the whole store and forgets every damaged example
        too, with all that was added after the first of them. With `model` (and `tokenizer`) the
        store must be of that model: else an error names the difference.

        Args:
            path: The folder.
            append: Go on writing; needs `model`, which must be the store's.
            repair: Forget what is damaged, so that it can be added again.
            model: What computes the maps that are added.
            tokenizer: Needed where texts are added.

        Raises:
            StoreError: The folder holds no store, or a damaged one.
            StoreInUseError: Somebody else is writing to it.
        """
        root = Path(path)
        if repair and not append:
            raise OptionError("repair=True writes to the store: open it with append=True too.")
        load_manifest(root / MANIFEST)  # before a lock file is made anywhere
        if append:
            require_own_files(root)
        with locked_store(root) if append else nullcontext() as lock:
            manifest = load_manifest(root / MANIFEST)
            lost = 0
            if repair or (append and not manifest.complete):
                if not repair:
                    reading.check_sizes(root, manifest)
                manifest, index, lost = recovery.usable(root, manifest, everything=repair)
            else:
                reading.check_sizes(root, manifest)
                index = load_index(root, manifest)
            store = cls(manifest, index, FolderSource(root, manifest), root)
            if lost:
                LOG.warning(
                    "%d examples of the store %r are damaged or incomplete and are forgotten: add them again.",
                    lost,
                    root.name,
                )
            if model is not None:
                comparing.require_same(store.manifest, model, tokenizer)
            store.model, store.tokenizer = model, tokenizer
            if lock is not None:
                store._writer = Writer(root, manifest, store.index, lock, store._set_manifest)
        return store

    @classmethod
    def merge(cls, path: str | Path, parts: Sequence[Any]) -> MapStore:
        """One closed store from the stores of several workers (paths or stores), in their order:
        the bytes one worker would write.

        Args:
            path: The folder of the new store.
            parts: Stores or their folders, of the same model and methods.
        """
        made: MapStore = merging.merge(cls, path, parts)
        return made

    def _set_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.source = FolderSource(self.root, manifest) if self.root is not None else self.source

    # ---- writing ----------------------------------------------------------------------------------------------
    @keeps_modes
    def add(
        self,
        ids: Sequence[Any],
        texts_or_inputs: Any,
        *,
        split: str = "train",
        labels: Sequence[Any] | None = None,
        batch_size: int = 16,
        **options: Any,
    ) -> None:
        """Compute and keep the maps of these examples. Each batch is in the store whole or not at all.

        Texts, pairs, or the tensors of a batch. `options` go to the model call (`max_memory`). The
        same calls give the same files.

        Args:
            ids: One name per example, each new to the store.
            texts_or_inputs: As many texts or pairs, or tensors with as many rows.
            split: The dataset's split they belong to.
            labels: One per example, kept beside it.
            batch_size: Examples per model call.
            options: Of the model call: `max_memory`.
        """
        if self.model is None:
            raise StoreError(
                "This store was opened without a model: MapStore.open(path, append=True, model=..., tokenizer=...)."
            )
        names = self._new_ids(ids, labels)
        recipes = self.manifest.recipes()
        scored = self.manifest.scorers()
        for cut, given in computing.batches(len(names), texts_or_inputs, batch_size):
            maps, about, keys = computing.compute(
                self.model, self.tokenizer, recipes, given, options, self.manifest.wanted(), scored
            )
            self._append(
                names[cut], split, maps, about, keys, None if labels is None else labels[cut]
            )

    def add_maps(
        self,
        ids: Sequence[Any],
        maps: Mapping[str, computing.Kept],
        *,
        split: str = "train",
        labels: Sequence[Any] | None = None,
        examples: Sequence[dict[str, Any]] | None = None,
        keys: Sequence[str | None] | None = None,
    ) -> None:
        """Keep maps that were computed elsewhere, one batch: a map with `len(ids)` examples for
        every method of the store.

        Args:
            ids: One name per example, each new to the store.
            maps: A map per method of the store.
            split: The dataset's split they belong to.
            labels: One per example, kept beside it.
            examples: What the examples file says of each; None: what the maps know.
            keys: What a cache finds each example by; None: nothing.
        """
        names = self._new_ids(ids, labels)
        wanted = set(self.manifest.attributions)
        if any(wanted - set(line.get("attributions") or {}) for line in examples or [{}]):
            raise InputError(
                f"This store keeps {', '.join(sorted(wanted))} of every example, which maps do not hold: use add."
            )
        missing = [key for key in self.manifest.methods if key not in maps]
        if missing:
            raise InputError(f"Maps are missing for: {', '.join(missing)}.")
        for key, entry in self.manifest.methods.items():
            comparing.require_options(key, entry, maps[key].meta.get("options"))
            comparing.require_units(self.manifest, maps[key])
        first = next(iter(maps.values()))
        about = examples or [computing.about_map(first, b) for b in range(len(first))]
        self._append(names, split, maps, about, keys or [None] * len(names), labels)

    def _new_ids(self, ids: Sequence[Any], labels: Sequence[Any] | None) -> list[str]:
        names = [check_id(name) for name in ids]
        twice = next(
            (name for i, name in enumerate(names) if name in self.index.rows or name in names[:i]),
            None,
        )
        if twice is not None:
            raise StoreError(f"The id {twice!r} is in the store already: ids are unique.")
        if labels is not None and len(labels) != len(names):
            raise InputError(f"{len(names)} ids need {len(names)} labels.")
        return names

    def _append(
        self, names: list[str], split: str, maps: Any, about: Any, keys: Any, labels: Any
    ) -> None:
        if self._writer is None:
            raise StoreError("This store is open for reading: MapStore.open(path, append=True).")
        self._writer.append(
            computing.new_examples(
                self.manifest, names, check_split(split), maps, about, keys, labels
            )
        )

    def close(self) -> None:
        """Finish the files and free the folder; reading goes on. Closing twice is fine."""
        if self._writer is not None:
            self._writer.close()  # where the disk is full, it can be called again
            self._writer = None

    def __enter__(self) -> MapStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close after success; after an error only free the folder, so that a later run goes on."""
        try:
            if kind is None:
                self.close()
        except Exception:  # the disk is full: close() can be called again
            raise
        except BaseException:  # Ctrl-C
            self._free()
            raise
        else:
            self._free()

    def _free(self) -> None:
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    # ---- reading ----------------------------------------------------------------------------------------------
    @property
    def methods(self) -> list[str]:
        return list(self.manifest.methods)

    @property
    def attributions(self) -> list[str]:
        """The scores per token that are kept beside the maps, by name."""
        return sorted(self.manifest.attributions)

    def ids(self, split: str | None = None) -> list[str]:
        """Ids in the order they were added, of one split or all."""
        return [row.id for row in self.index if split in (None, row.split)]

    def __len__(self) -> int:
        return len(self.index)

    def __contains__(self, name: object) -> bool:
        return name in self.index.rows

    def __getitem__(self, wanted: tuple[Any, Any]) -> Any:
        """`store["validation-17", "alti"]`: that map (or rows, or sparse map) with its tokens; from the Hub, one
        request of its bytes.
        """
        if not isinstance(wanted, tuple) or len(wanted) != 2:
            raise InputError("Ask for an example and a method: store['id', 'alti'].")
        return self._map(self._row(wanted[0]), *comparing.find_method(self.manifest, wanted[1]))

    def example(self, name: Any) -> dict[str, Any]:
        """What the examples file says of one example: text, tokens, input_ids, label, prediction, ..."""
        return reading.read_example(self.source, self._row(name))

    def attribution(self, name: Any, method: str) -> Attribution:
        """`store.attribution("validation-17", "ledger")`: the scores that were kept, with their tokens.

        Args:
            name: the example's id.
            method: one of `store.attributions`.

        Raises:
            UnknownNameError: No such example, or scores that this store does not keep.
        """
        if method not in self.manifest.attributions:
            raise UnknownNameError.among("attribution in this store", method, self.attributions)
        body = reading.read_example(self.source, self._row(name))
        return reading.attribution_of(body, method, self.manifest.attributions[method])

    def iter(self, wanted: Any, split: str | None = None) -> Iterator[Any]:
        """Every map of a method, in the order of the shards; `map.meta["id"]` is the example's id.

        Args:
            wanted: The method's key.
            split: Of this split only.
        """
        key, entry = comparing.find_method(self.manifest, wanted)
        return (
            self._map(row, key, entry) for row in list(self.index) if split in (None, row.split)
        )

    def _row(self, name: Any) -> IndexRow:
        row = self.index.rows.get(str(name))
        if row is None:
            near = difflib.get_close_matches(str(name), list(self.index.rows)[:5000], n=3)
            hint = f" Similar: {', '.join(map(repr, near))}." if near else ""
            raise UnknownNameError(
                f"No example {name!r:.80} among the {len(self)} of this store.{hint}"
            )
        return row

    def _map(self, row: IndexRow, key: str, entry: MethodEntry) -> computing.Kept:
        values = self.values(row, entry)
        body = reading.read_example(self.source, row)
        meta = {
            "options": dict(entry.options),
            "rolls_out_shares": entry.shares,
            "causal": row.causal,
            "notes": {},
            "id": row.id,
            "origin": {
                "model": self.manifest.origin.get("model_id"),
                "model_type": self.manifest.model.get("model_type"),
            },
            "stored": self.manifest.dtype,
            "label": body.get("label"),
            "prediction": body.get("prediction"),
        }
        if self.manifest.segments is not None:
            meta["unit"] = unit_name(self.manifest.segments)
        whole = self.manifest.targets is None and self.manifest.top_k is None
        made = ContextMixingMap(
            key,
            values.get("layers") if whole else _no_numbers(body, row, values),
            torch.ones(1, row.size, dtype=torch.bool),
            [reading.tokens_of(body)],
            entry.aggregation,
            meta=meta,
            given_input=values.get("input") if whole else None,
            heads=computing.heads_of(values) if whole else None,
        )
        if self.manifest.targets is not None:
            return TargetRows(values["input"], self.manifest.targets, made)
        if self.manifest.top_k is not None:
            tops = {kind: computing.unpacked(v, self.manifest.top_k) for kind, v in values.items()}
            return SparseMap(tops["input"], tops.get("layers"), made)
        return made

    def values(self, row: IndexRow, entry: MethodEntry) -> dict[str, torch.Tensor]:
        """`[1, L, T, T]` for each series a method keeps (heads: `[1, L * H, T, T]`; rows: `[1, N, T]`).

        Args:
            row: The example's line of the index.
            entry: The method's entry of the manifest.
        """
        parts = self.manifest.parts
        numbers = {part.folder: i for i, part in enumerate(parts)}
        return {
            kind: to_tensor(
                self.source.read(part, row.places[numbers[part.folder]]),
                self.manifest.slice_shape(row.size),
                self.manifest.dtype,
            )[None]
            for kind, part in entry.parts.items()
        }

    def maps_of_call(
        self, record: ModelRecord, methods: Specs, options: dict[str, Any]
    ) -> dict[str, ContextMixingMap]:
        """What `cache=store` makes of a model call.

        Args:
            record: What the call left.
            methods: What it asked for.
            options: The rest of what it asked for.
        """
        return caching.cached_maps(self, record, methods, options)

    # ---- trusting ---------------------------------------------------------------------------------------------
    def matches(
        self, model: Model, tokenizer: Tokenizer | None = None, methods: Specs | None = None
    ) -> bool:
        """Whether this store holds what this model would compute. `differences` says what is not the same.

        Args:
            model: The model to compare with.
            tokenizer: Its tokenizer; None: not compared.
            methods: Methods with their options; None: not compared.
        """
        return not self.differences(model, tokenizer, methods)

    def differences(
        self, model: Model, tokenizer: Tokenizer | None = None, methods: Specs | None = None
    ) -> list[str]:
        """What differs between this store and a model, a tokenizer and methods with their options.

        Args:
            model: The model to compare with.
            tokenizer: Its tokenizer; None: not compared.
            methods: Methods with their options; None: not compared.
        """
        return comparing.differences(self.manifest, model, tokenizer, methods)

    def check(
        self, model: Model, tokenizer: Tokenizer | None = None, methods: Specs | None = None
    ) -> None:
        """Raise a StoreError that names the difference, if there is one.

        Args:
            model: The model to compare with.
            tokenizer: Its tokenizer; None: not compared.
            methods: Methods with their options; None: not compared.
        """
        comparing.require_same(self.manifest, model, tokenizer, methods)

    def verify(self) -> None:
        """Raise a StoreError unless every file has its checksum and every shard says what the index says."""
        if self.root is None:
            raise StoreError("This store is on the Hub: download() it first, which verifies it.")
        reading.check_sizes(self.root, self.manifest)
        reading.verify(self.root, self.manifest, self.index)

    # ---- on the Hub -------------------------------------------------------------------------------------------
    @classmethod
    def from_hub(
        cls,
        repo_id: str,
        revision: str | None = None,
        *,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        endpoint: str | None = None,
        max_bytes: int | None = None,
    ) -> MapStore:
        """A store on the Hub at a tag, branch or commit. Only index and examples are fetched; maps
        come one by one when asked for.

        `max_bytes` is the most that index and examples may have together: a larger store is refused
        before they are fetched.

        Args:
            repo_id: The dataset repository.
            revision: A tag, branch or commit; None: main.
            token: What `huggingface_hub` takes.
            cache_dir: Where files are kept; None: the Hub's cache.
            endpoint: Another Hub.
            max_bytes: The most that index and examples may have together.

        Raises:
            StoreError: There is no such store, or it cannot be read; the message says why.
        """
        where = {"token": token, "cache_dir": cache_dir, "endpoint": endpoint}
        path, sha = fetch_first(repo_id, revision, where)
        manifest = load_manifest(path)
        if not manifest.complete:
            raise StoreError(f"{repo_id}: this store was pushed before it was closed.")
        source = HubSource(repo_id, sha, manifest, where)
        total = sum(about["size"] for about in manifest.files.values())
        if max_bytes is not None and total > max_bytes:
            raise StoreError(
                f"{repo_id}: index and examples have {total:,} bytes; at most {max_bytes:,} bytes are read here."
            )
        compare(
            source,
            {name: (about["size"], about["sha256"]) for name, about in manifest.files.items()},
        )
        for name, about in manifest.files.items():
            fetched = source.fetch(name)
            if fetched.stat().st_size != about["size"] or file_digest(fetched) != about["sha256"]:
                raise StoreError(
                    f"{repo_id}: {name} is damaged: its checksum does not fit the manifest."
                )
        return cls(manifest, load_index(path.parent, manifest), source, None)

    @property
    def revision(self) -> str | None:
        """The commit this store was read from; None for a folder."""
        return self.source.sha if isinstance(self.source, HubSource) else None

    def download(
        self, folder: str | Path | None = None, *, methods: list[str] | None = None
    ) -> Path:
        """Fetch everything (or some methods) into the cache or a folder, verified; the folder.
        Called again after a stop, it goes on.

        Args:
            folder: Where to; None: the cache.
            methods: Only these.
        """
        if not isinstance(self.source, HubSource):
            if self.root is None:
                raise StoreError(
                    "This store is neither in a folder nor on the Hub, so there is nothing to download."
                )
            return self.root
        source = self.source
        entries = [
            entry
            for key, entry in self.manifest.methods.items()
            if methods is None or key in methods
        ]
        parts = {part.folder: part for entry in entries for part in entry.parts.values()}
        shards = {
            shard_file(p.folder, n): shard
            for p in parts.values()
            for n, shard in enumerate(p.shards)
        }
        compare(source, {name: (shard.size, shard.sha256) for name, shard in shards.items()})
        names = [MANIFEST, CARD, *self.manifest.files, *shards]
        with hub_errors(source.repo_id, source.sha, source._where["token"]):
            got = Path(
                snapshot_download(
                    source.repo_id,
                    repo_type="dataset",
                    revision=source.sha,
                    allow_patterns=names,
                    local_dir=folder,
                    **source._where,
                )
            )
        reading.verify(got, self.manifest, self.index, set(parts))
        if methods is None:
            self.root, self.source = (
                got,
                source if folder is None else FolderSource(got, self.manifest),
            )
        return got

    def to_parquet(
        self, folder: str | Path | None = None, methods: list[str] | None = None
    ) -> list[Path]:
        """Matrices as Parquet beside the shards (or elsewhere): one `load_dataset` config per
        method. Needs the extra `data`.

        Args:
            folder: Where to; None: beside the shards.
            methods: Only these.
        """
        target = Path(folder) if folder is not None else self.root
        if target is None or (folder is None and is_cached(target)):
            raise StoreError("Say where: to_parquet(folder).")
        return parquet.export(self, target, methods)

    def render_card(self, repo_id: str = "me/maps", **fields: Any) -> str:
        """The dataset card this store would be pushed with, filled with measured values where its model is at hand.

        Args:
            repo_id: The name the card's code shows.
            fields: Of the card's head: `license=`, ...
        """
        measured = measure(self) if self.model is not None and len(self.index) else {}
        return cards.dataset_card(
            self.manifest, repo_id, len(self.index), measured, parquet.present(self.root), **fields
        )

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        revision: str | None = None,
        tag: str | None = None,
        token: str | bool | None = None,
        endpoint: str | None = None,
        commit_message: str = "Context mixing maps",
        license: str = "unknown",
        card: str | None = None,
    ) -> str:
        """Push to a dataset repository in one commit, with a card; the commit's 40-hex sha.

        Closes the store first. Pushed again after a stop, it sends only what is missing; unchanged,
        it makes no commit. A README.md that is not ours is left alone. `revision` is a branch,
        `tag` is put on the commit.

        Args:
            repo_id: The dataset repository, made if it is not there.
            private: Whether a new repository is private.
            revision: A branch; None: main.
            tag: A tag that is put on the commit.
            token: What `huggingface_hub` takes.
            endpoint: Another Hub.
            commit_message: The commit's.
            license: The card's.
            card: A card of your own.

        Returns:
            The commit's 40-hex sha.

        Raises:
            StoreError: The store is damaged or not in a folder, or the Hub refused; nothing was committed.
        """
        self.close()
        if self.root is None or not self.manifest.complete:
            raise StoreError("Only a store in a folder can be pushed: download() it first.")
        reading.verify(self.root, self.manifest, self.index)
        text = cards.new_card(
            self.root / CARD, lambda: card or self.render_card(repo_id, license=license)
        )
        if text is not None and not is_cached(self.root):
            write_atomic(self.root / CARD, text)
        given = {} if text is None else {CARD: text.encode()}
        api = HfApi(endpoint=endpoint, token=token)
        with hub_errors(repo_id, revision, token):
            repo = api.create_repo(
                repo_id, repo_type="dataset", private=private, exist_ok=True
            ).repo_id
            if revision is not None:
                api.create_branch(repo, branch=revision, repo_type="dataset", exist_ok=True)
            sha = commit_files(
                api, repo, "dataset", self.root, self._files(), revision, commit_message, given
            )
            if tag is not None:
                api.create_tag(repo, tag=tag, revision=sha, repo_type="dataset")
        return sha

    def _files(self) -> list[str]:
        """Everything that belongs to a closed store; nothing else in the folder is ever pushed."""
        shards = [
            shard_file(part.folder, n)
            for part in self.manifest.parts
            for n in range(len(part.shards))
        ]
        exports = [
            str(path.relative_to(self.root or Path())) for path in parquet.present(self.root)
        ]
        return [
            MANIFEST,
            INDEX,
            CARD,
            *(name for name in self.manifest.files if name != INDEX),
            *shards,
            *exports,
        ]


def _no_numbers(
    body: dict[str, Any], row: IndexRow, values: dict[str, torch.Tensor]
) -> torch.Tensor:
    """In place of the layers' maps of a store that keeps none: `[1, L, T, T]` without memory."""
    depth = body.get("depth", values["input"].shape[1])
    if type(depth) is not int or not 0 < depth < 10_000:
        raise StoreError(f"The store is damaged: {row.id!r:.80} has no number of layers.")
    return torch.empty(1, depth, row.size, row.size, device="meta")
