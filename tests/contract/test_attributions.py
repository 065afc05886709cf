"""Every attribution x every family that has a head: finite, zero on padding, a batch equals its
sentences, and the same numbers as a plain copy of the model gives by autograd and by one forward
pass per token."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator

import pytest
import torch
import transformers
from torch import Tensor

import ctxmix_hf as cm
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.errors import CtxmixError, UnsupportedMethodError, UnsupportedModelError
from ctxmix_hf.heads import HEADS
from ctxmix_hf.instrumentation.session import require_instrumentation
from ctxmix_hf.recipes import method
from tests import zoo
from tests.contract.families import NO_MODULE, UNREADABLE, marked
from tests.zoo.randomise import randomise

# Encoder-decoder classifiers read their answer off the end-of-sequence token.
READS_EOS = {"bart", "mbart", "plbart", "mvp", "bigbird_pegasus", "t5", "mt5", "umt5", "led"}
# Reads its answer off the last place, whatever stands there: such a model is padded at the left.
READS_LAST = {"xlnet"}
TEXT_ONLY = {"blank_out"}  # replaces tokens
# What is refused, and in which words.
GRADIENTS = set(ATTRIBUTIONS.names()) - {
    "blank_out",
    "random",
    "alti_logit",
    "ledger",
    "attention_gradient",
}
REFUSED = {
    **{
        ("hrm_text", name): "runs layers above e\\^0 without gradients" for name in GRADIENTS
    },  # its first cycles
    **{
        ("splinter", name): "no head with classes" for name in ATTRIBUTIONS.names()
    },  # a start and an end
    ("cpmant", "blank_out"): "one token id per place",  # puts a prompt of its own before the text
}
# Methods that follow parts through whole layers may refuse a family, in these words; never one of the families named.
MAY_REFUSE = {
    "alti_logit": "cannot follow|reaches the logit unharmed|is not linear in it|does not depend on|decompos",
    "ledger": "does not balance|does not depend on the first layer's input",
    "attention_gradient": "without gradients|does not depend",
}
NEVER_REFUSED = {"bert", "roberta", "distilbert", "electra", "gpt2", "llama", "modernbert", "vit"}
ASKED = {"class_index": 1, "mask_token_id": 4, "unk_token_id": 3}


def head_for(family: str) -> str | None:
    """The head this family is tried with: the first of ours that transformers has for it."""
    here = zoo.FAMILIES[family]
    kinds = {
        "audio": ("AudioClassification", "CTC", "SpeechSeq2Seq"),
        "vision": ("ImageClassification",),
    }.get(here.modality, HEADS)
    return next(
        (
            h
            for h in kinds
            if here.model_type
            in getattr(transformers, f"AutoModelFor{h}")._model_mapping._model_mapping
        ),
        None,
    )


FAMILIES = sorted(
    name
    for name in zoo.FAMILIES
    if head_for(name) and name not in zoo.FLOAT32_ONLY and name not in UNREADABLE
)


def with_head(name: str) -> tuple[torch.nn.Module, dict[str, Tensor], dict]:
    """A random head on the family's tiny configuration, float64, the family's own inputs, and which
    place is explained.
    """
    _, inputs = zoo.build(name, dtype=torch.float64)
    config, head = zoo.config(name), head_for(name)
    config.num_labels = 3
    config.architectures = []  # where transformers has two heads of a kind (deit), its first
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, f"AutoModelFor{head}").from_config(config)
    randomise(model.float(), 0)
    model = model.double().eval()
    if "input_ids" in inputs and name in READS_EOS:
        last = inputs["attention_mask"].sum(dim=-1) - 1
        inputs["input_ids"][torch.arange(len(last)), last] = config.eos_token_id
    if name in READS_LAST:
        shift = (inputs["attention_mask"] == 0).sum(dim=-1).tolist()
        inputs = {
            key: torch.stack([row.roll(n) for row, n in zip(value, shift, strict=True)])
            for key, value in inputs.items()
        }
    if head in ("Seq2SeqLM", "SpeechSeq2Seq"):
        inputs["decoder_input_ids"] = torch.tensor([[0, 7, 8]] * 2)
    per_token = head in ("TokenClassification", "MaskedLM", "QuestionAnswering", "CTC")
    return model, inputs, {"position": 1} if per_token else {}


def alone(inputs: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The batch as single examples without padding, from either side."""
    mask = inputs.get("attention_mask", torch.ones(2, 1)).bool()
    for b in range(2):
        row = {key: value[b : b + 1] for key, value in inputs.items()}
        yield {
            key: value[:, mask[b]] if value.shape[1:2] == mask.shape[1:] else value
            for key, value in row.items()
        }


def scored(
    model: torch.nn.Module, inputs: dict[str, Tensor], name: str, **asked: object
) -> cm.Attribution:
    options: dict = {"steps": 6, "rule": "gauss_legendre"} if name == "integrated_gradients" else {}
    if name in ("integrated_gradients", "deeplift"):
        options["baseline"] = "zero"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cm.attribute(model, inputs, name, **ASKED, **options, **asked)


def probability(model: torch.nn.Module, inputs: dict[str, Tensor], place: dict) -> Tensor:
    """What is explained, by the plain model: class 1 of one unpadded example."""
    logits = model(**inputs).logits[0]
    return (logits if logits.dim() == 1 else logits[place.get("position", -1)]).softmax(dim=-1)[1]


