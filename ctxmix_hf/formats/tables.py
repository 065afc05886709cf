"""Long tables: CSV with the standard library, pandas and xarray on request."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any

from ctxmix_hf.errors import InputTypeError, MissingDependencyError
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.results.matches import Ranking, Similarity

MAP_COLUMNS = (
    "example",
    "scope",
    "layer",
    "target_index",
    "target",
    "source_index",
    "source",
    "value",
)
SIMILARITY_COLUMNS = ("a_index", "a", "b_index", "b", "contribution")
LEDGER_COLUMNS = ("example", "kind", "index", "name", "contribution")
RANKING_COLUMNS = ("rank", "document", "text", "score")
ATTRIBUTION_COLUMNS = ("example", "index", "token", "score")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
Row = tuple[Any, ...]


def map_rows(m: ContextMixingMap) -> Iterator[Row]:
    """One row per value, padding left out; layers count from 1."""
    for b in range(len(m)):
        one = m[b]
        pieces = one.tokens[0].marked()
        for scope, values in (("layer", one.layers), ("input", one.input)):
            if values is None:
                continue
            for layer, matrix in zip(one.layer_numbers, values[0].tolist(), strict=True):
                for i, row in enumerate(matrix):
                    yield from (
                        (b, scope, layer, i, pieces[i], j, pieces[j], value)
                        for j, value in enumerate(row)
                    )


def attribution_rows(a: Attribution) -> Iterator[Row]:
    for b in range(len(a)):
        one = a[b]
        pieces = one.tokens[0].marked()
        yield from ((b, i, pieces[i], value) for i, value in enumerate(one.scores[0].tolist()))


def ledger_rows(l: Ledger) -> Iterator[Row]:
    """Tokens first, then lines; a line that has a number per token has a row per token."""
    for b in range(len(l)):
        one = l[b]
        pieces = one.tokens[0].marked()
        yield from (
            (b, "token", i, pieces[i], value) for i, value in enumerate(one.scores[0].tolist())
        )
        for name, line in one.lines.items():
            if line.dim() > 1:
                yield from (
                    (b, name, i, pieces[i], value) for i, value in enumerate(line[0].tolist())
                )
            else:
                yield (b, "line", "", name, float(line[0]))


def similarity_rows(s: Similarity) -> Iterator[Row]:
    """Pairs first, then what is left: a row without an index is a bias."""
    names_a, names_b = s.a.tokens[0].marked(), s.b.tokens[0].marked()
    for i, row in enumerate(s.pairs.tolist()):
        yield from ((i, names_a[i], j, names_b[j], value) for j, value in enumerate(row))
    for name, line in s.lines.items():
        values = line.reshape(-1).tolist()
        if name == "bias row":
            yield from (("", "biases", j, names_b[j], value) for j, value in enumerate(values))
        elif name == "bias column":
            yield from ((i, names_a[i], "", "biases", value) for i, value in enumerate(values))
        else:
            yield from (("", name, "", name, value) for value in values)


def ranking_rows(r: Ranking) -> Iterator[Row]:
    """Documents, best first, with their number as given."""
    for place, i in enumerate(r.order, 1):
        yield (place, i, r.documents[i], float(r.scores[i]))


def columns_and_rows(result: Any) -> tuple[tuple[str, ...], Iterator[Row]]:
    """The long table of a result: what its CSV file, data frame and Markdown table hold."""
    if isinstance(result, Similarity):
        return SIMILARITY_COLUMNS, similarity_rows(result)
    if isinstance(result, Ledger):
        return LEDGER_COLUMNS, ledger_rows(result)
    if isinstance(result, Attribution):
        return ATTRIBUTION_COLUMNS, attribution_rows(result)
    if isinstance(result, Ranking):
        return RANKING_COLUMNS, ranking_rows(result)
    if isinstance(result, ContextMixingMap):
        return MAP_COLUMNS, map_rows(result)
    raise InputTypeError(f"A {type(result).__name__} has no table.")


def to_csv(result: Any, raw: bool = False) -> str:
    return csv_text(*columns_and_rows(result), raw=raw)


def csv_text(columns: Iterable[Any], rows: Iterable[Iterable[Any]], raw: bool = False) -> str:
    """CSV that a spreadsheet can open: a text that it would take for a formula gets an apostrophe
    in front, unless `raw`.
    """
    lines: list[str] = []

    class Lines:
        def write(self, line: str) -> None:
            lines.append(line[:-2] + "\n")

    writer = csv.writer(
        Lines()
    )  # its line ends are \r\n, so that a cell with either of them is quoted (before Python 3.13 only then)
    writer.writerow(columns if raw else map(_no_formula, columns))
    writer.writerows(rows if raw else (map(_no_formula, row) for row in rows))
    return "".join(lines)


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def to_pandas(result: Any) -> Any:
    """A data frame with the columns of the CSV file."""
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError.of("pandas", "data") from error
    columns, rows = columns_and_rows(result)
    return pandas.DataFrame(list(rows), columns=list(columns))


def to_polars(result: Any) -> Any:
    """The same as a polars frame."""
    try:
        import polars
    except ImportError as error:
        raise MissingDependencyError.of("polars", "interop") from error
    columns, rows = columns_and_rows(result)
    return polars.DataFrame(
        list(rows), schema=list(columns), orient="row", infer_schema_length=None
    )


def to_xarray(m: ContextMixingMap, example: int = 0) -> Any:
    """A Dataset of `input` and `layers` with dimensions layer, target and source; tokens are coordinates."""
    try:
        import xarray
    except ImportError as error:
        raise MissingDependencyError.of("xarray", "data") from error
    one = m[example]
    pieces = one.tokens[0].marked()
    held = {"input": one.input, **({} if one.layers is None else {"layers": one.layers})}
    arrays = {
        name: (("layer", "target", "source"), value[0].detach().cpu().numpy())
        for name, value in held.items()
    }
    coords = {
        "layer": list(m.layer_numbers),
        "target_token": ("target", pieces),
        "source_token": ("source", pieces),
    }
    return xarray.Dataset(
        arrays, coords=coords, attrs={"method": m.method, "aggregation": m.aggregation}
    )
