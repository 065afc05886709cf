"""What every result can do: show itself, be written, be read back.

The drawing is in `viz/`, the files in `formats/`; a result finds both by name (`registry.VIEWS`) when
it is asked, so neither is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ctxmix_hf.registry import VIEWS

Kind = TypeVar("Kind", bound="Result")


class Result:
    """Base of `ContextMixingMap`, `Attribution`, `Ledger`, `Similarity`, `Ranking` and `MapDifference`."""

    kind: ClassVar[str]  # what its views are entered under: "map", "attribution", ...

    def view(self, name: str, *args: Any, **options: Any) -> Any:
        """One of the ways this kind of result can be drawn or written (`VIEWS.names()` lists them)."""
        return VIEWS.get(f"{self.kind}.{name}")(self, *args, **options)

    def __str__(self) -> str:
        """For the terminal (colours unless NO_COLOR is set)."""
        return self.view("text")  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:
        return self.view("fragment")  # type: ignore[no-any-return]

    def show(self, **display: Any) -> None:
        """The picture in a notebook, the terminal's text elsewhere; `display` is what the picture takes."""
        show_html(self.view("fragment", **display), str(self))

    def to_html(self, path: str | Path | None = None, *args: Any, **options: Any) -> Any:
        """One page that opens by double click, without network.

        Args:
            path: The file to write; None returns the text itself.
            *args: What the picture takes (`example`, ...).
            **options: The same by name (`layer`, `unit`, `cmap`, `top`, ...).
        """
        return written(self.view("page", *args, **options), path)

    def plot(self, *args: Any, **options: Any) -> Any:
        """A matplotlib figure (extra `plot`). Options, as far as the kind has them: layer, scope,
        example, words, top, cmap, title.
        """
        return self.view("plot", *args, **options)

    def to_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The schema of `formats/schema.py` as plain Python."""
        return self.view("dict", *args, **options)  # type: ignore[no-any-return]

    def to_json(self, path: str | Path | None = None, *args: Any, **options: Any) -> Any:
        """Versioned JSON that `from_json` and `load` read back exactly; `indent` as in `json.dumps`."""
        return written(self.view("json", *args, **options), path)

    @classmethod
    def from_json(cls: type[Kind], text: str | Path, **limits: int) -> Kind:
        """From JSON text, or a path to it. `max_bytes=...` is the most that is read (4 GiB)."""
        return VIEWS.get(f"{cls.kind}.from_json")(text, f"ctxmix.{cls.kind}", **limits)  # type: ignore[no-any-return]

    def to_csv(self, path: str | Path | None = None, raw: bool = False) -> Any:
        """A long table, layers counted from 1. Tokens that look like a formula are quoted, unless `raw`."""
        return written(self.view("csv", raw), path)

    def to_pandas(self) -> Any:
        """A data frame with the columns of the CSV file."""
        return self.view("pandas")

    def to_polars(self) -> Any:
        """The same as a polars frame (extra `interop`)."""
        return self.view("polars")

    def save(self, path: str | Path) -> Path:
        """By suffix: .json, .npz, .safetensors (read back with `load`), .csv, .html, .md, .tex, .png, .pdf, .svg."""
        return self.view("save", path)  # type: ignore[no-any-return]

    @classmethod
    def load(cls: type[Kind], path: str | Path, **limits: int) -> Kind:
        """From a .json, .npz or .safetensors file, checked. `max_bytes=...` is the most that is read (4 GiB)."""
        return VIEWS.get(f"{cls.kind}.load")(path, f"ctxmix.{cls.kind}", **limits)  # type: ignore[no-any-return]


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    try:
        from IPython import get_ipython  # type: ignore[import-not-found]
    except ImportError:
        return False
    return get_ipython() is not None and "IPKernelApp" in get_ipython().config


def show_html(html: str, text: str, live: dict[str, Any] | None = None) -> None:
    """In a notebook the picture (`live` where it has what that needs), elsewhere the terminal's."""
    if not in_notebook():
        print(text)
        return
    from IPython.display import display  # type: ignore[import-not-found]

    display({"text/plain": text, **(live or {}), "text/html": html}, raw=True)


def written(text: str, path: str | Path | None) -> Any:
    """The text itself, or the path it was written to."""
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)
