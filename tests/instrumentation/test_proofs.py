"""What is called exact is exact: refusals refuse, mixing outside the attention is seen, half
precision and towers are honest.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import BertConfig, BertModel

import ctxmix_hf as cm
from ctxmix_hf.errors import CtxmixError, RecordError, UnsupportedMethodError
from ctxmix_hf.instrumentation.session import instrumentation_of
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import method
from tests import zoo

BLOCK = [
    "norm",
    "norm_res",
    "norm_resln",
    "norm_enc",
    "alti",
    "norm_fixedres",
    "norm_rollout",
    "attention_res",
    "globenc",
]


def bert(dtype: torch.dtype = torch.float32, **config):
    torch.manual_seed(0)
    settings = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    return BertModel(BertConfig(**settings | config)).to(dtype).eval()


def ids(batch: int = 2, tokens: int = 7) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(5, 50, (batch, tokens), generator=generator)}


def maps(model, specs, inputs):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(**inputs, output_context_mixing=specs).context_mixing


# ---- A1: adapters, and refusals that refuse ------------------------------------------------------------------------
def adapted(kind: str):
    peft = pytest.importorskip("peft")
    targets = [
        "query",
        "key",
        "value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ]
    if kind == "adalora":
        config = peft.AdaLoraConfig(target_modules=targets, init_r=4, target_r=2, total_step=10)
    else:
        config = peft.LoraConfig(target_modules=targets, r=4, use_dora=kind == "dora")
    model = peft.get_peft_model(bert(torch.float64), config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name and "ranknum" not in name:
            parameter.data += 0.3 * torch.randn(
                parameter.shape, generator=generator, dtype=parameter.dtype
            )
    return model.eval()


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_adapters_equal_the_merged_model(kind: str) -> None:
    """A part that the walk does not understand must never be taken for something beside the attention."""
    model = adapted(kind)
    cm.instrument(model)
    mine = maps(model, [*BLOCK, "value_zeroing"], ids())
    assert cm.verify(model, ids()).exact
    cm.uninstrument(model)
    merged = cm.instrument(model.merge_and_unload())
    theirs = maps(merged, [*BLOCK, "value_zeroing"], ids())
    for name in mine:
        gap = (mine[name].layers - theirs[name].layers).abs().max() / theirs[
            name
        ].layers.abs().max()
        assert gap < 1e-9, name


class _Squared(torch.nn.Module):
    """Something nonlinear in the attention that is added to it."""

    def __init__(self, dense: torch.nn.Module) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.dense(x)
        return out + out.pow(2)


@pytest.mark.parametrize("family", ["bert", "vit", "gpt2", "llama"])
@pytest.mark.parametrize("name", BLOCK)
def test_a_refused_layer_refuses_in_every_method(family: str, name: str) -> None:
    """First call and later ones, alone: no method reads parts that were found not to add up."""
    model, inputs = zoo.build(family, dtype=torch.float64)
    wrapped = 0
    for module in list(model.modules()):
        for child_name, child in list(module.named_children()):
            path = {
                "bert": "BertSelfOutput",
                "vit": "ViTSelfOutput",
                "gpt2": "GPT2Attention",
                "llama": "LlamaAttention",
            }[family]
            if (
                family == "vit"
                and type(module).__name__ == "ViTAttention"
                and child_name == "o_proj"
            ):
                path = "ViTAttention"
            if type(module).__name__ == path and child_name in ("dense", "c_proj", "o_proj"):
                setattr(module, child_name, _Squared(child).eval())
                wrapped += 1
    assert wrapped
    cm.instrument(model)
    for _ in range(2):
        with pytest.raises(UnsupportedMethodError, match="no exact decomposition"):
            maps(model, [name], inputs)
        with pytest.raises(UnsupportedMethodError, match="no exact decomposition"):
            maps(model, ["attention", name], inputs)
    checked = cm.verify(model, inputs)
    assert not checked.exact
    status = {item.method: item.status for item in checked.methods}
    assert status[name] == "not applicable" and status["attention"] == "exact"


def test_a_changed_program_is_proved_again() -> None:
    """An adapter switched on after the first record is not covered by the proof of the plain layer."""
    model = bert(torch.float64)
    cm.instrument(model)
    maps(model, ["alti"], ids())
    for layer in model.encoder.layer:
        layer.attention.output.dense = _Squared(layer.attention.output.dense).eval()
    with pytest.raises(UnsupportedMethodError, match="no exact decomposition"):
        maps(model, ["alti"], ids())


# ---- A2: mixing outside the attention ------------------------------------------------------------------------------
CONFORMERS = [
    "lasr_encoder",
    "parakeet_encoder",
    "seamless_m4t-speech",
    "seamless_m4t_v2-speech",
    "wav2vec2-bert",
    "wav2vec2-conformer",
    "wav2vec2-conformer-rotary",
]


@pytest.mark.parametrize("family", [name for name in CONFORMERS if name in zoo.FAMILIES])
def test_convolutions_inside_a_layer_are_not_called_exact(family: str) -> None:
    model, inputs = zoo.build(family)
    checked = cm.verify(model, inputs)
    assert not checked.exact
    status = {item.method: item for item in checked.methods}
    for name in ("alti", "globenc", "value_zeroing", "attention_rollout"):
        assert status[name].status == "approximate" and "convolution" in status[name].why, name
    assert status["hta"].status == "exact"
    cm.instrument(model)
    with pytest.warns(UserWarning, match="convolution"), torch.no_grad():
        made = model(**inputs, output_context_mixing=["attention_rollout"]).context_mixing[
            "attention_rollout"
        ]
    assert "convolution" in made.meta["approximate"]
    assert "approximate" in str(made)


def test_a_convolution_between_layers_is_seen() -> None:
    from transformers import DebertaV2Config, DebertaV2Model

    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        conv_kernel_size=3,
        conv_act="gelu",
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
    )
    model = DebertaV2Model(config).double().eval()
    with torch.no_grad():
        own = model(**ids(), output_hidden_states=True).hidden_states
    checked = cm.verify(model, ids())
    assert not checked.exact
    status = {item.method: item for item in checked.methods}
    assert status["alti"].status == "approximate" and "convolution" in status["alti"].why
    cm.instrument(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = model(**ids(), output_decomposition=True).decomposition
    for mine, theirs in zip(record.hidden_states, own, strict=True):
        assert torch.allclose(mine, theirs)


def test_token_mixing_added_to_a_plain_family_is_seen() -> None:
    """The probe does not know families: any operation that moves information between tokens is found."""
    model = bert()

    class Shift(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 0.1 * x.roll(1, dims=1)[..., :1]

    model.encoder.layer[1].intermediate = Shift(model.encoder.layer[1].intermediate).eval()
    checked = cm.verify(model, ids())
    assert {m.method: m.status for m in checked.methods}["alti"] == "approximate"


def test_a_short_input_proves_nothing() -> None:
    """One token mixes with nobody, so what is not seen there is not trusted later."""
    short = bert()
    cm.instrument(short)
    with torch.no_grad():
        short(**ids(1, 1), output_context_mixing=["alti"])
    owner = instrumentation_of(short)
    assert owner is not None and not owner.proofs


# ---- A3, A4: half precision ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "modernbert",
        "gpt2",
        "llama",
        "gemma2",
        "mixtral",
        "vit",
        "t5",
        "roberta-prelayernorm",
    ],
)
def test_half_precision_agrees_with_the_same_weights_in_float64(
    family: str, dtype: torch.dtype
) -> None:
    """Statistics and differences are taken in float32 from the capture: what is left is the model's own rounding."""
    model, inputs = zoo.build(family)
    model = model.to(dtype)
    wide, _ = zoo.build(family)
    wide = wide.to(dtype).double()
    names = ["value_zeroing", "alti", "norm_enc"]
    mine = maps(cm.instrument(model), names, inputs)
    theirs = maps(cm.instrument(wide), names, inputs)
    unit = torch.finfo(dtype).eps
    for name in names:
        gap = (mine[name].layers.double() - theirs[name].layers).abs()
        rows = theirs[name].layers.amax(dim=-1, keepdim=True).clamp(min=1e-30)
        assert (gap / rows).max() < 16 * unit, (name, float((gap / rows).max() / unit))


