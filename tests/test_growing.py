"""Adding a method is one file: a toy method reaches the model call, the catalogue, the CLI and the Space's dropdown."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError
from ctxmix_hf.methods import METHODS, About, LayerMethod
from tests import zoo


@pytest.fixture
def toy():
    @METHODS.register("toy_uniform")
    @dataclass(frozen=True)
    class Uniform(LayerMethod):
        """`1 / n` for every real source."""

        rows_sum_to_one = True
        about = About(
            "the same from everybody", "-", "1/n", "none", "attention", "nothing", "everything"
        )

        def layer_map(self, layer, budget):
            real = layer.mask[:, None, :] & layer.mask[:, :, None]
            return real.to(layer.attention.dtype) / layer.mask.sum(dim=1)[:, None, None]

    yield Uniform
    METHODS.unregister("toy_uniform")


def test_toy_method_is_everywhere(toy, capsys) -> None:
    model, inputs = zoo.build("bert")
    with torch.no_grad():
        maps = cm.instrument(model)(
            **inputs, output_context_mixing=["toy_uniform", toy(), "toy_uniform+flow"]
        ).context_mixing
    assert torch.allclose(maps["toy_uniform"].layers[0].sum(-1), torch.ones(2, 7))
    assert "toy_uniform" in {info.name for info in cm.list_methods()}
    from ctxmix_hf.cli import main

    assert main(["methods", "--json"]) == 0
    assert "toy_uniform" in capsys.readouterr().out
    handlers = pytest.importorskip(
        "ctxmix_hf.demo.handlers", reason="the demo extra is not installed"
    )
    assert "toy_uniform" in handlers.map_methods()


def test_a_name_is_registered_once(toy) -> None:
    with pytest.raises(OptionError, match="already"):
        METHODS.register("toy_uniform")(toy)
