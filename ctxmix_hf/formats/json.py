"""`.json`: the schema of `schema.py` as text; it reads back exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError
from ctxmix_hf.formats import FORMATS, MAX_BYTES, Format
from ctxmix_hf.formats.reading import (
    AXES,
    Held,
    Shape,
    array_of,
    build,
    in_one_sentence,
    require_size,
)
from ctxmix_hf.formats.schema import Saved, ranking_dict, to_dict
from ctxmix_hf.results.matches import Ranking


def to_json(result: Saved, with_input: bool = True, indent: int | None = None) -> str:
    return json.dumps(
        to_dict(result, with_input), ensure_ascii=False, allow_nan=False, indent=indent
    )


def ranking_json(ranking: Ranking, indent: int | None = None) -> str:
    """Scores and order, without the accounts."""
    return json.dumps(ranking_dict(ranking), ensure_ascii=False, indent=indent)


def from_json(text: str | Path, schema: str, max_bytes: int = MAX_BYTES) -> Any:
    """From JSON text, or from a path to a file of it."""
    if isinstance(text, Path) or (len(text) < 4096 and not text.lstrip().startswith("{")):
        with in_one_sentence("This text"):  # a text that can be no path
            there = "\0" not in str(text) and Path(text).is_file()
        if not there:
            raise InputError(f"This is not JSON, and there is no file {str(text)!r:.80}.")
        with in_one_sentence(repr(Path(text).name)), _read(Path(text), max_bytes) as (header, held):
            return build(header, held, schema, max_bytes)
    with in_one_sentence("This text"):
        require_size(len(text), max_bytes)
        header, held = _parts(text)
        return build(header, held, schema, max_bytes)


@contextmanager
def _read(path: Path, max_bytes: int) -> Iterator[tuple[Any, Held]]:
    require_size(path.stat().st_size, max_bytes)
    yield _parts(path.read_text(encoding="utf-8"))


def _parts(text: str) -> tuple[Any, Held]:
    data = json.loads(text)
    if not isinstance(data, dict):
        return data, {}
    arrays = {name: array_of(data[name], name) for name in AXES if data.get(name) is not None}
    return data, {name: (_padded(array.shape, name), array.copy) for name, array in arrays.items()}


def _padded(shape: Shape, name: str) -> Shape:
    """Nested lists do not say the last sizes of an array that holds nothing."""
    return shape + (0,) * (len(AXES[name]) - len(shape)) if 0 in shape else shape


FORMATS.register(".json")(Format(lambda result, path: result.to_json(path), _read))
