"""Matrices as Parquet, for readers that know no safetensors: one file per method and split, nested lists, zstd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.hub.layout import disk_errors

ROWS = 50  # a row group


def present(root: Path | None) -> list[Path]:
    """The exports beside a store, in order."""
    return [] if root is None else sorted((root / "parquet").glob("*/*.parquet"))


def export(store: Any, folder: Path, methods: list[str] | None) -> list[Path]:
    """Write `parquet/<method>/<split>.parquet` with columns id and map (`[L][T][T]`); the files."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependencyError.of("pyarrow", "data") from None
    value = pa.float16() if store.manifest.dtype == "float16" else pa.float32()
    schema = pa.schema([("id", pa.string()), ("map", pa.list_(pa.list_(pa.list_(value))))])
    written = []
    for key in methods or store.methods:
        part = next(iter(store.manifest.methods[key].parts.values())).folder
        for split in sorted({row.split for row in store.index}):
            path = folder / "parquet" / part / f"{split}.parquet"
            with disk_errors(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{path.name}.tmp")
                leaf = "map.list.element.list.element.list.element"
                with pq.ParquetWriter(
                    temporary, schema, compression="zstd", use_dictionary=["id"], column_encoding={leaf: "BYTE_STREAM_SPLIT"}
                ) as writer:  # fmt: skip
                    for rows in _groups(store, key, split):
                        writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                temporary.replace(path)
            written.append(path)
    return written


def _groups(store: Any, key: str, split: str) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for made in store.iter(key, split):
        values = made.layers if made.layers is not None else made.input
        values = values.half() if store.manifest.dtype == "float16" else values
        rows.append({"id": made.meta["id"], "map": values[0].numpy().tolist()})
        if len(rows) == ROWS:
            yield rows
            rows = []
    if rows:
        yield rows