@pytest.mark.parametrize("family", ["gemma2", "glm4", "olmo2", "llama", "t5"])
def test_rms_norms_are_recognised_in_half_precision(family: str) -> None:
    model, inputs = zoo.build(family)
    model = cm.instrument(model.to(torch.bfloat16))
    with torch.no_grad():
        record = model(**inputs, output_decomposition=True).decomposition
    for layer in record:
        block = layer.block
        norms = [
            n
            for n in (
                block.norm1,
                block.branch_norm,
                block.ffn_input_norm,
                block.ffn_output_norm,
                *block.tail,
            )
            if n is not None
        ]
        assert norms and all(n.kind == "rms" for n in norms)


# ---- A9: proofs that a short input cannot give ---------------------------------------------------------------------
@pytest.mark.parametrize("family", ["t5", "mt5", "umt5", "switch_transformers"])
def test_hta_x_input_after_a_one_token_call(family: str) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    short = {key: value[:1, :1] for key, value in inputs.items()}
    with torch.no_grad():
        model(**short, output_context_mixing=["hta_x_input"])
        closed = (
            model(**inputs, output_context_mixing=["hta_x_input"])
            .context_mixing["hta_x_input"]
            .layers
        )
        spec = method("hta_x_input", closed_form=False)
        exact = model(**inputs, output_context_mixing=[spec]).context_mixing["hta_x_input"].layers
    assert (closed - exact).abs().max() < 1e-6 * exact.abs().max()


