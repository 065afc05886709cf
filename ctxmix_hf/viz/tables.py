"""Long tables: CSV with the standard library, pandas and xarray on request."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.maps import Attribution, ContextMixingMap

MAP_COLUMNS = ("example", "scope", "layer", "target_index", "target", "source_index", "source", "value")
ATTRIBUTION_COLUMNS = ("example", "index", "token", "score")
Row = tuple[Any, ...]


def map_rows(m: ContextMixingMap) -> Iterator[Row]:
    """One row per value, padding left out; layers count from 1."""
    for b in range(len(m)):
        one = m[b]
        pieces = one.tokens[0].pieces
        for scope, values in (("layer", one.layers), ("input", one.input)):
            if values is None:
                continue
            for layer, matrix in enumerate(values[0].tolist(), start=1):
                for i, row in enumerate(matrix):
                    yield from ((b, scope, layer, i, pieces[i], j, pieces[j], value) for j, value in enumerate(row))


def attribution_rows(a: Attribution) -> Iterator[Row]:
    for b in range(len(a)):
        one = a[b]
        pieces = one.tokens[0].pieces
        yield from ((b, i, pieces[i], value) for i, value in enumerate(one.scores[0].tolist()))


def _table(result: ContextMixingMap | Attribution) -> tuple[tuple[str, ...], Iterator[Row]]:
    if isinstance(result, Attribution):
        return ATTRIBUTION_COLUMNS, attribution_rows(result)
    return MAP_COLUMNS, map_rows(result)


def to_csv(result: ContextMixingMap | Attribution) -> str:
    columns, rows = _table(result)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def to_pandas(result: ContextMixingMap | Attribution) -> Any:
    """A data frame with the columns of the CSV file."""
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError.of("pandas", "data") from error
    columns, rows = _table(result)
    return pandas.DataFrame(list(rows), columns=list(columns))


def to_xarray(m: ContextMixingMap, example: int = 0) -> Any:
    """A Dataset of `input` and `layers` with dimensions layer, target and source; tokens are coordinates."""
    try:
        import xarray
    except ImportError as error:
        raise MissingDependencyError.of("xarray", "data") from error
    one = m[example]
    pieces = list(one.tokens[0].pieces)
    held = {"input": one.input, **({} if one.layers is None else {"layers": one.layers})}
    arrays = {name: (("layer", "target", "source"), value[0].detach().cpu().numpy()) for name, value in held.items()}
    coords = {
        "layer": list(range(1, m.depth + 1)), "target_token": ("target", pieces), "source_token": ("source", pieces),
    }  # fmt: skip
    return xarray.Dataset(arrays, coords=coords, attrs={"method": m.method, "aggregation": m.aggregation})
