"""N_FF against loops over targets and sources on the model's own modules: post-norm, pre-norm,
gated; and what is refused.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ctxmix_hf as cm
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.methods.linearised import LinearRest
from tests import oracle, zoo
from tests.test_oracle import bert_layers

IDS = torch.randint(5, 60, (1, 6), generator=torch.Generator().manual_seed(3))


def recorded(family: str, **config):
    model, _ = zoo.build(family, dtype=torch.float64)
    with torch.no_grad():
        out = cm.instrument(model)(
            input_ids=IDS, output_context_mixing=["norm_ff", "norm_enc"], output_decomposition=True
        )
    return model, out.decomposition, out.context_mixing


def through(vector: Tensor, norm: nn.Module, state: Tensor, centred: bool = True) -> Tensor:
    """A norm's linear part with the deviation of the whole state."""
    eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    if not centred:
        return vector / (state.square().mean() + eps).sqrt() * norm.weight
    return (vector - vector.mean()) / (state.var(correction=0) + eps).sqrt() * norm.weight


def test_post_norm_equals_loops() -> None:
    model, record, maps = recorded("bert")
    with torch.no_grad():
        for number, (layer, modules) in enumerate(
            zip(bert_layers(model), model.encoder.layer, strict=True)
        ):
            made = oracle.parts(layer, record[number].layer_input[0])
            first, second, norm = (
                modules.intermediate.dense,
                modules.output.dense,
                modules.output.LayerNorm,
            )
            for i in range(6):
                a = made["block"][i]
                h = first(a)
                phi = modules.intermediate.intermediate_act_fn(h)
                w = second(phi) + a
                total = torch.zeros_like(a)
                for j in range(6):
                    part = made["zt"][i, j]
                    part = part + second.weight @ ((phi / h) * (first.weight @ part))
                    part = through(part, norm, w)
                    total += part
                    assert abs(part.norm() - maps["norm_ff"].layers[0, number, i, j]) < 1e-10
                # what no source owns: each bias through what follows it
                constant = through(layer.dense.bias, layer.norm1, made["u"][i]) + layer.norm1.bias
                constant = (
                    constant
                    + second.weight @ ((phi / h) * (first.weight @ constant + first.bias))
                    + second.bias
                )
                constant = through(constant, norm, w) + norm.bias
                assert torch.allclose(total + constant, record[number].output[0, i], atol=1e-10)
    assert not torch.allclose(
        maps["norm_ff"].layers, maps["norm_enc"].layers, rtol=1e-2
    )  # the feed-forward matters


def test_pre_norm_equals_loops() -> None:
    model, record, maps = recorded("gpt2")
    with torch.no_grad():
        for number, block in enumerate(model.h):
            zr = record[number].vectors("residual")[0]
            u = record[number].block.before_norm[0]
            for i in range(6):
                h = block.mlp.c_fc(block.ln_2(u[i : i + 1]))[0]
                phi = block.mlp.act(h)
                for j in range(6):
                    entered = through(zr[i, j], block.ln_2, u[i])
                    part = (
                        zr[i, j]
                        + ((phi / h) * (entered @ block.mlp.c_fc.weight)) @ block.mlp.c_proj.weight
                    )
                    assert abs(part.norm() - maps["norm_ff"].layers[0, number, i, j]) < 1e-10


def test_a_gate_passes_half_through_each_factor() -> None:
    model, record, maps = recorded("llama")
    with torch.no_grad():
        for number, block in enumerate(model.layers):
            zr, u, mlp = (
                record[number].vectors("residual")[0],
                record[number].block.before_norm[0],
                block.mlp,
            )
            for i in range(6):
                x = block.post_attention_layernorm(u[i : i + 1])[0]
                gate, up = mlp.gate_proj(x), mlp.up_proj(x)
                phi = mlp.act_fn(gate)
                total = torch.zeros_like(x)
                for j in range(6):
                    entered = through(zr[i, j], block.post_attention_layernorm, u[i], centred=False)
                    product = (
                        mlp.gate_proj(entered) * phi / gate * up + phi * mlp.up_proj(entered)
                    ) / 2
                    part = zr[i, j] + mlp.down_proj(product)
                    total += part
                    assert (
                        abs(part.norm() - maps["norm_ff"].layers[0, number, i, j]) < 1e-5
                    )  # llama's norm rounds to float32
                assert torch.allclose(total, record[number].output[0, i], atol=1e-5)


def test_an_activation_that_is_not_zero_at_zero_keeps_its_constant_apart() -> None:
    model, _ = zoo.build("bert", dtype=torch.float64)
    for layer in model.encoder.layer:
        layer.intermediate.intermediate_act_fn = nn.Softplus().eval()
    with torch.no_grad():
        record = cm.instrument(model)(input_ids=IDS, output_decomposition=True).decomposition
        rest = LinearRest.of(record[0], "norm_ff")
        h = linear_of(record, model)
        assert torch.allclose(rest.ratio * h + rest.at_zero, nn.functional.softplus(h))


def linear_of(record, model) -> Tensor:
    return model.encoder.layer[0].intermediate.dense(record[0].block.output)


def test_small_memory_gives_the_same_and_rows_may_be_shares() -> None:
    model, inputs = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    with torch.no_grad():
        one = model(**inputs, output_context_mixing="norm_ff").context_mixing["norm_ff"].layers
        chunked = (
            model(**inputs, output_context_mixing="norm_ff", max_memory="1MB")
            .context_mixing["norm_ff"]
            .layers
        )
        shares = (
            model(**inputs, output_context_mixing=cm.method("norm_ff", row_normalised=True))
            .context_mixing["norm_ff"]
            .layers
        )
    assert torch.allclose(one, chunked, atol=1e-12)
    assert torch.allclose(shares, one / one.sum(dim=-1, keepdim=True).clamp(min=1e-30))


@pytest.mark.parametrize("family, why", [("mixtral", "experts"), ("gptj", "beside the attention")])
def test_feed_forwards_that_are_not_proved_are_refused(family: str, why: str) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    with torch.no_grad(), pytest.raises(UnsupportedMethodError, match=f"Layer 1 .*{why}.*norm_enc"):
        cm.instrument(model)(**inputs, output_context_mixing="norm_ff")
    checks = {check.method: check for check in cm.verify(model, inputs).methods}
    assert checks["norm_ff"].status == "not applicable" and why in checks["norm_ff"].why
    assert checks["norm_enc"].status == "exact"
