"""Identities of the papers' equations: checks that need no reference numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError
from ctxmix_hf.recipes import method
from tests import zoo


@pytest.fixture(scope="module")
def recorded():
    model, inputs = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    names = [
        "attention",
        "attention_res",
        "attention_flow",
        "alti",
        "value_zeroing",
        "attention_rollout",
    ]
    with torch.no_grad():
        out = model(
            **inputs,
            output_decomposition=True,
            output_context_mixing=[*names, method("effective_attention", per_head=True)],
        )
    return model, inputs, out


def test_diagonal_of_w_res_is_the_rest_of_the_mixing_ratio(recorded) -> None:
    out = recorded[2]
    kept = out.context_mixing["attention_res"].layers.diagonal(dim1=-2, dim2=-1)
    ratios = cm.mixing_ratios(out.decomposition, "norm_enc")
    real = out.decomposition.mask[:, None].expand_as(ratios)
    assert torch.allclose(1 - kept[real], ratios[real])


def test_flow_bounds(recorded) -> None:
    m = recorded[2].context_mixing["attention_flow"]
    raw = m.aggregate("flow", row_shares=False)
    assert torch.allclose(raw[:, 0], m.layers[:, 0])
    assert raw.max() <= 1 + 1e-12
    assert torch.allclose(m.input.sum(-1)[:, :, 0], torch.ones(2, 2, dtype=torch.float64))


def test_effective_attention_keeps_the_heads_output(recorded) -> None:
    out = recorded[2]
    for l, layer in enumerate(out.decomposition):
        effective = out.context_mixing["effective_attention"].heads[:, l]
        assert torch.allclose(effective @ layer.values, layer.attention @ layer.values, atol=1e-10)
    model, inputs = zoo.build("bert", dtype=torch.float64)
    ids = torch.randint(5, 90, (1, 20))  # longer than the head size
    with torch.no_grad():
        out = cm.instrument(model)(
            input_ids=ids,
            output_decomposition=True,
            output_context_mixing=[
                method("effective_attention", per_head=True),
                method("effective_attention", per_head=True, part="null"),
            ],
        )
    (kept, lost), layer = out.context_mixing.values(), out.decomposition[0]
    effective = kept.heads[:, 0]
    assert not torch.allclose(effective, layer.attention)
    assert torch.allclose(effective @ layer.values, layer.attention @ layer.values, atol=1e-10)
    null = lost.heads[:, 0]
    assert torch.allclose(effective + null, layer.attention) and null.abs().max() > 1e-3
    assert torch.allclose(null @ layer.values, torch.zeros(()).to(null), atol=1e-10)
    expected = 20 - torch.linalg.matrix_rank(layer.values)
    for made in (kept, lost):
        free = made.meta["notes"]["null_dimension"]
        assert free.shape[:2] == (1, 2) and torch.equal(free[:, 0], expected.to(free))


def test_value_zeroing_equals_a_hook_on_the_value_projection(recorded) -> None:
    """The definition itself: the layer again, with the value projection's output of one token at zero."""
    model, inputs, out = recorded
    layer, record = model.encoder.layer[0], out.decomposition[0]
    single = {key: value[:1] for key, value in inputs.items()}
    with torch.no_grad():
        plain = model(**single, output_decomposition=True).decomposition[0]
        for j in (0, 3):

            def zero(_m, _a, output, j=j):
                output = output.clone()
                output[:, j] = 0
                return output

            handle = layer.attention.self.value.register_forward_hook(zero)
            altered = layer(plain.layer_input)
            handle.remove()
            altered = altered[0] if isinstance(altered, tuple) else altered
            cosine = torch.nn.functional.cosine_similarity(altered, plain.output, dim=-1)
            raw = (
                model(**single, output_context_mixing=[method("value_zeroing", row_shares=False)])
                .context_mixing["value_zeroing"]
                .layers
            )
            assert torch.allclose(raw[0, 0, :, j], 1 - cosine[0], atol=1e-12)
    assert record.index == 0


