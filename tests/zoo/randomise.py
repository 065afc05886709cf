"""Redraws every parameter, so that a lost bias, gain or head order shows in a reconstruction."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

_LAYER_SCALE = re.compile(r"lambda_?\d$|lambdas$|layer_?scale", re.I)
_GAIN = re.compile(r"(residual|scale|original0)$")  # the last is the gain of a weight norm


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """In place (tied parameters stay tied and are drawn once), from a generator seeded with `seed`."""
    generator = torch.Generator().manual_seed(seed)
    done: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in done or not parameter.is_floating_point():
                continue
            done.add(id(parameter))
            mean, std = _law(module, f"{prefix}.{name}", parameter)
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.copy_(mean + std * noise)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            # as after training; MobileBERT sees its neighbours
            module.weight[module.padding_idx] = 0


def _law(module: nn.Module, path: str, parameter: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of one parameter."""
    leaf, kind = path.rsplit(".", 1)[-1], type(module).__name__
    if _LAYER_SCALE.search(path) and parameter.dim() == 1:
        return 0.5, 0.2
    if _GAIN.search(leaf):
        return 1.0, 0.3
    if "bias" in leaf:
        return 0.0, 0.3
    if "Norm" in kind and parameter.dim() == 1:
        return 1.0, 0.3
    if parameter.dim() < 2:
        return 0.0, 0.3
    if isinstance(module, nn.Embedding):
        return 0.0, 1.0
    if parameter.dim() == 3 and len(parameter) == 1:  # learned tokens and positions
        return 0.0, 0.5
    return 0.0, 1 / math.sqrt(max(1, _fan_in(module, parameter)))


def _fan_in(module: nn.Module, parameter: Tensor) -> int:
    shape = parameter.shape
    if type(module).__name__ in ("Conv1D", "XLNetRelativeAttention"):
        return shape[0]
    if parameter.dim() == 2 or isinstance(module, nn.modules.conv._ConvNd):
        return math.prod(shape[1:])
    return shape[-1]
