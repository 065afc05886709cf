"""Reference numbers: `tests/golden` (a small subset, always) and `../shared/goldens` (all of them,
where it is there).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.recipes import method
from tests.conftest import SHARED

HERE = Path(__file__).parent / "golden"
CLASSES = {
    "tiny_bert": "BertModel",
    "tiny_bert_seqcls": "BertForSequenceClassification",
    "tiny_bert_mlm": "BertForMaskedLM",
    "tiny_roberta": "RobertaForSequenceClassification",
    "tiny_distilbert": "DistilBertForSequenceClassification",
}
LAYERS = {
    "attention": "W",
    "attention_fixedres": "W_FIXEDRES",
    "attention_res": "W_RES",
    "norm": "N",
    "norm_fixedres": "N_FIXEDRES",
    "norm_res": "N_RES",
    "norm_resln": "N_RESLN",
    "norm_enc": "N_ENC",
    "alti": "alti",
    "value_zeroing": "vz",
    "hta_x_input": "hta_x_input",
}
INPUTS = {
    "attention": "attn_rollout_nores",
    "attention_rollout": "attn_rollout",
    "attention_flow": "flow",
    "alti": "alti_rollout",
    "value_zeroing": "vz_rollout",
    "globenc": "globenc",
    "norm_rollout": "norm_rollout_rownorm",
    "norm": "rollout_N",
    "norm_fixedres": "rollout_N_FIXEDRES",
    "attention_res": "rollout_W_RES",
    "norm_res": "rollout_N_RES",
    "hta": "hta",
}
VARIANTS = {
    "vz_raw": method("value_zeroing", row_shares=False),
    "vz_euclid_raw": method("value_zeroing", row_shares=False, distance="euclidean"),
    "alti_ln2": method("alti", through="norm2"),
    "hta_layer_fro": method("hta_x_input", times_input=False),
}
INPUT_VARIANTS = {
    "globenc_rownorm": method("globenc", row_normalised=True),
    "hta_fro_presum": method("hta", row_shares=False),
    "hta_e0": method("hta", with_respect_to="e0"),
}


def cases() -> list[tuple[str, Path]]:
    folders = [HERE, SHARED / "goldens"]
    found = {
        path.stem: path for folder in reversed(folders) for path in sorted(folder.glob("*.npz"))
    }
    return sorted(found.items())


def load(path: Path, dtype: torch.dtype = torch.float64):
    kind = path.stem.split("__")[0]
    model = getattr(transformers, CLASSES[kind]).from_pretrained(
        path.parent / "models" / kind, attn_implementation="eager"
    )
    golden = np.load(path, allow_pickle=False)
    inputs = {"input_ids": golden["input_ids"], "attention_mask": golden["attention_mask"]}
    if "distil" not in kind:
        inputs["token_type_ids"] = golden["token_type_ids"]
    tensors = {key: torch.tensor(value).view(1, -1) for key, value in inputs.items()}
    return cm.instrument(model.to(dtype).eval()), tensors, golden


def gap(mine: torch.Tensor, golden: np.ndarray) -> float:
    return float(np.abs(mine.double().numpy() - golden).max() / np.abs(golden).max())


def test_all_goldens_are_found() -> None:
    assert {name for name, _ in cases()} >= {"tiny_bert_mlm__s1", "tiny_roberta__s1"}


@pytest.mark.parametrize(("name", "path"), cases(), ids=[name for name, _ in cases()])
def test_maps_in_float64(name: str, path: Path) -> None:
    model, inputs, golden = load(path)
    specs = [*dict.fromkeys([*LAYERS, *INPUTS]), "effective_attention"]
    specs += [
        *VARIANTS.values(),
        *INPUT_VARIANTS.values(),
        method("effective_attention", value_bias=False, per_head=True),
    ]
    specs += [method("effective_attention", per_head=True)]
    with torch.no_grad():
        out = model(**inputs, output_context_mixing=specs, output_decomposition=True)
    maps = out.context_mixing
    keys = list(maps)
    variants = dict(
        zip(
            [*VARIANTS, *INPUT_VARIANTS, "nobias", "bias"],
            keys[-len(VARIANTS) - len(INPUT_VARIANTS) - 2 :],
            strict=True,
        )
    )
    for method_name, key in LAYERS.items():
        assert gap(maps[method_name].layers[0], golden[key]) < 1e-9, method_name
    for method_name, key in INPUTS.items():
        assert gap(maps[method_name].input[0], golden[key]) < 1e-9, method_name
    for key in VARIANTS:
        assert gap(maps[variants[key]].layers[0], golden[key]) < 1e-9, key
    for key in INPUT_VARIANTS:
        assert gap(maps[variants[key]].input[0], golden[key]) < 1e-9, key
    assert gap(maps[variants["nobias"]].heads[0], golden["effective_nobias"]) < 1e-9
    assert gap(maps[variants["bias"]].heads[0], golden["effective"]) < 1e-9
    assert (
        gap(maps["attention_flow"].aggregate("flow", row_shares=False)[0], golden["flow_raw"])
        < 1e-12
    )
    for stage, key in {
        "norm": "r_N",
        "norm_res": "r_RES",
        "norm_resln": "r_RESLN",
        "norm_enc": "r_ENC",
    }.items():
        assert gap(cm.mixing_ratios(out.decomposition, stage)[0], golden[key]) < 1e-9, stage
    for l, layer in enumerate(out.decomposition):
        assert gap(layer.block.output[0], golden["attn_block_out"][l]) < 1e-12
        assert gap(layer.attention[0], golden["attentions"][l]) < 1e-12
        assert gap(layer.output[0], golden["hidden_states"][l + 1]) < 1e-12


@pytest.mark.parametrize(("name", "path"), cases()[:4], ids=[name for name, _ in cases()[:4]])
def test_maps_in_float32(name: str, path: Path) -> None:
    """5e-6 of the maximum, 5e-5 for effective attention."""
    model, inputs, golden = load(path, torch.float32)
    names = [n for n in LAYERS if n != "hta_x_input"]
    with torch.no_grad():
        maps = model(
            **inputs, output_context_mixing=[*names, method("effective_attention", per_head=True)]
        ).context_mixing
    for method_name in names:
        assert gap(maps[method_name].layers[0], golden[LAYERS[method_name]]) < 5e-6, method_name
    assert gap(maps["effective_attention"].heads[0], golden["effective"]) < 5e-5


CLASSIFIERS = [(n, p) for n, p in cases() if n.split("__")[0] not in ("tiny_bert", "tiny_bert_mlm")]


@pytest.mark.parametrize(("name", "path"), CLASSIFIERS, ids=[n for n, _ in CLASSIFIERS])
def test_attributions_of_classifiers(name: str, path: Path) -> None:
    model, inputs, golden = load(path)
    ids = {"mask_token_id": 4, "unk_token_id": 3 if "roberta" in name else 1}

    def scores(kind: str, of: str = "prob", **options: object) -> torch.Tensor:
        result = cm.attribute(model, inputs, kind, of=of, **ids, **options)
        assert result.meta["class_index"] == [int(golden["sal_class"])]
        return result.scores[0]

    for of in ("prob", "logit"):
        sal = f"sal_{of}_"
        assert gap(scores("grad_l2", of), golden[sal + "grad_l2"]) < 1e-9
        assert gap(scores("grad_l2", of, shares=False), golden[sal + "grad_l2_raw"]) < 1e-9
        assert (
            gap(scores("grad_dot_input", of, signed=False), golden[sal + "graddotinput_abs"]) < 1e-9
        )
        assert gap(scores("grad_dot_input", of), golden[sal + "graddotinput_signed"]) < 1e-9
        assert gap(scores("grad_x_input", of), golden[sal + "gradxinput_l2_raw"]) < 1e-9
        assert gap(scores("grad_sum", of), golden[sal + "gradsum_abs_raw"]) < 1e-9
        riemann = scores("integrated_gradients", of, rule="riemann", signed=False)
        assert gap(riemann, golden[f"ig_{of}"]) < 1e-9  # the papers': 100 steps of the right sum
        gauss = scores("integrated_gradients", of, steps=100, signed=False)
        assert gap(gauss, golden[f"ig_{of}_gl"]) < 1e-9
        for baseline in ("zero", "mask"):
            assert (
                gap(
                    scores("deeplift", of, baseline=baseline, reduce="l2", shares=False),
                    golden[f"dl_{of}_{baseline}_l2_raw"],
                )
                < 1e-9
            )
    assert gap(scores("blank_out", replace_with="unk"), golden["blankout_unk"]) < 1e-9
    assert gap(scores("blank_out", replace_with="mask"), golden["blankout_mask"]) < 1e-9


def test_attributions_of_a_masked_word() -> None:
    path = dict(cases())["tiny_bert_mlm__s1"]
    model, inputs, golden = load(path)
    inputs["input_ids"] = torch.tensor(golden["mlm_input_ids"]).view(1, -1)
    question = {
        "class_index": int(golden["mlm_target_id"]),
        "foil": int(golden["mlm_foil_id"]),
        "mask_token_id": 4,
        "unk_token_id": 1,
    }
    for replacement in ("unk", "mask"):
        found = cm.attribute(
            model, inputs, "blank_out", replace_with=replacement, **question
        ).scores[0]
        assert gap(found, golden[f"mlm_blankout_{replacement}"]) < 1e-9
    for of, key in {"prob": "prob2", "logit": "logit"}.items():
        if of == "logit":
            question.pop("foil")  # the golden numbers are of the target's logit alone
        for layer in range(len(golden["mlm_logit_layer_grad_l2"])):
            grad = cm.attribute(
                model, inputs, "grad_l2", of=of, layer=layer, shares=False, **question
            ).scores[0]
            times = cm.attribute(
                model, inputs, "grad_x_input", of=of, layer=layer, **question
            ).scores[0]
            dot = cm.attribute(
                model, inputs, "grad_dot_input", of=of, layer=layer, **question
            ).scores[0]
            for mine, name in (
                (grad, "grad_l2"),
                (times, "gradxinput_l2"),
                (dot, "graddotinput_signed"),
            ):
                theirs = golden[f"mlm_{key}_layer_{name}"][layer]
                if np.abs(theirs).max() > 0:
                    scale = (
                        1.0
                        if name != "grad_l2" or not np.isclose(theirs.sum(), 1)
                        else float(mine.sum())
                    )
                    assert gap(mine / scale, theirs) < 1e-9, (name, layer)