def test_hta_agrees_with_finite_differences() -> None:
    model, _ = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    ids = torch.tensor([[7, 11, 23]])
    with torch.no_grad():
        out = model(
            input_ids=ids,
            output_decomposition=True,
            output_context_mixing=[method("hta", row_shares=False), method("hta_x_input")],
        )
        record = out.decomposition
        x, step = record.embedding_sum, 1e-6
        total = torch.zeros(3, 3, dtype=torch.float64)
        for j in range(3):
            for b in range(x.shape[-1]):
                moved = x.clone()
                moved[0, j, b] += step
                up = record.replay.run(moved, at=-1).layers[-1]
                moved[0, j, b] -= 2 * step
                down = record.replay.run(moved, at=-1).layers[-1]
                total[:, j] += ((up - down) / (2 * step))[0].square().sum(-1)
    found = out.context_mixing["hta"].input[0, -1]
    assert torch.allclose(found, total.sqrt(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "axis", "options"),
    [("hta", "input", {"row_shares": False}), ("hta_x_input", "layers", {})],
)
def test_sketch_is_within_its_standard_error(name: str, axis: str, options: dict) -> None:
    """Over six sentences: one alone is off by chance (its 36 pairs share the sketch's directions)."""
    model, _ = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    asked = [method(name, **options), method(name, **options, sketch=64)]
    ids = torch.randint(5, 90, (6, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = model(input_ids=ids, output_context_mixing=asked).context_mixing
    exact, sketched = (getattr(made, axis) for made in maps.values())
    error = list(maps.values())[1].meta["notes"]["standard_error"]
    assert error.shape == sketched.shape
    off = (sketched - exact) / error
    assert (off.abs() > 3).double().mean() < 0.03
    assert 0.7 < off.square().mean().sqrt() < 1.3  # neither too small nor too large


def test_integrated_gradients_are_complete(box) -> None:
    model, tok = box
    do, does = tok.convert_tokens_to_ids(["do", "does"])
    text = "The pictures of Martha [MASK] not disgust Anne."
    result = cm.attribute(
        model,
        text,
        "integrated_gradients",
        class_index=do,
        foil=does,
        signed=True,
    )
    assert result.meta["notes"]["completeness_error"] < 1e-4
    scores = result.scores[0]
    assert scores[0] == 0 and scores[-1] == 0


def test_twenty_gauss_legendre_steps_are_the_default_and_the_papers_hundred_an_option() -> None:
    from ctxmix_hf.attribution import IntegratedGradients

    assert IntegratedGradients() == IntegratedGradients(20, "gauss_legendre")
    assert IntegratedGradients(rule="riemann").steps == 100
    with pytest.raises(OptionError, match="at least 1"):
        IntegratedGradients(steps=0)


def test_numba_is_imported_for_flows_only() -> None:
    """It takes a third of a second that no other method needs."""
    code = (
        "import sys, torch, ctxmix_hf.results.maps, ctxmix_hf.modeling\n"
        "assert 'numba' not in sys.modules\n"
        "from ctxmix_hf.aggregation.flow import flow\n"
        "print(float(flow(torch.eye(2)[None, None])[0, 0, 0, 0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "1.0", done.stderr


def test_alti_public_code_switch(recorded) -> None:
    """The two quirks move C a little, and only a little, on a model with a tiny eps."""
    model, inputs, out = recorded
    with torch.no_grad():
        quirky = (
            model(**inputs, output_context_mixing=[method("alti", public_code=True)])
            .context_mixing["alti"]
            .layers
        )
    gap = (quirky - out.context_mixing["alti"].layers).abs().max()
    assert 0 < gap < 1e-3


def test_words_sum_sources_and_average_targets(box) -> None:
    model, _ = box
    m = cm.explain(model, "The cabinet sleeps.", "attention")
    w = m.words()
    groups = m.tokens[0].groups()
    assert w.tokens[0].pieces[:4] == ("[CLS]", "The", "cabinet", "sleeps")
    place = next(i for i, g in enumerate(groups) if len(g) > 1)
    by_hand = m.layers[0, 0][groups[place]].mean(0)[groups[place]].sum()
    assert torch.isclose(w.layers[0, 0, place, place], by_hand)
    assert torch.allclose(w.input.sum(-1), m.input.new_ones(w.input.shape[:-1]))


def test_single_head_rollout(recorded) -> None:
    model, inputs, _ = recorded
    with torch.no_grad():
        m = model(
            **inputs, output_context_mixing=[method("attention_rollout", per_head=True)]
        ).context_mixing["attention_rollout"]
    by_hand = m.heads[:, 1, 2] @ m.layers[:, 0]
    assert torch.allclose(m.head_rollout(2, 2), by_hand)
    assert torch.allclose(
        torch.stack([m.head_rollout(2, h) for h in range(4)]).mean(0), m.input[:, 1]
    )


def test_receptive_field_on_a_causal_model() -> None:
    model, inputs = zoo.build(
        "gpt2", dtype=torch.float32
    )  # transformers 4.48 makes its causal mask in float32
    with torch.no_grad():
        m = cm.instrument(model)(**inputs, output_context_mixing=["attention"]).context_mixing[
            "attention"
        ]
    plain, fair = (
        m.aggregate("rollout", residual=0.5),
        m.aggregate("rollout", residual=0.5, receptive_field=True),
    )
    assert plain[0].triu(1).abs().max() == 0 and fair[0].triu(1).abs().max() == 0
    assert (
        fair[0, -1, -1, 0] < plain[0, -1, -1, 0]
    )  # the first token no longer wins by being visible to all
