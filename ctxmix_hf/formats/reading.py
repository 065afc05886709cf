"""The one reader of result files, whatever their format: JSON, npz, safetensors (written by `export`).

A file is foreign until it is read: sizes are compared before memory is taken, every part is checked
against every other one, and whatever is wrong is an `InputError`. No format runs code, and no array
is inflated that its header does not announce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import CtxmixError, InputError, first_line
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.results.maps import AGGREGATIONS, ContextMixingMap
from ctxmix_hf.results.matches import BIAS_COLUMN, BIAS_ROW, Pairs, Similarity
from ctxmix_hf.text.tokens import Tokens, checked_tokens

VERSION = 2  # 1: `meta.layer` counted from 0
MAX_HEADER = 256 << 20
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_NOTES = {
    **DTYPES,
    "bool": torch.bool,
    **{name: getattr(torch, name) for name in ("uint8", "int8", "int16", "int32", "int64")},
}
AXES = {
    "layers": "BLTT",
    "heads": "BLHTT",
    "input": "BLTT",
    "scores": "BT",
    "value": "B",
    "lines": "BK",
    "token_lines": "BJT",
    "rows": "BMT",
    "above": "BM",
    "components": "BLCT",
    "edges": "BLTT",
    "scores_a": "X",
    "scores_b": "Y",
    "pairs": "XY",
    "pair_lines": "Z",
}
TENSORS = {
    "ctxmix.map": ("layers", "heads", "input"),
    "ctxmix.attribution": ("scores",),
    "ctxmix.similarity": ("scores_a", "scores_b", "pairs", "pair_lines"),
    "ctxmix.ledger": (
        "value",
        "scores",
        "lines",
        "token_lines",
        "rows",
        "above",
        "components",
        "edges",
    ),
}
_TOKEN_PARTS = ("pieces", "words", "special", "text", "spans", "ids", "unknown", "parts")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Shape = tuple[int, ...]
Held = Mapping[
    str, tuple[Shape, Callable[[], Any]]
]  # by name: the shape that was announced, and how to get the values


@contextmanager
def in_one_sentence(what: str) -> Iterator[None]:
    """Whatever a parser, an archive or a shape raises is damage."""
    try:
        yield
    except CtxmixError as error:
        raise InputError(f"{what} cannot be read: {error}") from error.__cause__
    except RecursionError:
        raise InputError(f"{what} cannot be read: it is nested too deeply.") from None
    except Exception as error:  # a foreign file: there is no list of what its parsers may raise
        reason = f"{type(error).__name__}: {first_line(error, 'no reason given')}"
        raise InputError(
            f"{what} is damaged, or is not a JSON, npz or safetensors file of a result ({reason:.140})."
        ) from error


def require_size(size: int, most: int) -> None:
    if size > most:
        raise InputError(
            f"it has {size:,} bytes, at most {most:,} are read. Pass max_bytes={size} if you trust it."
        )


# ---- parts: do they fit
# -------------------------------------------------------------------------------------------------
def build(header: Any, held: Held, schema: str, max_bytes: int) -> Any:
    """The result, once everything about it was compared."""
    if not isinstance(header, dict) or header.get("schema") != schema:
        found = header.get("schema") if isinstance(header, dict) else type(header).__name__
        raise InputError(f"this is no {schema} file: its schema is {found!r:.80}.")
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise InputError(f"its version is {version!r:.40}, expected {VERSION}.")
    if version > VERSION:
        raise InputError(
            f"it has version {version}, newer than this library reads ({VERSION}): upgrade ctxmix-hf."
        )
    if schema == "ctxmix.similarity":
        return _similarity(header, held, max_bytes)
    text = {
        name: _text(header, name)
        for name in ("method", "dtype", "aggregation" if schema == "ctxmix.map" else "target")
    }
    if text["dtype"] not in DTYPES:
        raise InputError(
            f"its dtype is {text['dtype']!r:.40}, expected one of {', '.join(DTYPES)}."
        )
    mask, tokens = _mask(header.get("mask")), _tokens(header.get("tokens"))
    if len(tokens) != len(mask) or any(len(item) != mask.shape[1] for item in tokens):
        raise InputError(
            f"it has the tokens of {[len(item) for item in tokens][:8]} places for a mask of shape {tuple(mask.shape)}."
        )
    sizes = {"B": mask.shape[0], **({"T": mask.shape[1]} if len(mask) else {})}
    for name in (name for name in TENSORS[schema] if name in held):
        _fit(name, held[name][0], sizes)
    require_size(
        sum(8 * math.prod(held[name][0]) for name in TENSORS[schema] if name in held), max_bytes
    )
    made = {
        name: _values(held[name], DTYPES[text["dtype"]]) if name in held else None
        for name in TENSORS[schema]
    }
    mask = mask if len(mask) else torch.zeros(0, sizes.get("T", 0), dtype=torch.bool)
    meta = _meta(header.get("meta"))
    if (
        version < 2
        and "class_index" not in meta
        and type(meta.get("layer")) is int
        and meta["layer"] >= 0
    ):
        meta["layer"] = layer_number(meta["layer"])
    if schema == "ctxmix.attribution":
        if made["scores"] is None:
            raise InputError("it has no scores.")
        if "scope" in meta and (
            meta["scope"] not in ("input", "layer") or type(meta.get("layer")) is not int
        ):
            raise InputError("it is a row of a map and does not say of which layer and scope.")
        return Attribution(made["scores"], tokens, mask, text["method"], text["target"], meta)
    if schema == "ctxmix.ledger":
        return _ledger(header, made, tokens, mask, text, meta)
    residual = header.get("residual")
    if text["aggregation"] not in AGGREGATIONS or not (
        residual is None or (_is_number(residual) and 0 <= residual <= 1)
    ):
        raise InputError(
            f"aggregation must be one of {', '.join(AGGREGATIONS)} and residual null or from 0 to 1, got "
            f"{text['aggregation']!r:.40} and {residual!r:.40}."
        )
    if made["layers"] is None and made["input"] is None:
        raise InputError("it has neither layers nor input.")
    return ContextMixingMap(
        method=text["method"],
        layers=made["layers"],
        heads=made["heads"],
        given_input=made["input"],
        mask=mask,
        tokens=tokens,
        aggregation=text["aggregation"],
        residual=residual,
        meta=meta,
    )


def _similarity(header: dict[str, Any], held: Held, max_bytes: int) -> Similarity:
    sizes: dict[str, int] = {}
    for name in (name for name in TENSORS["ctxmix.similarity"] if name in held):
        _fit(name, held[name][0], sizes)
    if "scores_a" not in held or "scores_b" not in held:
        raise InputError("it has no scores.")
    require_size(sum(8 * math.prod(shape) for shape, _ in held.values()), max_bytes)
    numbers = {name: header.get(name) for name in ("cosine", "gap")}
    if not _is_number(numbers["cosine"]) or not (
        numbers["gap"] is None or _is_number(numbers["gap"])
    ):
        raise InputError("cosine or gap is not a number.")
    for name, value in numbers.items():
        _require_finite(name, torch.tensor(float(value or 0)))
    sides = []
    for name in ("a", "b"):
        part = header.get(f"side_{name}")
        if not isinstance(part, dict):
            raise InputError(f"side_{name} is missing.")
        shape, read = held[f"scores_{name}"]
        own: Held = {"scores": ((1, *shape), lambda read=read: read().reshape(1, -1))}  # type: ignore[misc]
        sides.append(build(part, own, "ctxmix.attribution", max_bytes))
        _require_finite(f"scores_{name}", sides[-1].scores)
    both = [str(header[f"side_{name}"]["dtype"]) for name in ("a", "b")]
    if both[0] != both[1]:
        raise InputError(f"its sides are in {both[0]} and {both[1]}, expected one precision.")
    dtype = DTYPES[both[0]]
    shapes = header.get("line_shapes")
    if not isinstance(shapes, dict) or not all(
        isinstance(v, list) and all(type(n) is int and n >= 0 for n in v) for v in shapes.values()
    ):
        raise InputError("line_shapes is not a table of shapes.")
    pairs = None
    if "pairs" in held:
        flat = (
            _values(held["pair_lines"], dtype)
            if "pair_lines" in held
            else torch.zeros(0, dtype=dtype)
        )
        lengths = [math.prod(shape) for shape in shapes.values()]
        if sum(lengths) != len(flat):
            raise InputError(
                f"its lines hold {len(flat)} numbers where {sum(lengths)} are announced."
            )
        lines = {
            name: part.reshape(shape)
            for (name, shape), part in zip(shapes.items(), flat.split(lengths), strict=True)
        }
        pairs = Pairs(_values(held["pairs"], dtype), lines)
        _require_finite("pairs", pairs.matrix, flat)
        expected = {BIAS_COLUMN: pairs.matrix.shape[:1], BIAS_ROW: pairs.matrix.shape[1:]}
        found = {name: lines[name].shape for name in expected if name in lines}
        if found and found != expected:
            raise InputError(
                f"its lines {', '.join(found)} do not fit its {tuple(pairs.matrix.shape)} pairs: "
                f"expected {BIAS_COLUMN} and {BIAS_ROW}, a number for each token."
            )
    return Similarity(
        float(header["cosine"]),
        sides[0],
        sides[1],
        _text(header, "pooling"),
        bool(header.get("assumed")),
        _text(header, "score"),
        numbers["gap"],
        pairs,
        _meta(header.get("meta")),
    )


def _ledger(
    header: dict[str, Any],
    made: dict[str, Any],
    tokens: list[Tokens],
    mask: Tensor,
    text: dict[str, str],
    meta: dict[str, Any],
) -> Ledger:
    missing = next(
        (name for name in ("value", "scores", "rows", "above", "components") if made[name] is None),
        None,
    )
    if missing is not None:
        raise InputError(f"it has no {missing}.")
    if made["rows"].shape[1] != made["components"].shape[1] + 1 or made["components"].shape[2] != 3:
        raise InputError(
            f"rows has shape {tuple(made['rows'].shape)} and components "
            f"{tuple(made['components'].shape)}, which do not fit."
        )
    for name, values in made.items():
        if isinstance(values, Tensor):
            _require_finite(name, values)
    lines: dict[str, Tensor] = {}
    for kind in ("token_line", "line"):
        names, values = header.get(f"{kind}_names"), made[f"{kind}s"]
        count = 0 if values is None else values.shape[1]
        if (
            not isinstance(names, list)
            or {type(name) for name in names} - {str}
            or len(names) != count
            or len(set(names)) != count
        ):
            raise InputError(f"{kind}_names do not name its {count} lines.")
        lines |= {name: values[:, k] for k, name in enumerate(names)}
    return Ledger(
        made["value"],
        made["scores"],
        lines,
        mask,
        tokens,
        text["target"],
        made["rows"],
        made["above"],
        made["components"],
        made["edges"],
        meta,
        text["method"],
    )


def _require_finite(name: str, *values: Tensor) -> None:
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise InputError(
            f"{name} holds numbers that are not finite, and such an account adds up to nothing."
        )


def _fit(name: str, shape: Shape, sizes: dict[str, int]) -> None:
    """Each letter stands for one size; the first array that has it decides, the others must agree."""
    axes = AXES[name]
    if len(shape) != len(axes) or any(
        sizes.setdefault(axis, size) != size for axis, size in zip(axes, shape, strict=True)
    ):
        wanted = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
        raise InputError(f"{name} has shape {shape}, expected ({wanted}).")


def _values(held: tuple[Shape, Callable[[], Any]], dtype: torch.dtype) -> Tensor:
    shape, read = held
    values = read()
    if isinstance(values, np.ndarray):
        values = torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("=")))
    return values.reshape(shape).to(dtype)  # type: ignore[no-any-return]


def array_of(values: Any, name: str) -> Any:
    """Nested lists of numbers as an array of float64 or integers; `"NaN"` and the infinities are numbers too."""
    array = np.asarray(values)
    if array.dtype.kind == "U":
        array = np.asarray(_named(values), dtype=np.float64)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} holds {array.dtype}, expected numbers.")
    return array.astype(np.float64)


def _named(item: Any) -> Any:
    if isinstance(item, list):
        return [_named(part) for part in item]
    if isinstance(item, str) and item in _NUMBERS:
        return _NUMBERS[item]
    if not _is_number(item):
        raise InputError(f"{item!r:.40} is not a number.")
    return item


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(header: dict[str, Any], name: str) -> str:
    value = header.get(name)
    if not isinstance(value, str):
        raise InputError(f"{name} is {value!r:.40}, expected a text.")
    return value


def _mask(value: Any) -> Tensor:
    if (
        not isinstance(value, list)
        or not all(isinstance(row, list) for row in value)
        or len({len(row) for row in value}) > 1
    ):
        raise InputError("mask is not a table.")
    if any(type(item) is not int or item not in (0, 1) for row in value for item in row):
        raise InputError("mask must hold only 0 and 1.")
    return torch.tensor(value, dtype=torch.bool).reshape(len(value), len(value[0]) if value else 0)


def _tokens(value: Any) -> list[Tokens]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InputError("tokens is not a list of objects.")
    return [checked_tokens(*(item.get(name) for name in _TOKEN_PARTS)) for item in value]


def _meta(value: Any) -> dict[str, Any]:
    meta = _revive(value) if value is not None else {}
    if not isinstance(meta, dict) or any(
        not isinstance(meta.get(name) or {}, dict) for name in ("options", "origin", "notes")
    ):
        raise InputError("meta, or its options, origin or notes, is not an object.")
    return meta


def _revive(value: Any) -> Any:
    """What `export.plain` made of tensors, as tensors again."""
    if isinstance(value, dict) and set(value) == {"tensor", "dtype"}:
        if not isinstance(value["dtype"], str) or value["dtype"] not in _NOTES:
            raise InputError(f"a note has the dtype {value['dtype']!r:.40}.")
        dtype = _NOTES[value["dtype"]]
        array = (
            array_of(value["tensor"], "a note")
            if dtype.is_floating_point
            else np.asarray(value["tensor"], dtype=np.int64)
        )
        return torch.from_numpy(np.array(array)).to(dtype)
    if isinstance(value, dict):
        return {key: _revive(item) for key, item in value.items()}
    return [_revive(item) for item in value] if isinstance(value, list) else value
