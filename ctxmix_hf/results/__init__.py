"""What calls give back: maps, attributions, ledgers, similarities. They know nothing of drawing or files."""

from __future__ import annotations

from ctxmix_hf.registry import VIEWS

VIEWS.add(__name__, {"map.difference": "differences:subtracted"})
