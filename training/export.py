"""Writes a trained model as the folder that `from_pretrained` opens offline."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from corpus import HELDOUT_RULE, BoxData, is_heldout


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Weights in float16 to halve the package; the config says float32, so that loading widens them."""
    model = copy.deepcopy(model).half()
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # save_pretrained leaves it for its owner only
    tokenizer.backend_tokenizer.no_truncation()  # a trace of how it was last called, not a property
    tokenizer.save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_heldout(data: BoxData, folder: Path) -> None:
    """The rows an evaluation may use, by index and by rule, so that it need not import this script."""
    rows = [index for index, pair in enumerate(data.cues) if is_heldout(pair)]
    entry = {
        "file": data.cue_source,
        "rows_in_file": len(data.cues),
        "rule": HELDOUT_RULE,
        "heldout_rows": rows,
    }
    (folder / "heldout.json").write_text(json.dumps(entry) + "\n", encoding="utf-8")