# ---- A12 -----------------------------------------------------------------------------------------------------------
def test_dynamic_int8_is_the_models_own_function_and_does_not_depend_on_memory() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of its own quantisation
        model = torch.ao.quantization.quantize_dynamic(
            bert(hidden_size=64), {torch.nn.Linear}, dtype=torch.qint8
        )
    cm.instrument(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        roomy = (
            model(**ids(1, 12), output_context_mixing=["value_zeroing"])
            .context_mixing["value_zeroing"]
            .layers
        )
        tight = (
            model(**ids(1, 12), output_context_mixing=["value_zeroing"], max_memory="1MB")
            .context_mixing["value_zeroing"]
            .layers
        )
    assert torch.equal(roomy, tight)
    status = {m.method: m.status for m in cm.verify(model, ids(1, 12)).methods}
    assert status["value_zeroing"] == "approximate"


def test_public_code_of_alti_ignores_padding() -> None:
    model = cm.instrument(bert(torch.float64))
    one = ids(1, 6)["input_ids"]
    padded = torch.cat([one, torch.zeros(1, 4, dtype=torch.long)], dim=1)
    mask = (padded > 0).long()
    spec = method("alti", public_code=True)
    alone = maps(model, [spec], {"input_ids": one})["alti"].layers
    batch = maps(model, [spec], {"input_ids": padded, "attention_mask": mask})["alti"].layers
    assert (batch[..., :6, :6] - alone).abs().max() < 1e-12


def test_train_mode_anywhere_is_refused() -> None:
    model = cm.instrument(bert())
    model.encoder.layer[1].attention.train()
    with pytest.raises(RecordError, match=r"encoder\.layer\.1\.attention.*train mode"):
        model(**ids(), output_context_mixing=["alti"])


@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "t5", "gpt2", "vit"])
def test_effective_attention_without_value_bias_alone(family: str) -> None:
    """Asked alone, first, later, or with others: the same; without a bias it is the plain one."""
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    spec = method("effective_attention", value_bias=False)
    first = maps(model, [spec], inputs)["effective_attention"].layers
    again = maps(model, [spec], inputs)["effective_attention"].layers
    with torch.no_grad():
        whole = (
            model(**inputs, output_context_mixing=[spec], output_decomposition=True)
            .context_mixing["effective_attention"]
            .layers
        )
    assert torch.equal(first, again) and torch.equal(first, whole)


def test_effective_attention_says_what_lies_on_tokens_a_row_cannot_see() -> None:
    model, inputs = zoo.build("gpt2", dtype=torch.float64)
    cm.instrument(model)
    long = {"input_ids": torch.randint(5, 50, (1, 20), generator=torch.Generator().manual_seed(0))}
    plain = maps(model, ["effective_attention"], long)["effective_attention"]
    assert (
        plain.layers.triu(1).abs().max() > 1e-3
        and float(plain.meta["notes"]["unseen_mass"].max()) > 0.01
    )
    seen = maps(model, [method("effective_attention", visible_only=True, per_head=True)], long)[
        "effective_attention"
    ]
    assert not seen.layers.triu(1).any()
    with torch.no_grad():
        record = model(**long, output_decomposition=True).decomposition
    for l, layer in enumerate(record):
        assert torch.allclose(seen.heads[:, l] @ layer.values, layer.context, atol=1e-9)


def test_rows_of_attention_sinks_are_not_said_to_sum_to_one() -> None:
    model, inputs = zoo.build("gpt_oss")
    made = maps(cm.instrument(model), ["attention", "attention_rollout", "alti"], inputs)
    for name in made:
        sums = made[name].layers.sum(dim=-1).transpose(0, 1)[:, made[name].mask]
        assert made[name].meta["rows_sum_to_one"] == bool(
            torch.allclose(sums, torch.ones_like(sums), atol=1e-5)
        ), name
    assert not made["attention"].meta["rows_sum_to_one"]


def test_shuffled_patches_keep_their_numbers() -> None:
    """ViTMAE shuffles its patches: a token is called by the patch it shows."""
    from transformers import ViTMAEConfig, ViTMAEModel

    torch.manual_seed(0)
    config = ViTMAEConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        mask_ratio=0.5,
    )
    model = cm.instrument(ViTMAEModel(config).eval())
    with torch.no_grad():
        out = model(pixel_values=torch.randn(2, 3, 16, 16), output_context_mixing=["attention"])
    restore = out.ids_restore
    for b in range(2):
        names = list(out.context_mixing["attention"].tokens[b].pieces)
        shown = restore[b].argsort()[: len(names) - 1].tolist()
        assert names[1:] == [str(p + 1) for p in shown], (
            "0 is the class token, patches count from 1"
        )


def test_every_method_has_a_status() -> None:
    assert {m.method for m in cm.verify(bert(), ids()).methods} >= set(METHODS.names())
    assert issubclass(UnsupportedMethodError, CtxmixError)
