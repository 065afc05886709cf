"""The maps that are written are the maps that are drawn."""

from tests.viz.conftest import real, small

__all__ = ["real", "small"]
