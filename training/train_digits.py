"""Train the small bundled vision model, `ctxmix/digits`, on scikit-learn's handwritten digits.

    python training/train_digits.py ctxmix_hf/models/digits

1,797 pictures of 8 by 8 pixels come with scikit-learn, so nothing is downloaded. Every fifth picture is held out; the
page's sample pictures (`ctxmix_hf/demo/digits.json`) are held-out ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

SIDE, PATCH = 32, 4  # each of the 8 by 8 pixels becomes one patch
CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
SAMPLES = 12
DEMO = Path(__file__).resolve().parents[1] / "ctxmix_hf" / "demo" / "digits.json"


def picture(values: np.ndarray) -> Image.Image:
    """The 8 by 8 grey values (0 to 16) as a picture; `ctxmix_hf.demo.pictures` draws its samples the same way."""
    grey = np.clip(values.reshape(8, 8) * 255 / 16, 0, 255).round().astype(np.uint8)
    return Image.fromarray(grey).convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST)


def tensors(processor: ViTImageProcessor, data: np.ndarray) -> torch.Tensor:
    return processor(images=[picture(row) for row in data], return_tensors="pt")["pixel_values"]


def train(epochs: int, seed: int) -> tuple[ViTForImageClassification, ViTImageProcessor, dict]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    digits = load_digits()
    held = np.arange(len(digits.data)) % 5 == 0
    processor = ViTImageProcessor(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    x, y = tensors(processor, digits.data[~held]), torch.tensor(digits.target[~held])
    names = {k: str(k) for k in range(10)}
    model = ViTForImageClassification(
        ViTConfig(
            **CONFIG,
            image_size=SIDE,
            patch_size=PATCH,
            id2label=names,
            label2id={name: k for k, name in names.items()},
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * (len(x) // 64 + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for epoch in range(epochs):
        model.train()
        for batch in torch.randperm(len(x), generator=generator).split(64):
            loss = model(x[batch], labels=y[batch]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        right = [
            (
                model(tensors(processor, digits.data[part])).logits.argmax(-1).numpy()
                == digits.target[part]
            ).mean()
            for part in (~held, held)
        ]
    return (
        model,
        processor,
        {"train": float(right[0]), "held_out": float(right[1]), "epochs": epochs, "seed": seed},
    )


def samples() -> list[dict]:
    """The first held-out picture of each digit, and two more."""
    digits = load_digits()
    held = list(range(0, len(digits.data), 5))
    first = [next(k for k in held if digits.target[k] == digit) for digit in range(10)]
    more = [k for k in held if k not in first and digits.target[k] in (4, 9)][: SAMPLES - 10]
    return [
        {
            "name": f"digit {digits.target[k]}" + (" (another)" if k in more else ""),
            "pixels": digits.data[k].astype(int).tolist(),
        }
        for k in [*first, *more]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=45)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model, processor, accuracy = train(given.epochs, given.seed)
    model.save_pretrained(given.folder)
    processor.save_pretrained(given.folder)
    weights = given.folder / "model.safetensors"
    save_file(
        {name: value.half() for name, value in load_file(weights).items()},
        weights,
        {"format": "pt"},
    )
    (given.folder / "training.json").write_text(
        json.dumps(accuracy, indent=1) + "\n", encoding="utf-8"
    )
    DEMO.write_text(json.dumps(samples(), separators=(",", ":")) + "\n", encoding="utf-8")
    print(accuracy, f"{weights.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
