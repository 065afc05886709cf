"""Optional (`--teacher`): soft labels of a larger sentiment model, asked once and kept in the work folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from corpus import BoxData


def soft_labels(folder: str, data: BoxData, work: Path) -> dict[str, float]:
    """Training phrase -> the teacher's probability of `positive`, halfway between it and the gold label.

    `folder` is any two-class folder or Hub id that AutoModelForSequenceClassification opens (1 = positive).
    """
    file = work / "teacher.json"
    if not file.is_file():
        labels = _ask_teacher(folder, sorted({text for text, _ in data.sst_train}))
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(labels), encoding="utf-8")
        partial.replace(file)
    positive = json.loads(file.read_text(encoding="utf-8"))
    return {text: (positive[text] + gold) / 2 for text, gold in data.sst_train}


@torch.no_grad()
def _ask_teacher(folder: str, texts: list[str]) -> dict[str, float]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    texts = sorted(texts, key=len)
    labels: dict[str, float] = {}
    for start in tqdm(range(0, len(texts), 128), desc="teacher", disable=not sys.stderr.isatty()):
        some = texts[start : start + 128]
        batch = tokenizer(some, padding=True, truncation=True, return_tensors="pt")
        labels.update(zip(some, model(**batch).logits.softmax(dim=1)[:, 1].tolist(), strict=True))
    return labels
