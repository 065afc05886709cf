"""Matrices as Parquet, for readers that know no safetensors: one file per method and split, nested lists, zstd.

The examples are exported with them: `datasets` reads all configs of a repository in one format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import MissingDependencyError, StoreError
from ctxmix_hf.hub.folders import disk_errors

ROWS = 50  # a row group
EXAMPLES = "examples"
_LEAF = "map.list.element.list.element.list.element"


def present(root: Path | None) -> list[Path]:
    """The exports beside a store, in order."""
    return [] if root is None else sorted((root / "parquet").glob("*/*.parquet"))


def export(store: Any, folder: Path, methods: list[str] | None) -> list[Path]:
    """Write `parquet/<method>/<split>.parquet` (id, map `[L][T][T]`) and
    `parquet/examples/<split>.parquet`; the files of maps.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingDependencyError.of("pyarrow", "data") from None
    if store.manifest.targets is not None or store.manifest.top_k is not None:
        raise StoreError(
            "Parquet files hold whole maps; this store keeps rows or sparse maps: read them by id, store['id', 'alti']."
        )
    value = pa.float16() if store.manifest.dtype == "float16" else pa.float32()
    schema = pa.schema([("id", pa.string()), ("map", pa.list_(pa.list_(pa.list_(value))))])
    splits = sorted({row.split for row in store.index})
    written = []
    for split in splits:
        lines = [store.example(name) for name in store.ids(split)]
        _write(
            folder / "parquet" / EXAMPLES / f"{split}.parquet",
            _example_schema(pa, lines),
            lines,
            {},
        )
        for key in methods or store.methods:
            part = next(iter(store.manifest.methods[key].parts.values())).folder
            path = folder / "parquet" / part / f"{split}.parquet"
            _write(
                path,
                schema,
                _rows(store, key, split),
                {"column_encoding": {_LEAF: "BYTE_STREAM_SPLIT"}, "use_dictionary": ["id"]},
            )
            written.append(path)
    return written


def _example_schema(pa: Any, lines: list[dict[str, Any]]) -> Any:
    """Columns with their type also where this split has no value in them; labels are what they are."""
    text, number = pa.string(), pa.int64()
    label = pa.array([line["label"] for line in lines]).type
    scored = [line["attributions"] for line in lines if "attributions" in line]
    return pa.schema(
        [
            ("id", text),
            ("text", text),
            ("text_pair", text),
            ("tokens", pa.list_(text)),
            ("input_ids", pa.list_(number)),
            ("words", pa.list_(number)),
            ("special", pa.list_(pa.bool_())),
            ("spans", pa.list_(pa.list_(number))),
            ("prediction", number),
            ("label", label),
            *([("attributions", pa.array(scored).type)] if scored else []),
        ]
    )


def _write(
    path: Path, schema: Any, rows: Iterable[dict[str, Any]], options: dict[str, Any]
) -> None:
    """A Parquet file, group by group; it appears whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = iter(rows)
    with disk_errors(path.parents[2]):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        with pq.ParquetWriter(temporary, schema, compression="zstd", **options) as writer:
            while group := list(islice(source, ROWS)):
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
        temporary.replace(path)


def _rows(store: Any, key: str, split: str) -> Iterator[dict[str, Any]]:
    for made in store.iter(key, split):
        values = made.layers if made.layers is not None else made.input
        values = values.half() if store.manifest.dtype == "float16" else values
        yield {"id": made.meta["id"], "map": list(values[0].numpy().tolist())}
