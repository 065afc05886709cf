"""Text tables: the one place that lines cells up in columns."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(
    rows: Sequence[Sequence[str]], *, left: Sequence[bool] | None = None, rule: int | None = None
) -> list[str]:
    """Lines with columns as wide as their cells.

    Args:
        rows: The cells, head first; every row has as many.
        left: Which columns are set to the left; all of them where it is None, the others to the right.
        rule: Draw a rule under the first row, its dashes at most so long.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [True] * len(widths) if left is None else left
    lines = [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]
    if rule is not None:
        lines.insert(1, "  ".join("-" * min(width, rule) for width in widths))
    return lines
