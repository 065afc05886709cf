"""Files of maps and attributions: JSON, npz, safetensors; each reads back exactly (`reading`).

JSON schema, version 2 (`to_json`):

    schema       "ctxmix.map", "ctxmix.attribution"        version     2 (1: `meta.layer` counted from 0)
                 or "ctxmix.ledger"
    method, aggregation, residual, dtype, target           as on the object
    layers       [B, L, T, T] or null                      heads       [B, L, H, T, T] or null
    input        [B, L, T, T] (map) or null                scores      [B, T] (attribution)
    value        [B] (ledger)                              lines       [B, K], named by line_names (ledger)
    rows         [B, L + 1, T], above [B, L + 1]           token_lines [B, J, T], named by token_line_names
    components   [B, L, 3, T] (ledger)                     edges       [B, L, T, T] or null (ledger)
    mask         [B, T] of 0 and 1                         meta        options, model, notes; layer (1 to L) and scope of a row
    tokens       one object per example: pieces, words, special, text, spans, ids, unknown, parts (as in `Tokens`)

Numbers are the shortest decimals that give the same float back; NaN and infinities are the strings
"NaN", "Infinity" and "-Infinity". In npz and safetensors the tensors are entries of these names and
the rest is the JSON text `ctxmix`.
"""  # noqa: E501

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.formats.reading import VERSION
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.results.matches import Ranking, Similarity
from ctxmix_hf.text.tokens import Tokens

Saved = ContextMixingMap | Attribution | Ledger | Similarity
_SCHEMAS = {
    ContextMixingMap: "ctxmix.map",
    Attribution: "ctxmix.attribution",
    Ledger: "ctxmix.ledger",
}


def to_header(result: Saved) -> dict[str, Any]:
    """Everything but the tensors."""
    if isinstance(result, Similarity):
        return _similarity_header(result)
    values = (
        (result.layers if result.layers is not None else result.input)
        if isinstance(result, ContextMixingMap)
        else result.scores
    )
    header: dict[str, Any] = {
        "schema": _SCHEMAS[type(result)],
        "version": VERSION,
        "method": result.method,
        "dtype": str(values.dtype).removeprefix("torch."),
        "mask": result.mask.int().tolist(),
        "meta": plain(result.meta),
        "tokens": [token_dict(tokens) for tokens in result.tokens],
    }
    if isinstance(result, Ledger):
        plain_names, token_names = (
            [name for name, line in result.lines.items() if line.dim() == axes] for axes in (1, 2)
        )
        return {
            **header,
            "target": result.target,
            "line_names": plain_names,
            "token_line_names": token_names,
        }
    if isinstance(result, Attribution):
        return {**header, "target": result.target}
    return {**header, "aggregation": result.aggregation, "residual": result.residual}


def tensors_of(result: Saved, with_input: bool = True) -> dict[str, Tensor | None]:
    if isinstance(result, Attribution):
        return {"scores": result.scores.detach().cpu()}
    if isinstance(result, Ledger):
        return _ledger_tensors(result)
    if isinstance(result, Similarity):
        return _similarity_tensors(result)
    given = result.input if with_input or result.layers is None else None
    named = {"layers": result.layers, "heads": result.heads, "input": given}
    return {name: None if value is None else value.detach().cpu() for name, value in named.items()}


def _similarity_header(s: Similarity) -> dict[str, Any]:
    """Both sides as attributions without their scores, and which lines there are, each with its length."""
    sides = {f"side_{name}": to_header(side) for name, side in (("a", s.a), ("b", s.b))}
    named = {} if s.source is None else {name: list(line.shape) for name, line in s.lines.items()}
    return {
        "schema": "ctxmix.similarity",
        "version": VERSION,
        "cosine": s.cosine,
        "pooling": s.pooling,
        "assumed": s.assumed,
        "score": s.score,
        "gap": s.gap,
        "meta": plain(s.meta),
        "line_shapes": named,
        **sides,
    }


def _similarity_tensors(s: Similarity) -> dict[str, Tensor | None]:
    held: dict[str, Tensor | None] = {
        "scores_a": s.a.scores[0],
        "scores_b": s.b.scores[0],
        "pairs": None,
        "pair_lines": None,
    }
    if s.source is not None:
        held |= {
            "pairs": s.pairs,
            "pair_lines": torch.cat([line.reshape(-1).to(s.pairs) for line in s.lines.values()]),
        }
    return {name: None if value is None else value.detach().cpu() for name, value in held.items()}


def _ledger_tensors(l: Ledger) -> dict[str, Tensor | None]:
    flat, long = ([line for line in l.lines.values() if line.dim() == axes] for axes in (1, 2))
    named: dict[str, Tensor | None] = {
        "value": l.value,
        "scores": l.scores,
        "lines": torch.stack(flat, dim=1) if flat else None,
        "token_lines": torch.stack(long, dim=1) if long else None,
        "rows": l.rows,
        "above": l.above,
        "components": l.components,
        "edges": None if l.edge_source is None else l.edges,
    }
    return {name: None if value is None else value.detach().cpu() for name, value in named.items()}


def token_dict(tokens: Tokens) -> dict[str, Any]:
    return {
        "pieces": list(tokens.pieces),
        "words": _listed(tokens.words),
        "special": _listed(tokens.special),
        "text": tokens.text,
        "spans": _listed(tokens.spans),
        "ids": _listed(tokens.ids),
        "unknown": _listed(tokens.unknown),
        "parts": _listed(tokens.parts),
    }


def _listed(items: Any) -> list[Any] | None:
    return (
        None
        if items is None
        else [list(item) if isinstance(item, tuple) else item for item in items]
    )


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


def to_dict(result: Saved, with_input: bool = True) -> dict[str, Any]:
    held = tensors_of(result, with_input)
    return {
        **to_header(result),
        **{name: None if value is None else numbers(_short(value)) for name, value in held.items()},
    }


def _short(value: Tensor) -> Tensor:
    """float32 as the shortest decimals that read back to the same float32."""
    if value.dtype != torch.float32:
        return value
    return torch.from_numpy(
        np.array([float(str(v)) for v in value.numpy().ravel()], dtype=np.float64).reshape(
            value.shape
        )
    )


def held_tensors(result: Saved) -> dict[str, Tensor]:
    """The tensors a file holds, each in one piece."""
    return {
        name: value.contiguous() for name, value in tensors_of(result).items() if value is not None
    }


def header_text(result: Saved) -> str:
    """Everything else, as JSON."""
    return json.dumps(to_header(result), sort_keys=True)


def ranking_dict(ranking: Ranking) -> dict[str, Any]:
    """Scores and order, without the accounts."""
    return {
        "query": ranking.query,
        "documents": list(ranking.documents),
        "scores": ranking.scores.tolist(),
        "order": ranking.order,
    }
