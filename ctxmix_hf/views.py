"""How results show, save and export themselves; the drawing itself lives in viz/ and is imported when used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ctxmix_hf.maps import Attribution, ContextMixingMap
    from ctxmix_hf.viz.difference import MapDifference

PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".eps")


def show_html(html: str, text: str) -> None:
    """In a notebook the picture, elsewhere the terminal's."""
    try:
        from IPython import get_ipython  # type: ignore[import-not-found]
        from IPython.display import HTML, display  # type: ignore[import-not-found]
    except ImportError:
        get_ipython = None
    if get_ipython is None or get_ipython() is None or "IPKernelApp" not in get_ipython().config:
        print(text)
    else:
        display(HTML(html))


def save_by_suffix(result: Any, path: str | Path) -> Path:
    target = Path(path)
    if target.suffix in PICTURES:
        result.plot().savefig(target)
        return target
    if target.suffix in (".html", ".csv"):
        return Path(result.to_html(target) if target.suffix == ".html" else result.to_csv(target))
    from ctxmix_hf.viz import export

    return export.save(result, target)


def written(text: str, path: str | Path | None) -> Any:
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


class MapViews:
    """Mixed into `ContextMixingMap`."""

    @property
    def _me(self) -> ContextMixingMap:
        return cast("ContextMixingMap", self)

    def __str__(self) -> str:
        """A small heatmap for the terminal (colours unless NO_COLOR is set)."""
        from ctxmix_hf.viz.terminal import map_text

        return map_text(self._me)

    def _repr_html_(self) -> str:
        from ctxmix_hf.viz.canvas import map_fragment

        return map_fragment(self._me)

    def show(self, example: int = 0, **display: Any) -> None:
        """The heatmap of one example; `display` are the widget's options (`layer=2`, `unit="piece"`, `cmap="viridis"`, ...)."""
        from ctxmix_hf.viz.canvas import map_fragment
        from ctxmix_hf.viz.terminal import map_text

        show_html(map_fragment(self._me, example, **display), map_text(self._me[example]))

    def to_html(self, path: str | Path | None = None, example: int = 0, **display: Any) -> Any:
        """One file that opens by double click, without network; the text itself when no path is given."""
        from ctxmix_hf.viz.canvas import map_page

        return written(map_page(self._me, example, **display), path)

    def to_view(self, example: int = 0, **display: Any) -> dict[str, Any]:
        """What the browser widget draws, as JSON can hold it."""
        from ctxmix_hf.viz.payload import payload

        return payload(self._me, example, **display)

    # ---- static figures (extra `plot`) ------------------------------------------------------------------------
    def plot(self, layer: int = -1, **options: Any) -> Any:
        """Targets by sources as a matplotlib figure; options: scope, example, words, cmap, title."""
        from ctxmix_hf.viz.figures import plot_map

        return plot_map(self._me, layer, **options)

    def plot_layers(self, target: Any = "[CLS]", **options: Any) -> Any:
        """Layers by tokens for one target."""
        from ctxmix_hf.viz.figures import plot_layers

        return plot_layers(self._me, target, **options)

    def plot_grid(self, **options: Any) -> Any:
        """All layers side by side on one scale."""
        from ctxmix_hf.viz.figures import plot_grid

        return plot_grid(self._me, **options)

    def plot_image(self, image: Any, target: Any = 0, **options: Any) -> Any:
        """A vision model's map laid over the picture's patches."""
        from ctxmix_hf.viz.signals import plot_image

        return plot_image(self._me, image, target, **options)

    def plot_speech(self, waveform: Any, sampling_rate: int = 16000, **options: Any) -> Any:
        """A speech model's map under the spectrogram."""
        from ctxmix_hf.viz.signals import plot_speech

        return plot_speech(self._me, waveform, sampling_rate, **options)

    def to_latex(self, target: Any = "[CLS]", layer: int = -1, **options: Any) -> str:
        """The sources of a target as coloured text (needs xcolor)."""
        from ctxmix_hf.viz.latex import map_latex

        return map_latex(self._me, target, layer, **options)

    # ---- export -----------------------------------------------------------------------------------------------
    def to_dict(self, with_input: bool = True) -> dict[str, Any]:
        """The JSON schema of viz/export.py as plain Python."""
        from ctxmix_hf.viz import export

        return export.to_dict(self._me, with_input)

    def to_json(self, path: str | Path | None = None, with_input: bool = True, indent: int | None = None) -> Any:
        """Versioned JSON that `from_json` reads back exactly."""
        from ctxmix_hf.viz import export

        return written(export.to_json(self._me, with_input, indent), path)

    @classmethod
    def from_json(cls, text: str | Path) -> Any:
        from ctxmix_hf.viz import export

        return export.from_json(text, "ctxmix.map")

    def to_csv(self, path: str | Path | None = None) -> Any:
        """Long table: example, scope, layer, target, source, value."""
        from ctxmix_hf.viz.tables import to_csv

        return written(to_csv(self._me), path)

    def to_pandas(self) -> Any:
        from ctxmix_hf.viz.tables import to_pandas

        return to_pandas(self._me)

    def to_xarray(self, example: int = 0) -> Any:
        from ctxmix_hf.viz.tables import to_xarray

        return to_xarray(self._me, example)

    def to_bertviz(self, example: int = 0) -> dict[str, Any]:
        """`bertviz.head_view(**m.to_bertviz())`."""
        from ctxmix_hf.viz.bridges import to_bertviz

        return to_bertviz(self._me, example)

    def to_inseq(self, layer: int = -1, example: int = 0) -> Any:
        """`m.to_inseq().show()`."""
        from ctxmix_hf.viz.bridges import to_inseq

        return to_inseq(self._me, layer, example)

    def save(self, path: str | Path) -> Path:
        """By suffix: .json, .npz, .safetensors (read back with `load`), .csv, .html, .png, .pdf, .svg."""
        return save_by_suffix(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Any:
        from ctxmix_hf.viz import export

        return export.load(path, "ctxmix.map")

    # ---- parts and differences --------------------------------------------------------------------------------
    def layer(self, layer: int) -> ContextMixingMap:
        """The map of one layer (0 is the first, -1 the last)."""
        from ctxmix_hf.viz.slicing import one_layer

        return one_layer(self._me, layer)

    def token(self, target: Any, layer: int = -1, scope: Any = "input") -> Attribution:
        """The row of a token: the same as `attribution(target, layer, scope)`."""
        return self._me.attribution(target, layer, scope)

    def word(self, word: str, layer: int = -1, scope: Any = "input") -> Attribution:
        """The row of a whole word, over words."""
        return self._me.words().attribution(word, layer, scope)

    def select(self, *tokens: Any) -> ContextMixingMap:
        """Only these tokens (positions or pieces) on both axes; values stay as they are."""
        from ctxmix_hf.viz.slicing import some_tokens

        return some_tokens(self._me, self._me.position(list(tokens)))

    def difference(self, other: ContextMixingMap, example: int = 0, *, row_shares: bool = False) -> MapDifference:
        """`self - other` with aligned tokens: minimal pairs, base against fine-tuned."""
        from ctxmix_hf.viz.difference import difference

        return difference(other, self._me, example, row_shares=row_shares)

    def __sub__(self, other: Any) -> MapDifference:
        from ctxmix_hf.maps import ContextMixingMap

        return self.difference(other) if isinstance(other, ContextMixingMap) else NotImplemented


class AttributionViews:
    """Mixed into `Attribution`."""

    @property
    def _me(self) -> Attribution:
        return cast("Attribution", self)

    def __str__(self) -> str:
        from ctxmix_hf.viz.terminal import attribution_text

        return attribution_text(self._me)

    def _repr_html_(self) -> str:
        from ctxmix_hf.viz.canvas import attribution_fragment

        return attribution_fragment(self._me)

    def show(self) -> None:
        """Coloured text in a notebook, the terminal's elsewhere."""
        show_html(self._repr_html_(), str(self))

    def to_html(self, path: str | Path | None = None, cmap: str = "blues") -> Any:
        from ctxmix_hf.viz.canvas import attribution_page

        return written(attribution_page(self._me, cmap), path)

    def plot(self, **options: Any) -> Any:
        """One bar per token, as a matplotlib figure."""
        from ctxmix_hf.viz.figures import plot_attribution

        return plot_attribution(self._me, **options)

    def to_latex(self, example: int = 0, cmap: str = "blues") -> str:
        from ctxmix_hf.viz.latex import attribution_latex

        return attribution_latex(self._me, example, cmap)

    def to_dict(self) -> dict[str, Any]:
        from ctxmix_hf.viz import export

        return export.to_dict(self._me)

    def to_json(self, path: str | Path | None = None, indent: int | None = None) -> Any:
        from ctxmix_hf.viz import export

        return written(export.to_json(self._me, indent=indent), path)

    @classmethod
    def from_json(cls, text: str | Path) -> Any:
        from ctxmix_hf.viz import export

        return export.from_json(text, "ctxmix.attribution")

    def to_csv(self, path: str | Path | None = None) -> Any:
        from ctxmix_hf.viz.tables import to_csv

        return written(to_csv(self._me), path)

    def to_pandas(self) -> Any:
        from ctxmix_hf.viz.tables import to_pandas

        return to_pandas(self._me)

    def save(self, path: str | Path) -> Path:
        return save_by_suffix(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Any:
        from ctxmix_hf.viz import export

        return export.load(path, "ctxmix.attribution")

    def words(self) -> Attribution:
        """Sub-words merged to words: scores are summed."""
        from ctxmix_hf.viz.slicing import attribution_words

        return attribution_words(self._me)

    def top(self, k: int = 5, example: int = 0) -> list[tuple[str, float]]:
        """The k tokens with the largest scores (by size), with their scores."""
        from ctxmix_hf.viz.slicing import top

        return top(self._me, k, example)

    def rank_correlation(self, other: Attribution) -> float:
        """Spearman's correlation with another attribution of the same tokens (first example); NaN if one is constant."""
        from ctxmix_hf.viz.slicing import rank_correlation

        return rank_correlation(self._me, other)
