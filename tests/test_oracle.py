"""The library against brute force that shares no code with it: all methods on post-norm encoders,
Value Zeroing on every family whose value projection has a module of its own."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import ctxmix_hf as cm
from ctxmix_hf.recipes import method
from tests import oracle, zoo


def bert_layers(model: nn.Module) -> list[oracle.PostNormLayer]:
    return [
        oracle.PostNormLayer(
            layer,
            layer.attention.self.query,
            layer.attention.self.key,
            layer.attention.self.value,
            layer.attention.output.dense,
            layer.attention.output.LayerNorm,
            lambda a, m=layer: m.output.dense(m.intermediate(a)) + a,
            layer.output.LayerNorm,
            model.config.num_attention_heads,
        )
        for layer in model.encoder.layer
    ]


def distilbert_layers(model: nn.Module) -> list[oracle.PostNormLayer]:
    return [
        oracle.PostNormLayer(
            layer,
            layer.attention.q_lin,
            layer.attention.k_lin,
            layer.attention.v_lin,
            layer.attention.out_lin,
            layer.sa_layer_norm,
            lambda a, m=layer: m.ffn(a) + a,
            layer.output_layer_norm,
            model.config.n_heads,
        )
        for layer in model.transformer.layer
    ]


POST_NORM = {
    "bert": bert_layers,
    "roberta": bert_layers,
    "electra": bert_layers,
    "camembert": bert_layers,
    "distilbert": distilbert_layers,
}


@pytest.mark.parametrize("family", sorted(POST_NORM))
def test_every_method_equals_brute_force(family: str) -> None:
    model, _ = zoo.build(family, dtype=torch.float64)
    ids = torch.randint(5, 60, (1, 11), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        states = [
            state[0] for state in model(input_ids=ids, output_hidden_states=True).hidden_states
        ]
    cm.instrument(model)
    names = [
        "value_zeroing",
        "alti",
        "norm",
        "norm_res",
        "norm_resln",
        "norm_enc",
        "attention",
        "attention_res",
        "effective_attention",
        "hta_x_input",
        "globenc",
        "attention_rollout",
    ]
    with torch.no_grad():
        made = model(input_ids=ids, output_context_mixing=names).context_mixing
    layers = POST_NORM[family](model)
    want: dict[str, list] = {name: [] for name in names}
    for layer, x, after in zip(layers, states, states[1:], strict=False):
        with torch.no_grad():
            assert torch.allclose(layer.forward(x), after, atol=1e-10), "the oracle's own forward"
            want["value_zeroing"].append(oracle.value_zeroing(layer, x))
            want["alti"].append(oracle.alti(layer, x))
            for name, value in oracle.norms(layer, x).items():
                want[name].append(value)
            want["attention"].append(layer.attention(x).mean(0))
            want["attention_res"].append(oracle.attention_true_residual(layer, x))
            want["effective_attention"].append(oracle.effective_attention(layer, x))
        want["hta_x_input"].append(oracle.jacobian_norms(layer.forward, x, True))
    for name in names[:-2]:
        expected = torch.stack(want[name])
        gap = (made[name].layers[0] - expected).abs().max() / expected.abs().max()
        assert gap < 1e-8, (name, float(gap))
    expected = oracle.rollout(want["norm_enc"])
    assert (made["globenc"].input[0, -1] - expected).abs().max() < 1e-8 * expected.abs().max()
    half = [0.5 * w + 0.5 * torch.eye(11, dtype=torch.float64) for w in want["attention"]]
    assert (made["attention_rollout"].input[0, -1] - oracle.rollout(half)).abs().max() < 1e-10


def value_projection(layer: nn.Module) -> nn.Module | None:
    """The one linear map of a layer that is named for its values."""
    found = [
        m
        for name, m in layer.named_modules()
        if isinstance(m, nn.Linear) and name.rpartition(".")[2] in ("value", "v_proj", "v_lin", "v")
    ]
    return found[0] if len(found) == 1 else None


ADDRESSABLE = [
    "albert",
    "bert",
    "camembert",
    "clip_vision_model",
    "data2vec-text",
    "deit",
    "dinov2",
    "distilbert",
    "electra",
    "ernie",
    "esm",
    "hubert",
    "layoutlm",
    "llama",
    "mistral",
    "gemma2",
    "qwen2",
    "olmo2",
    "megatron-bert",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "roformer",
    "siglip_vision_model",
    "t5",
    "vit",
    "wav2vec2",
    "whisper",
    "xlm-roberta",
    "mixtral",
    "wav2vec2-conformer",
]


# Their norms compute in float32 whatever the model's precision is.
ROUNDS = {"llama", "mistral", "qwen2", "t5", "gemma2", "olmo2", "mixtral"}


@pytest.mark.parametrize("family", [name for name in ADDRESSABLE if name in zoo.FAMILIES])
def test_value_zeroing_equals_a_hook_on_the_value_projection(family: str) -> None:
    """Zero one row of the value projection's output, run the plain layer again, compare outputs: no
    code of ours in it.
    """
    model, inputs = zoo.build(family, dtype=torch.float64)
    seen: list[tuple[nn.Module, tuple, dict, torch.Tensor]] = []
    names = {layer.name for layer in _record(family)}
    handles = [
        module.register_forward_hook(
            lambda m, args, kwargs, out: seen.append((m, args, kwargs, _first(out))),
            with_kwargs=True,
        )
        for name, module in _root(model).named_modules()
        if name in names
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    cm.instrument(model)
    with torch.no_grad(), pytest.warns(UserWarning) if "conformer" in family else nullcontext():
        made = model(
            **inputs,
            output_context_mixing=[method("value_zeroing", row_shares=False)],
            output_decomposition=True,
        )
    record, maps = made.decomposition, made.context_mixing["value_zeroing"].layers
    cm.uninstrument(model)
    for number, (layer, args, kwargs, out) in enumerate(seen):
        value = value_projection(layer)
        if value is None:
            pytest.skip(f"{family}: no single value projection")
        kwargs = {k: None if "past" in k else v for k, v in kwargs.items()}
        for source in (0, out.shape[1] - 1):
            with torch.no_grad():
                altered = _first(
                    oracle.zero_value_by_hook(layer, value, source, lambda: layer(*args, **kwargs))
                )
            cosine = 1 - torch.cosine_similarity(altered, out, dim=-1)
            seen_by = (
                (record[number].attention.amax(dim=1) > 0)[:, :, source]
                & record.mask
                & record.mask[:, source, None]
            )
            gap = ((maps[:, number, :, source] - cosine) * seen_by).abs().max()
            assert gap <= (1e-6 if family in ROUNDS else 1e-9), gap


def _record(family: str):
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    with torch.no_grad(), pytest.warns(UserWarning) if "conformer" in family else nullcontext():
        return model(**inputs, output_decomposition=True).decomposition


def _root(model: nn.Module) -> nn.Module:
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model


def _first(output) -> torch.Tensor:
    return (
        output
        if isinstance(output, torch.Tensor)
        else next(item for item in output if isinstance(item, torch.Tensor))
    )
