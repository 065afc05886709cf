"""`.tex`, coloured text for papers: `\\colorbox` per token, needs only the xcolor package."""

from __future__ import annotations

from ctxmix_hf.formats import FORMATS, Format
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.base import written
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.targets import Target as MapTarget
from ctxmix_hf.viz.colours import ink, signed_shades
from ctxmix_hf.viz.payload import check_not_empty, finite, visible

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def escape(text: str) -> str:
    return "".join(_ESCAPES.get(c, c) for c in text)


def attribution_latex(a: Attribution, example: int = 0, cmap: str = "blues") -> str:
    """One line of coloured boxes."""
    one = a[example]
    values = finite(one.scores[0]).tolist()
    boxes = []
    for piece, colour in zip(one.tokens[0].shown(), signed_shades(values, cmap), strict=True):
        text = escape(visible(piece))
        pen = text if ink(colour)[0] < 128 else rf"\textcolor{{white}}{{{text}}}"
        boxes.append(rf"\colorbox[RGB]{{{','.join(map(str, colour))}}}{{\strut {pen}}}")
    return (
        "% needs \\usepackage{xcolor}\n{\\setlength{\\fboxsep}{1pt}\\raggedright\n"
        + "\n".join(boxes)
        + "\n\\par}\n"
    )


def map_latex(
    m: ContextMixingMap,
    target: MapTarget = None,
    layer: int = -1,
    example: int = 0,
    words: bool = True,
    cmap: str = "blues",
) -> str:
    """The row of a target as coloured text."""
    check_not_empty(m)
    one = m[example]
    attribution = one.attribution(target, layer)
    return attribution_latex(attribution.words() if words else attribution, 0, cmap)


FORMATS.register(".tex")(Format(lambda result, path: written(result.view("latex"), path)))
