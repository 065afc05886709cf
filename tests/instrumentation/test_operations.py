"""A regression in the algorithm fails without timing anything: floating-point operations and tensor
sizes are counted.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

import ctxmix_hf as cm

T, D, H, L = 48, 96, 4, 3


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple | list) else (result,):
            if isinstance(out, torch.Tensor):
                self.elements = max(
                    self.elements, out.untyped_storage().nbytes() // max(1, out.element_size())
                )
        return result


@pytest.fixture(scope="module")
def model():
    config = BertConfig(
        hidden_size=D,
        num_hidden_layers=L,
        num_attention_heads=H,
        intermediate_size=4 * D,
        attn_implementation="eager",
    )
    made = cm.instrument(BertModel(config).eval())
    with torch.no_grad():
        made(
            input_ids=torch.randint(5, 900, (1, T)), output_decomposition=True
        )  # proofs are done once
    return made


def flops(model, **asked) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(5, 900, (1, T)), **asked)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("methods", "limit"),
    [
        (["norm", "norm_res", "norm_resln", "norm_enc", "globenc"], 1.6),
        (["alti"], 1.7),
        (["value_zeroing"], 0.40 * T + 2),
        (["effective_attention"], 1.5),
    ],
)
def test_operations_against_one_forward(model, methods, limit) -> None:
    plain = flops(model)
    assert flops(model, output_context_mixing=methods) <= limit * plain


def test_nothing_is_computed_twice(model) -> None:
    plain = flops(model)
    together = (
        flops(
            model,
            output_context_mixing=[
                "norm_resln",
                "norm_enc",
                "globenc",
                "norm_rollout",
                "attention_res",
            ],
        )
        - plain
    )
    alone = sum(
        flops(model, output_context_mixing=[n]) - plain
        for n in ("norm_resln", "norm_enc", "globenc", "norm_rollout", "attention_res")
    )
    assert together < 0.7 * alone


@pytest.mark.parametrize(
    "methods", [["norm_enc", "globenc"], ["norm_resln"], ["effective_attention"]]
)
def test_no_pairwise_vectors(model, methods) -> None:
    with torch.no_grad(), LargestTensor() as seen:
        model(input_ids=torch.randint(5, 900, (1, T)), output_context_mixing=methods)
    assert seen.elements < T * T * D


@pytest.mark.parametrize("name", ["alti", "value_zeroing"])
def test_memory_budget_is_kept(model, name) -> None:
    with torch.no_grad(), LargestTensor() as seen:
        model(
            input_ids=torch.randint(5, 900, (1, T)), output_context_mixing=[name], max_memory="1MB"
        )
    largest_weight = 30_522 * D  # the embedding table is there anyway
    assert seen.elements <= max(largest_weight, T * H * 4 * D)
    with torch.no_grad():
        a = (
            model(input_ids=torch.arange(5, 5 + T)[None], output_context_mixing=[name])
            .context_mixing[name]
            .layers
        )
        b = (
            model(
                input_ids=torch.arange(5, 5 + T)[None],
                output_context_mixing=[name],
                max_memory="1MB",
            )
            .context_mixing[name]
            .layers
        )
    assert torch.allclose(a, b, atol=1e-6)


def test_flows_agree_with_networkx() -> None:
    """The compiled solver against a library of its own kind, on dense and on sparse graphs."""
    import networkx as nx

    from ctxmix_hf.aggregation.flow import flow

    generator = torch.Generator().manual_seed(0)
    for sparse in (False, True):
        maps = torch.rand(1, 3, 6, 6, generator=generator, dtype=torch.float64)
        maps = maps * (maps > 0.7) if sparse else maps
        raw = flow(maps, row_shares=False)[0]
        graph = nx.DiGraph()
        for l in range(3):
            for i in range(6):
                for j in range(6):
                    graph.add_edge((l + 1, i), (l, j), capacity=float(maps[0, l, i, j]))
        for l, i, j in [(3, 0, 0), (3, 2, 5), (2, 1, 4), (3, 5, 1)]:
            assert (
                abs(nx.maximum_flow_value(graph, (l, i), (0, j)) - float(raw[l - 1, i, j])) < 1e-12
            )


def test_heads_that_cancel_keep_their_digits_in_float32() -> None:
    """A quadratic form of two opposite heads has no digits left in float32: such pairs come from their vectors."""
    from ctxmix_hf.algebra.gram import by_source, summed_norms

    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(1, 2, 5, 5, generator=generator)
    attention[:, 1, :, 2] = attention[:, 0, :, 2]  # both heads weigh source 2 alike
    vectors = torch.randn(1, 5, 2, 32, generator=generator)
    vectors[:, 2, 1] = -vectors[:, 2, 0] * (1 + 3e-3)  # where they point in opposite directions
    several = [vectors, 3 * vectors]  # two stages at once, as the norm family asks
    made = summed_norms(attention, [v.flatten(0, 1).__getitem__ for v in several])
    for norms, v in zip(made, several, strict=True):
        exact = torch.einsum("bhij,bjhd->bijd", attention.double(), v.double()).norm(dim=-1)
        assert torch.allclose(norms.double(), exact, rtol=1e-4, atol=0)
    plain = (
        ((v @ v.mT) @ by_source(attention) * by_source(attention))
        .sum(dim=-2)
        .clamp(min=0)
        .sqrt()
        .mT
    )
    assert not torch.allclose(
        plain.double(), exact, rtol=1e-4, atol=0
    )  # else this test would show nothing
