"""`.png`, `.pdf`, `.svg` and what else matplotlib writes: the result's figure."""

from __future__ import annotations

from ctxmix_hf.formats import FORMATS, Format

for _suffix in (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".eps"):
    FORMATS.register(_suffix)(Format(lambda result, path: result.plot().savefig(path)))
