"""`.html`: the picture as one page that opens by double click."""

from __future__ import annotations

from ctxmix_hf.formats import FORMATS, Format

FORMATS.register(".html")(Format(lambda result, path: result.to_html(path)))
