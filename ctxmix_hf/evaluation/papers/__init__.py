"""The five papers' tables and figures under their own numbers, on any model: `reproduce("out/")`, `ctxmix papers`."""

from ctxmix_hf.evaluation.papers import abnar, alti, brunner, globenc, value_zeroing
from ctxmix_hf.evaluation.papers.items import ITEMS, PAPERS, Item
from ctxmix_hf.evaluation.papers.page import written
from ctxmix_hf.evaluation.papers.running import PapersReport, reproduce
from ctxmix_hf.evaluation.papers.tuning import Tuned, tune

__all__ = [
    "ITEMS",
    "PAPERS",
    "Item",
    "PapersReport",
    "Tuned",
    "abnar",
    "alti",
    "brunner",
    "globenc",
    "reproduce",
    "tune",
    "value_zeroing",
    "written",
]
