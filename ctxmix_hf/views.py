"""How results show, save and export themselves; the drawing itself lives in viz/ and is imported when used."""

from __future__ import annotations


class MapViews:
    """Mixed into `ContextMixingMap`."""


class AttributionViews:
    """Mixed into `Attribution`."""
