"""One list of names: what is registered here feeds the model call, the CLI, the Space, the docs and the tests."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ctxmix_hf.errors import OptionError, UnknownNameError

Item = TypeVar("Item")

DEFAULT_METHOD = "alti"
"""The method where none is named: `explain`, `similarity`, the pipeline, the command line and the page."""


def import_folder(package: str, path: Iterable[str]) -> None:
    """Import every module of a package (its `__name__` and `__path__`), so that what stands in one of its files is
    registered: adding a thing is adding a file.
    """
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")


class Registry(Generic[Item]):
    """Names to things, in the order they were registered."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._items: dict[str, Item] = {}

    def register(self, name: str) -> Callable[[Item], Item]:
        def add(item: Item) -> Item:
            if name in self._items:
                raise OptionError(f"A {self.what} named {name!r} is registered already.")
            self._items[name] = item
            return item

        return add

    def unregister(self, name: str) -> None:
        self._items.pop(name, None)

    def get(self, name: str) -> Item:
        if name not in self._items:
            raise UnknownNameError.among(self.what, name, self._items)
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def names(self) -> list[str]:
        return list(self._items)


class Views:
    """`kind.view` -> the function that makes it, imported when it is first asked for.

    A result knows what it can be asked for (its text, its page, its rows), not who draws or writes
    it: `viz/` and `formats/` enter their functions here, and results look them up by name.
    """

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}
        self._made: dict[str, Callable[..., Any]] = {}

    def add(self, package: str, homes: dict[str, str]) -> None:
        """Enter `"map.text": "terminal:map_text"`: module (below `package`) and function."""
        self._homes |= {name: f"{package}.{home}" for name, home in homes.items()}

    def get(self, name: str) -> Callable[..., Any]:
        if name not in self._made:
            if name not in self._homes:
                kind, _, view = name.partition(".")
                offered = [
                    other.partition(".")[2] for other in self._homes if other.startswith(f"{kind}.")
                ]
                raise OptionError(
                    f"A {kind} has no {view!r}: it can be had as {', '.join(sorted(offered)) or 'nothing'}."
                )
            module, _, function = self._homes[name].partition(":")
            self._made[name] = getattr(importlib.import_module(module), function)
        return self._made[name]

    def names(self) -> list[str]:
        return list(self._homes)


VIEWS = Views()
