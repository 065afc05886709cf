"""The zoo, measured: what the contract test asserts and the coverage table shows."""

from __future__ import annotations

import warnings
from dataclasses import asdict

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.architectures import Architecture
from ctxmix_hf.errors import UnsupportedModelError
from ctxmix_hf.instrumentation.account import any_readout
from ctxmix_hf.instrumentation.blocks import precision_of, tolerance
from ctxmix_hf.instrumentation.session import ApproximateWarning
from ctxmix_hf.records import ModelRecord
from tests import zoo


def marked(families: list[str], share: int | None = None) -> list:
    """When each family is tried: the mandatory ones in every run, the others in CI's.

    A check that only repeats, in another way, what the first checks of a family prove (exact, maps,
    accounts) names its `share`, 0 to 2: CI then tries it on one family in nine, others for each
    share, and `EXHAUSTIVE=1 bash scripts/test.sh` on all of them.
    """
    return [
        name
        if name in zoo.MANDATORY
        else pytest.param(
            name,
            marks=pytest.mark.slow
            if share is None or number % 9 == 3 * share
            else pytest.mark.exhaustive,
        )
        for number, name in enumerate(sorted(families))
    ]


# Level 1 only, each with the reason the library gives; a family that starts to be exact must leave this list.
LEVEL_1 = {
    "afmoe": "gates each head's output",
    "beam": "gates each head's output",
    "bitnet": "quantises activations between heads and projection",
    "granite_swa": "scales each head by an attention sink",
    "granitemoe_swa": "scales each head by an attention sink",
    "hrm_text": "gates each head's output",
    "hyperclovax": "scales the branch by a runtime factor",
    "ibert": "its integer norm is not a plain norm",
    "jetmoe": "mixes experts inside the attention projection",
    "kosmos_2_text_model": "norms the heads before the projection",
    "laguna": "gates each head's output",
    "longcat_flash": "two attention blocks share one layer",
    "muse_glimmer_text": "gates each head's output",
    "neomme": "gates each head's output",
}
# Everything can be computed, but something beside the attention mixes tokens, and the library says so.
APPROXIMATE = {
    **dict.fromkeys(
        (
            "lasr_encoder",
            "parakeet_encoder",
            "seamless_m4t-speech",
            "seamless_m4t_v2-speech",
            "wav2vec2-bert",
            "wav2vec2-conformer",
            "wav2vec2-conformer-rotary",
        ),
        "convolution",
    ),
}
# Level 1, and their factor per head depends on the other tokens' keys.
MIXING_LEVEL_1 = {"granite_swa", "granitemoe_swa"}
# Layers without a module of their own: they cannot be run again, the decomposition serves every method.
NO_MODULE = {"xlm", "flaubert", "squeezebert"}
# Not readable at all although the zoo lists them: two attention products in one layer, or four-axis hidden states.
UNREADABLE = {"diffllama", "gemma3n_text", "lilt"}


def record(name: str, dtype: torch.dtype = torch.float64) -> tuple[ModelRecord, bool]:
    """(record, ordinary outputs unchanged) of a tiny model of this family."""
    dtype = torch.float32 if name in zoo.FLOAT32_ONLY else dtype
    model, inputs = zoo.build(name, dtype=dtype)
    with torch.no_grad(), warnings.catch_warnings():
        if name in APPROXIMATE or name in MIXING_LEVEL_1:
            warnings.simplefilter("ignore", ApproximateWarning)
        plain = model(**inputs)
        cm.instrument(model)
        out = model(**inputs, output_decomposition=True)
    same = all(torch.equal(a, b) for a, b in zip(tensors(plain), tensors(out), strict=False))
    return out.decomposition, same


def tensors(output: object) -> list[torch.Tensor]:
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [value for value in values if isinstance(value, torch.Tensor)]


def limit(made: ModelRecord) -> float:
    """1e-10 in float64, 1e-5 where the model itself, or a norm of it, computes in float32."""
    rounds = any(layer.level2 is not None and layer.level2.rounds for layer in made)
    return tolerance(torch.float32 if rounds else precision_of(made.model_dtype))


def describe(name: str, made: ModelRecord) -> Architecture:
    """The row of the coverage table."""
    blocks = [layer.level2 for layer in made]
    whole = all(block is not None for block in blocks)
    mixing = made.approximate("attention")
    found = [block for block in blocks if block is not None]
    norms = {
        n.kind
        for b in found
        for n in (b.norm1, b.branch_norm, b.ffn_input_norm, *b.tail)
        if n is not None
    }
    fed = {
        "none" if b.feed_forward is None else "gated" if b.feed_forward.gate else "plain"
        for b in found
    }
    errors = [
        layer.reconstruction_error(stage)
        for layer in made
        if layer.level2 is not None
        for stage in ("norm1", "norm2")
    ]
    return Architecture(
        name=name,
        model_type=zoo.FAMILIES[name].model_type,
        modality=zoo.FAMILIES[name].modality,
        level=2 if whole and not mixing else 1,
        order="/".join(sorted({b.order for b in found})) or "-",
        norm="/".join(
            sorted({"layer": "LayerNorm", "rms": "RMSNorm", "affine": "affine"}[n] for n in norms)
        )
        or "-",
        feed_forward="re-run" if not fed or "none" in fed else "/".join(sorted(fed)),
        attention="causal" if made.causal else "full",
        error=float(f"{max(errors):.1e}") if errors else None,
        reason=mixing if whole else next(layer.why_not for layer in made if layer.level2 is None),
        approximate=whole and bool(mixing),
        ledger=ledger_gap(made),
    )


def ledger_gap(made: ModelRecord) -> float | None:
    """How far the family's ledger is from balancing; None where it is refused."""
    try:
        return float(f"{float(made.replay.draw_up(any_readout, made.mask).gap.max()):.0e}")
    except UnsupportedModelError:
        return None


def as_row(architecture: Architecture) -> dict[str, object]:
    return asdict(architecture)
