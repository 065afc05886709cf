"""`.md`: a table that a README, an issue or a lab book shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ctxmix_hf.formats import FORMATS, Format
from ctxmix_hf.formats.tables import columns_and_rows
from ctxmix_hf.results.base import Result, written
from ctxmix_hf.results.maps import ContextMixingMap, heading


def to_markdown(result: Result) -> str:
    """A map: targets by sources of each example, words, from the input to the last layer. Others: their CSV table."""
    if not isinstance(result, ContextMixingMap):
        return markdown_table(*columns_and_rows(result))
    texts = []
    for b in range(len(result)):
        one = result[b].words()
        names = one.tokens[0].marked()
        rows = zip(names, one.input[0, -1].tolist(), strict=True)
        title = f"{heading(one)}, {one.where()}; rows are targets, columns sources"
        table = markdown_table(["", *names], ([name, *row] for name, row in rows))
        texts.append(f"{_cell(title)}\n\n{table}")
    return "\n".join(texts)


def markdown_table(columns: Sequence[Any], rows: Iterable[Iterable[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


FORMATS.register(".md")(Format(lambda result, path: written(to_markdown(result), path)))
