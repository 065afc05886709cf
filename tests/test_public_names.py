"""The public names exist, are sorted, documented, and cheap to look at."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import transformers

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


def public_callables() -> list[tuple[str, Callable[..., object]]]:
    """Public functions, and the public methods of public classes that take two arguments or more."""
    found: list[tuple[str, Callable[..., object]]] = []
    for name in cm.__all__:
        thing = getattr(cm, name)
        if inspect.isfunction(thing):
            found.append((name, thing))
        elif inspect.isclass(thing) and thing.__module__.startswith("ctxmix_hf"):
            for key, value in vars(thing).items():
                own = getattr(value, "__func__", value)
                if inspect.isfunction(own) and not key.startswith("_"):
                    taken = [
                        p for p in inspect.signature(own).parameters if p not in ("self", "cls")
                    ]
                    if len(taken) > 1 and not issubclass(thing, transformers.Pipeline):
                        found.append((f"{name}.{key}", own))
    return found


@pytest.mark.parametrize(
    ("name", "function"), public_callables(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_argument_is_documented(name: str, function: Callable[..., object]) -> None:
    told = inspect.getdoc(function) or ""
    _, _, arguments = told.partition("Args:")
    for parameter in inspect.signature(function).parameters:
        if parameter not in ("self", "cls"):
            assert re.search(rf"^\s+{parameter}: ", arguments, re.MULTILINE), (
                f"{name}: {parameter} is not documented"
            )
