"""One list of names: what is registered here feeds the model call, the CLI, the Space, the docs and the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ctxmix_hf.errors import OptionError, UnknownNameError

Item = TypeVar("Item")


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
