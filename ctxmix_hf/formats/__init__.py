"""Files of results, one format per module: what stands in this folder can be saved, and some of it read back.

A module enters its suffixes in `FORMATS`; `save` and `load` look there. Adding a format is one file here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError
from ctxmix_hf.registry import VIEWS, Registry, import_folder

MAX_BYTES = 4 << 30


@dataclass(frozen=True)
class Format:
    """How a result becomes a file of this suffix, and how the file becomes a result again.

    Attributes:
        write: `(result, path)`.
        read: `(path, max_bytes)`, a context that gives the header and, by name, every tensor's
            announced shape and how to get it; None where the format cannot be read back.
    """

    write: Callable[[Any, Path], Any]
    read: Callable[[Path, int], AbstractContextManager[tuple[Any, Any]]] | None = None


FORMATS: Registry[Format] = Registry("file format")


@cache
def _discover() -> None:
    import_folder(__name__, __path__)


def formats() -> Registry[Format]:
    """All formats, by suffix."""
    _discover()
    return FORMATS


def save(result: Any, path: str | Path) -> Path:
    """Write a result as its file's suffix says."""
    target, known = Path(path), formats()
    if target.suffix not in known:
        *others, last = sorted(known)
        raise InputError(f"Cannot save as {target.name!r}: name it {', '.join(others)} or {last}.")
    known.get(target.suffix).write(result, target)
    return target


def load(path: str | Path, schema: str, max_bytes: int = MAX_BYTES) -> Any:
    """The result in a file, by its suffix. Results larger than `max_bytes` are refused before they are read."""
    from ctxmix_hf.formats.reading import build, in_one_sentence

    target, known = Path(path), formats()
    if not target.is_file():
        raise InputError(f"There is no file {str(target)!r:.200}.")
    read = known.get(target.suffix).read if target.suffix in known else None
    if read is None:
        *others, last = sorted(name for name in known if known.get(name).read is not None)
        raise InputError(
            f"Cannot load {target.suffix!r:.40}: {', '.join(others)} and {last} can be read back."
        )
    with in_one_sentence(repr(target.name)), read(target, max_bytes) as (header, held):
        return build(header, held, schema, max_bytes)


VIEWS.add(
    "ctxmix_hf",
    {
        f"{kind}.{view}": home
        for kind in ("map", "attribution", "ledger", "similarity")
        for view, home in {
            "dict": "formats.schema:to_dict",
            "json": "formats.json:to_json",
            "from_json": "formats.json:from_json",
            "csv": "formats.tables:to_csv",
            "pandas": "formats.tables:to_pandas",
            "polars": "formats.tables:to_polars",
            "load": "formats:load",
        }.items()
    }
    | {
        f"{kind}.save": "formats:save"
        for kind in ("map", "attribution", "ledger", "similarity", "ranking", "difference")
    }
    | {
        "map.latex": "formats.latex:map_latex",
        "attribution.latex": "formats.latex:attribution_latex",
        "map.xarray": "formats.tables:to_xarray",
        "map.bertviz": "formats.bridges:to_bertviz",
        "map.inseq": "formats.bridges:to_inseq",
        "attribution.shap": "formats.bridges:to_shap",
        "attribution.captum": "formats.bridges:to_captum",
        "ledger.shap": "formats.bridges:ledger_to_shap",
        "ranking.dict": "formats.schema:ranking_dict",
        "ranking.json": "formats.json:ranking_json",
        "ranking.csv": "formats.tables:to_csv",
        "ranking.pandas": "formats.tables:to_pandas",
        "ranking.polars": "formats.tables:to_polars",
    },
)
