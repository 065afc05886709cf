"""`.csv`: the long table of `tables.py`."""

from __future__ import annotations

from ctxmix_hf.formats import FORMATS, Format

FORMATS.register(".csv")(Format(lambda result, path: result.to_csv(path)))
