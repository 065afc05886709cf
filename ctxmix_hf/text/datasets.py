"""The one reader of corpora: local files and datasets of the Hub as rows, one at a time."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import CtxmixError, InputError, MissingDependencyError, first_line

Row = dict[str, Any] | str  # by column; a text instead says why the row could not be read


def find_file(name: str) -> Path | None:
    """The local file that is meant, or None where the name is a dataset's on the Hub."""
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix not in READERS:
            raise InputError(
                f"Cannot read {path.name!r}: data is {', '.join(READERS)}, or the id of a Hub dataset."
            )
        return path
    missing = path.suffix in READERS or path.is_absolute() or name.startswith(".")
    if missing and not path.is_dir():
        raise InputError(f"There is no file {name!r}.")
    return None


def rows_of_file(path: Path) -> Iterator[Row]:
    """Every row in the file's order. A file that cannot be opened, or is not of its format at all, is an
    `InputError`.
    """
    try:
        yield from READERS[path.suffix](path)
    except OSError as error:
        raise InputError(f"Could not read {path.name!r}: {error.strerror or error}.") from error


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    tabs: dict[str, Any] = (
        {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    )
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, **tabs)
        while True:
            try:
                yield next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield f"unreadable: {error}"


def _lines(path: Path) -> Iterator[str | None]:
    """Lines as text; None where one is not UTF-8."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield line.decode("utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError:
                yield None


def _object(row: Any) -> Row:
    return row if isinstance(row, dict) else "not a JSON object"


def _jsonl(path: Path) -> Iterator[Row]:
    for line in _lines(path):
        if line is None:
            yield "not UTF-8"
        elif line.strip():
            try:
                yield _object(json.loads(line))
            except (ValueError, RecursionError):
                yield "not a JSON object"


def _json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name!r} cannot be read as .json: {error}.") from error
    if not isinstance(rows, list):
        raise InputError(f"{path.name!r} cannot be read as .json: it is not a list of rows.")
    yield from map(_object, rows)


def _txt(path: Path) -> Iterator[Row]:
    for line in _lines(path):
        yield {"text": line} if line is not None else "not UTF-8"


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "data") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, ValueError) as error:
        raise InputError(f"{path.name!r} cannot be read as .parquet: {error}.") from error


READERS = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _jsonl,
    ".json": _json,
    ".txt": _txt,
    ".parquet": _parquet,
}


def dataset_of_hub(name: str, split: str | None = None, *, streaming: bool = False) -> Any:
    """`"owner/name"`, or with a configuration and a split: `"nyu-mll/blimp:anaphor_number_agreement:train"`.

    The split in the name goes before `split`. A folder of data files works too.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError.of("datasets", "data") from error
    repository, _, rest = name.partition(":")
    configuration, _, own = rest.partition(":")
    try:
        return datasets.load_dataset(
            repository, configuration or None, split=own or split, streaming=streaming
        )
    except CtxmixError:
        raise
    except Exception as error:  # whatever the Hub's client raises: not found, offline, no such split, no permission
        raise InputError(
            f"Could not read the dataset {name!r} (there is no such file either): {first_line(error)}"
        ) from error


def rows_of_hub(name: str, split: str) -> Iterator[Row]:
    """The rows of one split, streamed."""
    found: Iterable[Any] = dataset_of_hub(name, split, streaming=True)
    rows = iter(found)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # the connection, a damaged file: the same sentence
            raise InputError(f"Could not read the dataset {name!r} to its end: {error}") from error
        yield dict(row)
