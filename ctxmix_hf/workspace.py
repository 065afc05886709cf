"""Quantities of one layer that the methods of a call share: each is a function, computed once per layer.

A quantity is written as the function that computes it, under `@computed_once`; whoever calls it first pays, and the
layer forgets everything when it is done (`LayerRecord.release`). Whether the layers are walked during the forward
pass or after it makes no difference to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Workspace:
    """What has been computed of one layer, and for whom.

    Attributes:
        methods: The methods of the running call, so that what several of them need is made in one walk.
    """

    def __init__(self, methods: tuple[object, ...] = ()) -> None:
        self.methods = methods
        self.made: dict[tuple[object, ...], Any] = {}

    def empty(self) -> Workspace:
        """One for other rows of the same layer and the same call."""
        return Workspace(self.methods)

    def clear(self) -> None:
        self.made.clear()
        self.methods = ()


class HasWorkspace(Protocol):
    """A layer, or some rows of one."""

    @property
    def workspace(self) -> Workspace: ...


Layer = TypeVar("Layer", bound=HasWorkspace)
Asked = ParamSpec("Asked")
Made = TypeVar("Made")


def computed_once(
    quantity: Callable[Concatenate[Layer, Asked], Made],
) -> Callable[Concatenate[Layer, Asked], Made]:
    """Compute `quantity(layer, ...)` once per layer and arguments (which must be hashable)."""

    @wraps(quantity)
    def held(layer: Layer, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Made:
        key = (quantity, args, tuple(kwargs.items()))
        made = layer.workspace.made
        if key not in made:
            made[key] = quantity(layer, *args, **kwargs)
        return made[key]  # type: ignore[no-any-return]

    return held
