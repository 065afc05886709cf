"""DecompX against the paper's recursion written out in loops on plain modules, post-norm and
pre-norm; nothing of ours is used.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, UnsupportedMethodError
from ctxmix_hf.methods.decompx import Decompx
from tests import zoo

IDS = torch.randint(5, 60, (1, 5), generator=torch.Generator().manual_seed(4))
N = 5


def weights_of(parts: Tensor, bias: Tensor, by: str) -> Tensor:
    """Who gets a bias, `[k]`, from the parts `[k, D]` of one token."""
    found = torch.zeros(len(parts), dtype=parts.dtype)
    for k, part in enumerate(parts):
        cosine = torch.cosine_similarity(part, bias, dim=0)
        nonzero = bool(part.norm() > 0)
        found[k] = {
            "absdot": (part @ bias).abs(),
            "abssim": cosine.abs() if nonzero else 0.0,
            "norm": part.norm(),
            "equal": float(nonzero),
            "first": float(k == 0),
        }[by]
    return found / found.sum()


def add_bias(parts: Tensor, bias: Tensor, by: str) -> Tensor:
    if by == "none" or not bool(bias.any()):
        return parts
    shares = weights_of(parts, bias, by)
    return torch.stack([parts[k] + shares[k] * bias for k in range(len(parts))])


def norm(parts: Tensor, module, state: Tensor, by: str) -> Tensor:
    deviation = (state.var(correction=0) + module.eps).sqrt()
    made = torch.stack([(part - part.mean()) / deviation * module.weight for part in parts])
    return add_bias(made, module.bias, by)


def feed_forward(parts: Tensor, x: Tensor, first, second, activation, by: str) -> Tensor:
    """`first` and `second` are (weight [out, in], bias)."""
    h = first[0] @ x + first[1]
    ratio = activation(h) / h
    inner = add_bias(torch.stack([first[0] @ part for part in parts]), first[1], by)
    return add_bias(torch.stack([second[0] @ (ratio * part) for part in inner]), second[1], by)


def attend(
    parts: Tensor, x: Tensor, attention: Tensor, wv: Tensor, bv: Tensor, wo: Tensor, own_bias: bool
) -> Tensor:
    """`sum_h sum_j A[h,i,j] Wo_h Wv_h x[j<-k]`, `[i, k, D]`."""
    heads = attention.shape[0]
    size = wv.shape[0] // heads
    made = torch.zeros_like(parts)
    for h in range(heads):
        rows = slice(h * size, (h + 1) * size)
        for i in range(N):
            for j in range(N):
                for k in range(N):
                    value = wv[rows] @ parts[j, k] + (bv[rows] if own_bias and j == k else 0)
                    made[i, k] += attention[h, i, j] * (wo[:, rows] @ value)
    return made


def bert(model, by: str, public_code: bool = False) -> list[Tensor]:
    """The parts after each layer, `[i, k, D]`."""
    out = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
    states = [state[0] for state in out.hidden_states]
    parts = torch.zeros(N, N, states[0].shape[-1], dtype=torch.float64)
    for i in range(N):
        parts[i, i] = states[0][i]
    made = []
    for number, layer in enumerate(model.encoder.layer):
        own, dense = layer.attention.self, layer.attention.output.dense
        stays = public_code and number == 0
        mixed = attend(
            parts,
            states[number],
            out.attentions[number][0],
            own.value.weight,
            own.value.bias,
            dense.weight,
            stays,
        )
        bias = dense.bias if stays else dense.weight @ own.value.bias + dense.bias
        context = out.attentions[number][0] @ own.value(states[number]).unflatten(
            -1, (own.num_attention_heads, -1)
        ).transpose(0, 1)
        u = dense(context.transpose(0, 1).flatten(1)) + states[number]
        after = []
        for i in range(N):
            joined = add_bias(mixed[i] + parts[i], bias, by)
            a = norm(joined, layer.attention.output.LayerNorm, u[i], by)
            block = layer.attention.output.LayerNorm(u[i])
            first, second = layer.intermediate.dense, layer.output.dense
            fed = feed_forward(
                a,
                block,
                (first.weight, first.bias),
                (second.weight, second.bias),
                layer.intermediate.intermediate_act_fn,
                by,
            )
            w = second(layer.intermediate.intermediate_act_fn(first(block))) + block
            after.append(norm(fed + a, layer.output.LayerNorm, w, by))
        parts = torch.stack(after)
        made.append(parts)
    return made


def gpt2(model, by: str) -> list[Tensor]:
    out = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
    x = out.hidden_states[0][0]
    width = x.shape[-1]
    parts = torch.zeros(N, N, width, dtype=torch.float64)
    for i in range(N):
        parts[i, i] = x[i]
    made = []
    for number, block in enumerate(model.h):
        wv, bv = block.attn.c_attn.weight.mT[2 * width :], block.attn.c_attn.bias[2 * width :]
        wo, bo = block.attn.c_proj.weight.mT, block.attn.c_proj.bias
        entered = torch.stack([norm(parts[i], block.ln_1, x[i], by) for i in range(N)])
        mixed = attend(entered, x, out.attentions[number][0], wv, bv, wo, False)
        heads = model.config.n_head
        v = (block.ln_1(x) @ wv.mT + bv).unflatten(-1, (heads, -1)).transpose(0, 1)
        u = (out.attentions[number][0] @ v).transpose(0, 1).flatten(1) @ wo.mT + bo + x
        after = []
        for i in range(N):
            joined = add_bias(mixed[i] + parts[i], wo @ bv + bo, by)
            read = norm(joined, block.ln_2, u[i], by)
            mlp = block.mlp
            first, second = (
                (mlp.c_fc.weight.mT, mlp.c_fc.bias),
                (mlp.c_proj.weight.mT, mlp.c_proj.bias),
            )
            after.append(joined + feed_forward(read, block.ln_2(u[i]), first, second, mlp.act, by))
        parts = torch.stack(after)
        x = u + block.mlp(block.ln_2(u))
        made.append(parts)
    return made


def build(family: str):
    model, _ = zoo.build(family, dtype=torch.float64)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("by", Decompx.choices["biases"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_maps_and_vectors_equal_the_recursion(family: str, by: str) -> None:
    model = build(family)
    with torch.no_grad():
        expected = {"bert": bert, "gpt2": gpt2}[family](model, by)
        out = cm.instrument(model)(
            input_ids=IDS,
            output_context_mixing=cm.method("decompx", biases=by),
            output_decomposition=True,
        )
        made = out.context_mixing["decompx"]
        assert made.layers is None and made.given_input is not None
        for number, parts in enumerate(expected):
            assert (made.input[0, number] - parts.norm(dim=-1)).abs().max() < 1e-9, number
            for target in range(N):
                vectors = Decompx(biases=by).vectors(out.decomposition, target, layer=number + 1)
                assert (vectors - parts[target]).abs().max() < 1e-9
            gap = (parts.sum(dim=1) - out.decomposition[number].output[0]).abs().max()
            assert (gap < 1e-9) == (
                by != "none"
            )  # whoever gets the biases, all together are the hidden state
    if by != "none":
        assert made.meta["notes"]["gap"] < 1e-12


def test_the_authors_code_keeps_the_first_value_bias_with_its_token() -> None:
    model = build("bert")
    with torch.no_grad():
        expected = bert(model, "absdot", public_code=True)[-1].norm(dim=-1)
        specs = [cm.method("decompx", public_code=True), "decompx"]
        found = list(
            cm.instrument(model)(input_ids=IDS, output_context_mixing=specs).context_mixing.values()
        )
    assert (found[0].input[0, -1] - expected).abs().max() < 1e-9
    assert (found[1].input[0, -1] - expected).abs().max() > 1e-6


def test_small_memory_gives_the_same() -> None:
    model, inputs = zoo.build("bert", dtype=torch.float64)
    long = {"input_ids": torch.randint(5, 60, (1, 40), generator=torch.Generator().manual_seed(5))}
    cm.instrument(model)
    with torch.no_grad():
        whole, chunked = (
            model(**long, output_context_mixing="decompx", max_memory=size)
            .context_mixing["decompx"]
            .input
            for size in (None, "1MB")
        )
    assert torch.allclose(whole, chunked, atol=1e-12)


def test_bad_questions() -> None:
    model, inputs = zoo.build("bert")
    with torch.no_grad():
        record = cm.instrument(model)(**inputs, output_decomposition=True).decomposition
    with pytest.raises(InputError, match="no token 99"):
        Decompx().vectors(record, 99)
    with pytest.raises(InputError, match="no layer 7"):
        Decompx().vectors(record, 1, layer=7)
    with pytest.raises(cm.CtxmixError, match="absdot"):
        cm.method("decompx", biases="spread")


@pytest.mark.parametrize(
    "family, why",
    [("mobilebert", "residual connection"), ("squeezebert", "its values"), ("mixtral", "experts")],
)
def test_layers_that_cannot_be_followed_are_refused(family: str, why: str) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    with torch.no_grad(), pytest.raises(UnsupportedMethodError, match=f"Layer 1 .*{why}"):
        cm.instrument(model)(**inputs, output_context_mixing="decompx")
    check = next(check for check in cm.verify(model, inputs).methods if check.method == "decompx")
    assert check.status == "not applicable" and why in check.why
