"""Every error of the library, each one also the builtin a caller would expect.

CtxmixError
├── NotATransformersModelError (TypeError)      instrument() was given something else
├── UnsupportedModelError (NotImplementedError) the family cannot be decomposed, or a layer left no record
├── UnsupportedMethodError (NotImplementedError) the method needs what this model or record does not have
├── NotInstrumentedError (RuntimeError)         the model was never instrumented
├── RecordError (RuntimeError)                  the forward ran but could not be recorded as asked
├── InputTypeError (TypeError)                  e.g. a text where tensors are expected
├── InputError (ValueError)                     empty, too long, masked wrongly, not finite, ...
├── OptionError (ValueError)                    a method option that does not exist or makes no sense
├── UnknownNameError (LookupError)              a name that is not registered; the message lists what is
├── MissingDependencyError (ImportError)        an optional package is needed; the message names the extra
├── StoreError (RuntimeError)                   a map store is damaged, foreign, locked or stale
│   └── StoreInUseError                         another process or object is writing to it
└── RefusedError (RuntimeError)                 the page refused or stopped a visitor's request: a limit of the server

CtxmixWarning (UserWarning)
├── AlikeRowsWarning                            a row that says nothing of its target
├── UnknownTokensWarning                        the model saw [UNK] in the place of many words
└── RandomWeightsWarning                        what is explained was never trained
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CtxmixError(Exception):
    """Base of all errors raised on purpose by ctxmix_hf."""


class NotATransformersModelError(CtxmixError, TypeError): ...


class UnsupportedModelError(CtxmixError, NotImplementedError): ...


class UnsupportedMethodError(CtxmixError, NotImplementedError): ...


class NotInstrumentedError(CtxmixError, RuntimeError): ...


class RecordError(CtxmixError, RuntimeError): ...


class InputTypeError(CtxmixError, TypeError): ...


class InputError(CtxmixError, ValueError): ...


class OptionError(CtxmixError, ValueError):
    @classmethod
    def among(cls, option: str, value: object, choices: Iterable[object]) -> OptionError:
        """`norm must be 1 or 2, got 3.`"""
        *others, last = map(repr, choices)
        listed = f"{', '.join(others)} or {last}" if others else last
        return cls(f"{option} must be {listed}, got {value!r:.60}.")


class UnknownNameError(CtxmixError, LookupError):
    """A name that is not in a registry; knows how to suggest the nearest one."""

    @classmethod
    def among(cls, what: str, name: object, known: Iterable[str]) -> UnknownNameError:
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return cls(f"Unknown {what} {name!r}.{hint} Available: {', '.join(names)}.")


class MissingDependencyError(CtxmixError, ImportError):
    """An optional dependency is absent; `extra` is the pip extra that brings it."""

    @classmethod
    def of(cls, package: str, extra: str) -> MissingDependencyError:
        return cls(
            f"This needs {package}, which is not installed: pip install 'ctxmix-hf[{extra}]'."
        )


class StoreError(CtxmixError, RuntimeError): ...


class StoreInUseError(StoreError): ...


class RefusedError(CtxmixError, RuntimeError): ...


class CtxmixWarning(UserWarning):
    """Base of all warnings given on purpose by ctxmix_hf: the number is right, but perhaps not the
    one that is wanted.
    """


class AlikeRowsWarning(CtxmixWarning): ...


class UnknownTokensWarning(CtxmixWarning): ...


class RandomWeightsWarning(CtxmixWarning): ...


def first_line(error: BaseException, silent: str = "") -> str:
    """What an error says first; where it says nothing, `silent` or else its class."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), silent or type(error).__name__)
