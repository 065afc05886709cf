"""Parts of speech for `mixing_pos` and the papers' figures of it: HanTa's English model, where it is installed."""

from __future__ import annotations

import importlib.util
import string
from collections.abc import Callable

from ctxmix_hf.errors import MissingDependencyError

Tagger = Callable[[list[str]], list[str]]


def has_hanta() -> bool:
    return importlib.util.find_spec("HanTa") is not None


def hanta() -> Tagger:
    """HanTa's small English tagger (Wartena 2019), for `evaluate("mixing_pos", pos_tags=hanta())`.

    Its model is a pickle inside the package HanTa: opening it trusts that package as importing it does.

    Returns:
        A function from a list of words to their tags (the British National Corpus's: NN1, VVD, AJ0, AT0, ...).

    Raises:
        MissingDependencyError: HanTa is not installed.

    Example:
        >>> hanta()(["The", "keys", "are", "old", "."])
        ['AT0', 'NN2', 'VBB', 'AJ0', 'PUN']
    """
    if not has_hanta():
        raise MissingDependencyError.of("HanTa", "pos")
    from HanTa.HanoverTagger import HanoverTagger

    made = HanoverTagger("morphmodel_en.pgz")
    bare = lambda word: word.strip(string.punctuation) or word  # "old." is tagged as "old"
    return lambda words: [str(tag) for _, _, tag in made.tag_sent([bare(w) for w in words])]
