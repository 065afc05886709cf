"""`df.ctxmix`: a pandas frame's column of texts explained, as a frame. `import ctxmix_hf.frames` adds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ctxmix_hf.attribution import AbstractAttribution
from ctxmix_hf.errors import InputError, InputTypeError, MissingDependencyError, UnknownNameError
from ctxmix_hf.explaining import attribute, explain
from ctxmix_hf.recipes import Spec
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.text.kinds import Model

try:
    import pandas
except ImportError as missing:
    raise MissingDependencyError.of("pandas", "data") from missing


@pandas.api.extensions.register_dataframe_accessor("ctxmix")
class TextFrame:
    """The calls on a frame whose rows hold texts (`column`), or pairs of texts (`column` and `pair`).

    Every call gives one row per word and text, indexed by the frame's own index: `df.join(...)` puts
    them beside the texts, `made.loc[label]` is one text's.
    """

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def explain(
        self,
        model: Model,
        column: str = "text",
        method: Spec = DEFAULT_METHOD,
        *,
        target: Any = None,
        pair: str | None = None,
        words: bool = True,
        batch_size: int = 16,
        **options: Any,
    ) -> Any:
        """Which words made the target? Columns `index`, `token`, `score`, as in `m.attribution(target).to_pandas()`.

        Args:
            model: An instrumented model.
            column: The column of the texts.
            method: As in `ctxmix_hf.explain`.
            target: Whose sources (a word, `"[MASK]"`, `"mean_pool"`, ...); None is `m.attribution()`, the `[CLS]`.
            pair: The column of the second texts.
            words: Sub-words merged to words.
            batch_size: How many texts go through the model at once.
            **options: As in `ctxmix_hf.explain` (`tokenizer`, `max_memory`).
        """
        return self._made(
            lambda texts: explain(model, texts, method, **options).attribution(target),
            column,
            pair,
            words,
            batch_size,
        )

    def attribute(
        self,
        model: Model,
        column: str = "text",
        method: str | AbstractAttribution = "integrated_gradients",
        *,
        pair: str | None = None,
        words: bool = True,
        batch_size: int = 16,
        **options: Any,
    ) -> Any:
        """Scores for a class or a word (`class_index`, `foil`, ... as in `ctxmix_hf.attribute`), same columns."""
        return self._made(
            lambda texts: attribute(model, texts, method, **options),
            column,
            pair,
            words,
            batch_size,
        )

    def _made(self, make: Any, column: str, pair: str | None, words: bool, batch_size: int) -> Any:
        texts, parts = list(self._texts(column, pair)), []
        for start in range(0, len(texts), batch_size):
            made: Attribution = make(texts[start : start + batch_size])
            table = (made.words() if words else made).to_pandas()
            labels = self.frame.index.take(start + table.pop("example").to_numpy())
            parts.append(table.set_axis(labels, axis=0))
        return pandas.concat(parts)

    def _texts(self, column: str, pair: str | None) -> Iterator[Any]:
        columns = [column] if pair is None else [column, pair]
        for name in columns:
            if name not in self.frame.columns:
                raise UnknownNameError.among("column", name, map(str, self.frame.columns))
        if not len(self.frame):
            raise InputError("The frame has no rows: there is no text to explain.")
        for label, row in zip(
            self.frame.index, self.frame[columns].itertuples(index=False, name=None), strict=True
        ):
            for name, cell in zip(columns, row, strict=True):
                if not isinstance(cell, str):
                    raise InputTypeError(
                        f"Row {label!r} has no text in column {name!r} but {type(cell).__name__}: "
                        f"leave it out, df.dropna(subset=[{name!r}])."
                    )
            yield row[0] if pair is None else row
