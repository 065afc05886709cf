"""Families without one softmax matrix over the sequence in every layer, and why."""

from __future__ import annotations

from .rows import text
from .spec import Spec

REFUSED_SPECS: dict[str, tuple[Spec, str]] = {
    "fnet": (text("fnet"), "Fourier mixing, no attention"),
}
