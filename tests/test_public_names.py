"""The public names exist, are sorted, documented, and cheap to look at."""

from __future__ import annotations

import subprocess
import sys

import ctxmix_hf as cm


def test_every_public_name_is_there_and_documented() -> None:
    for name in cm.__all__:
        value = getattr(cm, name)
        assert name == "__version__" or value.__doc__, name
        assert not hasattr(value, "__path__"), f"{name} is a module, not the thing itself"


def test_names_the_issues_promise() -> None:
    tasks = [
        "",
        "ForSequenceClassification",
        "ForMaskedLM",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForImageClassification",
        "ForAudioClassification",
    ]
    promised = {f"AutoContextMixingModel{task}" for task in tasks} | {
        "instrument",
        "uninstrument",
        "verify",
        "supported_architectures",
        "list_methods",
        "attribute",
        "similarity",
        "load_default",
        "MapStore",
        "evaluate",
    }
    assert promised <= set(cm.__all__)


def test_import_does_not_load_torch() -> None:
    code = "import sys, ctxmix_hf; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list_methods_has_what_the_papers_have() -> None:
    kinds = {info.name: info.kind for info in cm.list_methods()}
    layer = {
        "attention",
        "attention_fixedres",
        "attention_res",
        "effective_attention",
        "norm",
        "norm_fixedres",
        "norm_res",
        "norm_resln",
        "norm_enc",
        "alti",
        "value_zeroing",
        "hta_x_input",
    }
    whole = {"attention_rollout", "attention_flow", "globenc", "norm_rollout", "hta"}
    scores = {
        "grad_l2",
        "grad_dot_input",
        "grad_x_input",
        "grad_sum",
        "integrated_gradients",
        "deeplift",
        "blank_out",
        "random",
    }
    assert {n for n, k in kinds.items() if k == "layer"} >= layer
    assert {n for n, k in kinds.items() if k == "input"} >= whole
    assert {n for n, k in kinds.items() if k == "attribution"} >= scores
    assert all(info.paper and info.equation and info.cost for info in cm.list_methods())
