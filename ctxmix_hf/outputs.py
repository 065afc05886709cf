"""The model's own output class, extended by two fields: `decomposition` and `context_mixing`.

A derived class per output class, made once and importable by name from this module, so that indexing, unpacking,
`to_tuple`, pytrees and pickle (also in a fresh process) treat it as the transformers output it is.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

from transformers.utils.generic import ModelOutput

PREFIX = "ContextMixing"
_SEPARATOR = "__of__"
FIELDS = ("decomposition", "context_mixing")


def extended_class(cls: type) -> type:
    """`ContextMixing<name>`, a subclass of `cls` with the two fields."""
    if issubclass(cls, ModelOutput) and hasattr(cls, "decomposition"):
        return cls
    name = f"{PREFIX}{cls.__name__}{_SEPARATOR}{cls.__module__.replace('.', '__dot__')}"
    here = sys.modules[__name__].__dict__
    if name not in here:
        fields = [(field, Any, dataclasses.field(default=None)) for field in FIELDS]
        here[name] = dataclasses.make_dataclass(
            name, fields, bases=(cls,), namespace={"__module__": __name__, "__doc__": cls.__doc__}
        )
    made = here[name]
    assert isinstance(made, type)
    return made


def __getattr__(name: str) -> Any:
    """Unpickling in a fresh process asks for a class that has not been made yet."""
    if name.startswith(PREFIX) and _SEPARATOR in name:
        base, module = name.removeprefix(PREFIX).split(_SEPARATOR)
        return extended_class(
            getattr(importlib.import_module(module.replace("__dot__", ".")), base)
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def extend(output: Any, **fields: Any) -> Any:
    """The same output with `fields` added; a plain tuple gets them at its end."""
    present = {key: value for key, value in fields.items() if value is not None}
    if isinstance(output, tuple):
        return (*output, *present.values())
    if not isinstance(output, ModelOutput):
        raise TypeError(f"cannot extend a {type(output).__name__}")
    values = {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}  # type: ignore[arg-type]
    return extended_class(type(output))(**values, **present)
