"""Colour maps shared by terminal, text and canvas: monotone in lightness, readable for the colour-blind."""

from __future__ import annotations

from ctxmix_hf.errors import UnknownNameError

RGB = tuple[int, int, int]

POSITIVE, NEGATIVE, NEUTRAL = "#2f7fbc", "#d9781e", "#8a8f98"
UNDER_TEXT = 0.6  # the most of a colour that dark and light letters can be read on

CANVAS_MAPS = ("blues", "cividis", "viridis", "magma", "greys")
_STOPS = {
    "blues": ("f7fafd", "d3e3f3", "94c0e2", "4391c9", "135aa3", "062a5e"),
    "cividis": ("00204d", "31446b", "666970", "958f78", "cbba69", "ffea46"),
    "viridis": ("440154", "414487", "2a788e", "22a884", "7ad151", "fde725"),
    "magma": ("000004", "3b0f70", "8c2981", "de4968", "fe9f6d", "fcfdbf"),
    "greys": ("ffffff", "d9d9d9", "a6a6a6", "737373", "404040", "000000"),
    "signed": ("8a3d00", "d9781e", "f6c08a", "f7f7f7", "9cc7e4", "2f7fbc", "0a3d73"),
}


def stops(name: str) -> tuple[str, ...]:
    if name not in _STOPS:
        raise UnknownNameError.among("colour map", name, _STOPS)
    return _STOPS[name]


def shade(value: float, name: str = "blues") -> RGB:
    """The colour of a value between 0 and 1 (for `signed`: 0.5 is zero)."""
    colours = [(int(h[:2], 16), int(h[2:4], 16), int(h[4:], 16)) for h in stops(name)]
    place = min(1.0, max(0.0, value)) * (len(colours) - 1)
    k = min(len(colours) - 2, int(place))
    f = place - k
    low, high = colours[k], colours[k + 1]
    return (
        round(low[0] * (1 - f) + high[0] * f),
        round(low[1] * (1 - f) + high[1] * f),
        round(low[2] * (1 - f) + high[2] * f),
    )


def tint(value: float, top: float, most: float = 1.0) -> tuple[str, float]:
    """(colour, opacity) of a signed value on any ground: zero is the ground itself, in both themes."""
    share = min(1.0, abs(value) / top) if top else 0.0
    return (POSITIVE if value >= 0 else NEGATIVE), most * share


def ground(value: float, top: float) -> str:
    """The same as CSS, for what letters of the page's own colour stand on."""
    colour, alpha = tint(value, top, UNDER_TEXT)
    return f"{colour}{round(255 * alpha):02x}"


def ink(colour: RGB) -> RGB:
    """Black or white, whichever contrasts more with `colour` (WCAG's luminance): at least 4.5 to 1."""
    light = [
        v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4
        for v in (c / 255 for c in colour)
    ]
    bright = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.179
    return (0, 0, 0) if bright else (255, 255, 255)


def signed_shades(values: list[float], name: str = "blues") -> list[RGB]:
    """Colours of scores: one-sided from 0 to the largest, two-sided around 0 when some are negative."""
    top = max((abs(v) for v in values), default=0.0) or 1.0
    if min(values, default=0.0) < 0:
        return [shade(0.5 + 0.5 * v / top, "signed") for v in values]
    return [shade(v / top, name) for v in values]


def css(colour: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
