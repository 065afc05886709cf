"""`ctxmix doctor`: the exactness check on a probe."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from ctxmix_hf import loading
from ctxmix_hf.auto import model_path
from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import InputError
from ctxmix_hf.verification import verify


def run(args: Any, console: Console) -> int:
    loading.quiet(args.debug)
    text_model = _reads_text(args)
    model, tokenizer = loading.load(args.model, revision=args.revision, dtype=args.dtype, device=args.device, tokenizer=text_model)
    probe = (args.text or loading.example_of(args.model, tokenizer)) if text_model else _signal(model, args.model)
    found = verify(model, probe, tokenizer)
    if console.as_json:
        console.data({"model": args.model, "exact": found.exact, **found.as_dict()})
    else:
        console.say(str(found))
        console.say(f"\n{args.model}: {'every layer is exact' if found.exact else 'not every layer is exact, see above'}.")
    return 0 if found.exact else 1


def _reads_text(args: Any) -> bool:
    """Whether the model takes token ids: then it has a vocabulary."""
    try:
        config = transformers.AutoConfig.from_pretrained(model_path(args.model), revision=args.revision)
    except (OSError, ValueError):
        return True  # a pointer, or an error that loading explains
    return not hasattr(config, "image_size") and not hasattr(config, "conv_dim") and not hasattr(config, "num_mel_bins")


def _signal(model: Any, name: str) -> dict[str, Any]:
    """Noise of the shape a vision or speech model takes."""
    config, made = model.config, torch.Generator().manual_seed(0)
    key = getattr(model, "main_input_name", "")
    if key == "pixel_values":
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size, config.image_size)
        shape: tuple[int, ...] = (1, getattr(config, "num_channels", 3), *size)
    elif key == "input_values" and hasattr(config, "num_mel_bins"):
        shape = (1, getattr(config, "max_length", 1024), config.num_mel_bins)
    elif key == "input_values":
        shape = (1, 8000)
    else:
        raise InputError(f"No probe is known for {name!r}, which takes {key!r}: use ctxmix_hf.verify(model, batch).")
    values = torch.randn(shape, generator=made).to(model.device, model.dtype)
    return {key: values}
