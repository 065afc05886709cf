"""Files of maps and attributions: JSON, npz, safetensors; each reads back exactly.

JSON schema, version 1 (`to_json`):

    schema       "ctxmix.map" or "ctxmix.attribution"      version     1
    method, aggregation, residual, dtype, target           as on the object
    layers       [B, L, T, T] or null                      heads       [B, L, H, T, T] or null
    input        [B, L, T, T] (map) or null                scores      [B, T] (attribution)
    mask         [B, T] of 0 and 1                         meta        options, model, notes
    tokens       one object per example: pieces, words, special, text, spans, ids (as in `Tokens`)

Numbers are the shortest decimals that give the same float back; NaN and infinities are the strings "NaN", "Infinity" and
"-Infinity". In npz and safetensors the tensors are entries of these names and the rest is the JSON text `ctxmix`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.errors import InputError
from ctxmix_hf.maps import Attribution, ContextMixingMap
from ctxmix_hf.tokens import Tokens

VERSION = 1
TENSORS = {"ctxmix.map": ("layers", "heads", "input"), "ctxmix.attribution": ("scores",)}
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def to_header(result: ContextMixingMap | Attribution) -> dict[str, Any]:
    """Everything but the tensors."""
    is_map = isinstance(result, ContextMixingMap)
    values = result.scores if isinstance(result, Attribution) else (result.layers if result.layers is not None else result.input)
    header: dict[str, Any] = {
        "schema": "ctxmix.map" if is_map else "ctxmix.attribution",
        "version": VERSION,
        "method": result.method,
        "dtype": str(values.dtype).removeprefix("torch."),
        "mask": result.mask.int().tolist(),
        "meta": plain(result.meta),
        "tokens": [token_dict(tokens) for tokens in result.tokens],
    }
    if isinstance(result, Attribution):
        return {**header, "target": result.target}
    return {**header, "aggregation": result.aggregation, "residual": result.residual}


def tensors_of(result: ContextMixingMap | Attribution, with_input: bool = True) -> dict[str, Tensor | None]:
    if isinstance(result, Attribution):
        return {"scores": result.scores.detach().cpu()}
    given = result.input if with_input or result.layers is None else None
    named = {"layers": result.layers, "heads": result.heads, "input": given}
    return {name: None if value is None else value.detach().cpu() for name, value in named.items()}


def token_dict(tokens: Tokens) -> dict[str, Any]:
    return {
        "pieces": list(tokens.pieces), "words": _listed(tokens.words), "special": _listed(tokens.special),
        "text": tokens.text, "spans": _listed(tokens.spans), "ids": _listed(tokens.ids),
    }  # fmt: skip


def _listed(items: Any) -> list[Any] | None:
    return None if items is None else [list(item) if isinstance(item, tuple) else item for item in items]


def read_token_dict(data: dict[str, Any]) -> Tokens:
    made = {key: None if data.get(key) is None else tuple(data[key]) for key in ("words", "special", "ids")}
    spans = None if data.get("spans") is None else tuple(None if s is None else (int(s[0]), int(s[1])) for s in data["spans"])
    return Tokens(tuple(data["pieces"]), made["words"], made["special"], data.get("text"), spans, made["ids"])


def plain(value: Any) -> Any:
    """As JSON can hold it; a tensor keeps its kind."""
    if isinstance(value, Tensor):
        return {"tensor": numbers(value), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _number(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _revive(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"tensor", "dtype"}:
        return _tensor(value["tensor"], getattr(torch, value["dtype"]))
    if isinstance(value, dict):
        return {key: _revive(item) for key, item in value.items()}
    return [_revive(item) for item in value] if isinstance(value, list) else value


def numbers(values: Tensor) -> Any:
    """Nested lists, non-finite numbers as strings."""
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        return _walk(values.double().tolist())
    return values.double().tolist() if values.is_floating_point() else values.tolist()


def _walk(item: Any) -> Any:
    return [_walk(part) for part in item] if isinstance(item, list) else _number(item)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    if not dtype.is_floating_point:
        return torch.tensor(values, dtype=dtype)
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(dtype)


def to_dict(result: ContextMixingMap | Attribution, with_input: bool = True) -> dict[str, Any]:
    held = tensors_of(result, with_input)
    return {**to_header(result), **{name: None if value is None else numbers(_short(value)) for name, value in held.items()}}


def _short(value: Tensor) -> Tensor:
    """float32 as the shortest decimals that read back to the same float32."""
    if value.dtype != torch.float32:
        return value
    return torch.from_numpy(np.array([float(str(v)) for v in value.numpy().ravel()], dtype=np.float64).reshape(value.shape))


def from_dict(data: Any, schema: str) -> Any:
    check_header(data, schema)
    dtype = _DTYPES.get(data.get("dtype", "float32"), torch.float32)
    found = {name: None if data.get(name) is None else _tensor(data[name], dtype) for name in TENSORS[schema]}
    return build(data, found)


def check_header(data: Any, schema: str) -> None:
    if not isinstance(data, dict) or data.get("schema") != schema:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"This is no {schema} file: its schema is {found!r}.")
    if int(data.get("version", 0)) > VERSION:
        raise InputError(f"This {schema} file has version {data['version']}, newer than this library reads ({VERSION}): upgrade ctxmix-hf.")


def build(header: dict[str, Any], held: dict[str, Tensor | None]) -> Any:
    tokens, mask = [read_token_dict(item) for item in header["tokens"]], torch.tensor(header["mask"]).bool()
    meta = _revive(header.get("meta") or {})
    if header["schema"] == "ctxmix.attribution":
        scores = held["scores"]
        assert scores is not None
        return Attribution(scores, tokens, mask, header["method"], header["target"], meta)
    return ContextMixingMap(
        method=header["method"], layers=held.get("layers"), heads=held.get("heads"), given_input=held.get("input"), mask=mask,
        tokens=tokens, aggregation=header["aggregation"], residual=header["residual"], meta=meta,
    )  # fmt: skip


# ---- files ----------------------------------------------------------------------------------------------------
def to_json(result: ContextMixingMap | Attribution, with_input: bool = True, indent: int | None = None) -> str:
    return json.dumps(to_dict(result, with_input), ensure_ascii=False, allow_nan=False, indent=indent)


def from_json(text: str | Path, schema: str) -> Any:
    """From JSON text, or from a path to a file of it."""
    if isinstance(text, Path) or (len(text) < 4096 and not text.lstrip().startswith("{")):
        text = Path(text).read_text(encoding="utf-8")
    try:
        return from_dict(json.loads(text), schema)
    except json.JSONDecodeError as error:
        raise InputError(f"This is no JSON: {error}.") from error


def save(result: ContextMixingMap | Attribution, path: str | Path) -> Path:
    """By suffix: .json, .npz or .safetensors (all three read back with `load`)."""
    target = Path(path)
    if target.suffix == ".json":
        target.write_text(to_json(result), encoding="utf-8")
        return target
    held = {name: value.contiguous() for name, value in tensors_of(result).items() if value is not None}
    header = json.dumps(to_header(result), sort_keys=True)
    if target.suffix == ".npz":
        arrays = {name: (value.float() if value.dtype == torch.bfloat16 else value).numpy() for name, value in held.items()}
        with target.open("wb") as handle:
            np.savez_compressed(handle, ctxmix=np.array(header), **arrays)  # type: ignore[arg-type]
        return target
    if target.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(held, str(target), metadata={"ctxmix": header})
        return target
    raise InputError(f"Cannot save as {target.name!r}: name it .json, .npz, .safetensors, .csv, .html, .png, .pdf or .svg.")


def load(path: str | Path, schema: str) -> Any:
    target = Path(path)
    if not target.exists():
        raise InputError(f"There is no file {target}.")
    if target.suffix == ".json":
        return from_json(target, schema)
    reader = {".npz": _read_npz, ".safetensors": _read_safetensors}.get(target.suffix)
    if reader is None:
        raise InputError(f"Cannot load {target.suffix!r}: .json, .npz and .safetensors can be read back.")
    header, held = reader(target)
    check_header(header, schema)
    dtype = _DTYPES.get(header["dtype"], torch.float32)
    return build(header, {name: held[name].to(dtype) if name in held else None for name in TENSORS[schema]})


def _read_npz(path: Path) -> tuple[Any, dict[str, Tensor]]:
    with np.load(path, allow_pickle=False) as data:
        header = json.loads(str(data["ctxmix"])) if "ctxmix" in data else None
        return header, {name: torch.from_numpy(data[name]) for name in data.files if name != "ctxmix"}


def _read_safetensors(path: Path) -> tuple[Any, dict[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as data:
        metadata = data.metadata() or {}
        return json.loads(metadata.get("ctxmix", "null")), {name: data.get_tensor(name) for name in data.keys()}  # noqa: SIM118