def gradient(model: torch.nn.Module, inputs: dict[str, Tensor], layer: str, place: dict) -> Tensor:
    """`d f / d e^0` `[T, D]` of a plain model, by a hook at its first layer."""
    found = {}

    def start(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple:
        key = next(
            (i for i, value in enumerate(args) if isinstance(value, Tensor)), "hidden_states"
        )
        if "x" in found:  # albert's only layer, the second time
            return args, kwargs
        x = found["x"] = (args[key] if args else kwargs[key]).detach().clone().requires_grad_()
        args, kwargs = list(args), dict(kwargs)
        (args if args else kwargs)[key] = x * 1.0
        return tuple(args), kwargs

    handle = model.get_submodule(layer).register_forward_pre_hook(start, with_kwargs=True)
    try:
        score = probability(model, inputs, place)
        (grad,) = torch.autograd.grad(score, found["x"])
    finally:
        handle.remove()
    return grad.flatten(0, 1)


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_attributions(family: str) -> None:
    model, inputs, place = with_head(family)
    plain = copy.deepcopy(model)
    cm.instrument(model)
    text = "input_ids" in inputs
    singles = list(enumerate(alone(inputs))) if zoo.FAMILIES[family].padded else []
    if family not in zoo.MANDATORY:  # of the others, the example that was padded
        singles = [(b, single) for b, single in singles if not inputs["attention_mask"][b].all()]
    for name in ATTRIBUTIONS.names():
        if name in TEXT_ONLY and not text:
            continue
        if (family, name) in REFUSED:
            with pytest.raises(CtxmixError, match=REFUSED[family, name]):
                scored(model, inputs, name, **place)
            continue
        try:
            made = scored(model, inputs, name, **place)
        except (UnsupportedMethodError, UnsupportedModelError) as refusal:
            assert (
                name in MAY_REFUSE
                and family not in NEVER_REFUSED
                and re.search(MAY_REFUSE[name], str(refusal))
            ), (name, str(refusal))
            continue
        with (
            torch.no_grad()
        ):  # the row of a padding token (marian) is zero: its logit depends on no token
            logits = plain(**inputs).logits[..., 1].flatten()
            nothing = made.meta["of"] == "logit" and bool((logits - logits[0]).abs().max() < 1e-12)
        assert torch.isfinite(made.scores).all() and (made.scores.any() or nothing), name
        assert not made.scores[~made.mask].any(), name
        for b, single in singles if name != "random" else []:
            own = scored(model, single, name, **place)
            gap = (
                made.scores[b][made.mask[b]] - own.scores[0]
            ).abs().max() / own.scores.abs().max().clamp(min=1e-6)
            assert gap < 1e-5, (name, float(gap))
    single = next(alone(inputs))
    if text and (family, "blank_out") not in REFUSED:
        with torch.no_grad():
            before = probability(plain, single, place)
            blanked = [
                {**single, "input_ids": single["input_ids"].clone()}
                for _ in range(single["input_ids"].shape[1])
            ]
            for j, changed in enumerate(blanked):
                if family not in READS_EOS or j < len(blanked) - 1:
                    changed["input_ids"][0, j] = ASKED["unk_token_id"]
            drops = torch.stack(
                [before - probability(plain, changed, place) for changed in blanked]
            )
        assert torch.allclose(
            scored(model, single, "blank_out", **place).scores[0], drops, atol=1e-10
        ), "blank_out"
    if family not in NO_MODULE and (family, "grad_l2") not in REFUSED:
        with torch.no_grad():
            record = model(**single, output_decomposition=True).decomposition
        root = next(
            name
            for name, module in model.named_modules()
            if module is require_instrumentation(model).root
        )
        made = cm.attribute(model, single, "grad_l2", shares=False, **ASKED, **place)
        want = gradient(plain, single, f"{root}.{record[0].name}".lstrip("."), place).norm(dim=-1)
        assert torch.allclose(made.scores[0], want, rtol=1e-6, atol=1e-9 * float(want.max())), (
            "grad_l2"
        )


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "vit", "t5"])
def test_exact_hidden_token_attribution(family: str) -> None:
    """By autograd's own Jacobian of the plain model from e^0: no sketch, no code of ours."""
    model, inputs = zoo.build(family, dtype=torch.float64)
    inputs = {key: value[:1] for key, value in inputs.items()}
    root = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    cm.instrument(model)
    with torch.no_grad():
        out = model(
            **inputs,
            output_context_mixing=[method("hta", with_respect_to="e0", row_shares=False)],
            output_decomposition=True,
        )
    record = out.decomposition
    first = root.get_submodule(record[0].name)
    last = root.get_submodule(record[-1].name)
    cm.uninstrument(model)

    def run(x: torch.Tensor) -> torch.Tensor:
        kept = {}
        start = first.register_forward_pre_hook(
            lambda m, args, kwargs: (
                ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
            ),
            with_kwargs=True,
        )
        end = last.register_forward_hook(
            lambda m, args, output: kept.update(
                out=output if isinstance(output, torch.Tensor) else output[0]
            )
        )
        try:
            model(**inputs)
        finally:
            start.remove()
            end.remove()
        return kept["out"]

    x = record[0].layer_input
    jacobian = torch.autograd.functional.jacobian(run, x)[0, :, :, 0]  # [T, D, T, D]
    expected = jacobian.square().sum(dim=(1, 3)).sqrt()
    made = out.context_mixing["hta"].input[0, -1]
    assert (made - expected).abs().max() <= 1e-8 * expected.abs().max()
