"""What a person types, as the library takes it: a target in a map, a class of a head."""

from __future__ import annotations

from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.tokens import MASKS


def place_of(made: ContextMixingMap, target: str | None) -> int | str | None:
    """A position, a piece or a word; the masked word where nothing is named."""
    if target is None:
        return next((i for i, piece in enumerate(made.tokens[0].pieces) if piece in MASKS), None)
    position = target.lstrip("-").isdigit() and target not in made.tokens[0].shown()
    return int(target) if position else target


def row_of(made: ContextMixingMap, target: str | None) -> Attribution:
    """The row of what `place_of` found."""
    place = place_of(made, target)
    in_pieces = (
        isinstance(place, str)
        and place not in ("mean_pool", "embedding")
        and len(made.position(place)) > 1
    )
    return (
        made.words().attribution(place) if in_pieces else made.attribution(place)
    )  # a word is shown among words


def class_of(name: str | None) -> int | str | None:
    """A number is the class's own number; a label or word stays a name."""
    return int(name) if name is not None and name.isdigit() else name
