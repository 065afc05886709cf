"""The committed run of the papers' items: `ctxmix papers` with MiniLM's heads and the corpora at hand.

    python benchmarks/papers.py [--data ../shared/data] [--work /tmp/ctxmix_papers] [--only NAME ...]
        [--results benchmarks/results/papers.json]

Writes benchmarks/results/papers.json after every part and can be stopped and started again;
`python scripts/papers.py` writes docs/papers.md of it. On your own models: `ctxmix papers`. Parts of
speech need HanTa (the extra `pos`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ctxmix_hf.evaluation.fitting import FOUR, QUICK, Fitting
from ctxmix_hf.evaluation.papers import reproduce, tune

sys.path.insert(0, str(Path(__file__).parent))
from testbed import base_folder, load_head

RESULTS = Path(__file__).parent / "results" / "papers.json"
TUNING = RESULTS.with_name("tuning.json")  # how good the models are that a run tunes itself
SST2, AGREEMENT, BASE = "minilm-sst2", "minilm-agreement-mlm", "minilm"
HEAD_ONLY, PROMPTED = "minilm-head-tuned", "minilm-prompt-tuned"


@dataclass(frozen=True)
class Part:
    """Some items on one model: None is the bundled one."""

    name: str
    papers: list[str]
    items: list[str]
    limit: int | None
    classifier: str | None = None
    masked_lm: str | None = None
    encoder: str | None = None
    before: str | None = None
    fitting: Fitting = QUICK


VARIANTS = ["Table 1", "Table 2", "Figure 3"]
HIDDEN = ["Figure 3a", "Figure 3b", "Figure 4a", "Figure 4b", "Figure 18a", "Figure 18b"]
COLA = ["Figure 40a", "Figure 40b", "Figure 41a", "Figure 41b"]
HEADS = ["Section 3.1", "Figure 1a", "Figure 1b", "Figure 1c", "Figure 5a", "Figure 5b"]
CUES = ["Figure 2a", "Figure 2b", "Figure A.2", "Figure 3", "Table 2", "Table 3", "Table 3 varied"]
TUNED = ["Figure 12", "Figure 13"]
NEAR = ["Figure 14", "Figure 15", "Figure 16", "Figure 17"]
TEN = Fitting(folds=10)  # as the paper; elsewhere three, which is written into the entries
UNTUNED = ["Figure 1a", "Figure 1b", "Table 2, PT", "Table 3, PT"]
# what the issue asks first, the slow ones last; ctxmix papers takes whole corpora without a limit
PARTS = (
    Part("agreement cues", ["value_zeroing"], CUES, 1000),
    Part("agreement compression", ["value_zeroing"], ["Figure 3"], None),
    Part("agreement verbs", ["alti"], ["Table 2 (linzen)"], 500),
    Part("minilm heads", ["brunner"], HEADS, 408, encoder=AGREEMENT),
    Part("minilm alternatives", ["brunner"], ["Section 3.3"], 408, encoder=AGREEMENT),
    Part("minilm tuned", ["brunner"], ["Figure 12"], 408, encoder=SST2, before=BASE),
    Part("minilm tuned on agreement", ["brunner"], TUNED, 408, encoder=AGREEMENT, before=BASE),
    Part("minilm tuned on sentiment", ["brunner"], TUNED[1:], 408, encoder=SST2, before=BASE),
    Part("minilm speed", ["globenc"], ["Section 4.3.2"], 10, SST2),
    Part("agreement distances", ["value_zeroing"], ["Figure A.1"], 200),
    Part("agreement cola", ["brunner"], ["Figure 38", *COLA], 100),
    Part("minilm layers", ["abnar"], ["Table 3"], 100, SST2),
    Part("agreement pronouns", ["abnar"], ["Figure 4"], None),
    Part("minilm identified", ["brunner"], ["Figure 2a"], 408, encoder=AGREEMENT, fitting=TEN),
    Part("minilm before", ["value_zeroing"], UNTUNED, 1000, before=HEAD_ONLY),
    Part("minilm after", ["value_zeroing"], CUES, 1000, masked_lm=PROMPTED),
    Part("minilm compression", ["value_zeroing"], ["Figure 3"], None, masked_lm=PROMPTED),
    Part("agreement gap", ["brunner"], ["Figure 7 (mrpc)", "Section B.2"], 100),
    Part("agreement across", ["brunner"], ["Figure 8", "Figure 9", "Figure 10"], 100),
    Part("agreement neighbours", ["brunner"], NEAR, 100),
    Part("agreement four maps", ["brunner"], ["Figure 2a"], 100, fitting=Fitting(maps=FOUR)),
    Part("minilm spaces", ["alti"], ["Figure 3"], 500, SST2),
    Part("minilm single layers", ["globenc"], ["Figure 4"], 30, SST2),
    Part("minilm consistency", ["alti"], ["Figure 7"], None, SST2),
    Part("agreement layers", ["abnar"], ["Table 1", "Table 2"], 500),
    Part("minilm variants", ["globenc"], VARIANTS, None, SST2),
    Part("minilm norms", ["globenc"], ["Figure 5"], 1, SST2),
    Part("minilm sentiment", ["alti"], ["Table 2 (sst2)", "Figure 6"], None, SST2),
    Part("sentiment variants", ["globenc"], VARIANTS, None),
    Part("minilm verbs", ["alti"], ["Table 2 (linzen)"], 500, masked_lm=AGREEMENT),
    Part("minilm verb layers", ["abnar"], ["Table 1", "Table 2"], 500, masked_lm=AGREEMENT),
    Part("agreement mixing", ["brunner"], HIDDEN, 100),
    Part("agreement parts of speech", ["brunner"], ["Figure 26 to 37"], 100),
    Part("minilm mixing", ["brunner"], [*HIDDEN, "Figure 26 to 37"], 24, encoder=AGREEMENT),
    Part("minilm hidden", ["brunner"], ["Figure 2b", "Figure 11"], 408, encoder=AGREEMENT),
)


def opened(name: str, work: Path, blimp: Path) -> Any:
    """A model of the testbed, or MiniLM with a masked LM's head of its own, tuned on BLiMP by `tune`: the head alone
    (the encoder is the published one), and then all of it. A folder, because that says which half was held out."""
    if name == BASE:
        model = transformers.AutoModel.from_pretrained(base_folder())
        model.config._name_or_path = name
        return model.eval(), transformers.AutoTokenizer.from_pretrained(base_folder())
    if name not in (HEAD_ONLY, PROMPTED):
        return load_head(name)
    place = work / name
    if not place.is_dir():
        if name == HEAD_ONLY:
            torch.manual_seed(0)
            tokenizer = transformers.AutoTokenizer.from_pretrained(base_folder())
            start = transformers.AutoModelForMaskedLM.from_pretrained(base_folder())
            start.config._name_or_path = BASE
            how: dict[str, Any] = {"only_head": True, "rate": 1e-3, "epochs": 2}
            made = tune((start, tokenizer), work / f"tuning-{name}", str(blimp), **how)
        else:
            start = opened(HEAD_ONLY, work, blimp)
            how = {"rate": 5e-5, "epochs": 1}
            made = tune(start, work / f"tuning-{name}", str(blimp), **how)
        print(made, flush=True)
        shutil.copytree(made.folder, place)
        told = {key: value for key, value in json.loads(made.to_json()).items() if key != "folder"}
        told["model"] = BASE if name == HEAD_ONLY else HEAD_ONLY
        held = json.loads(TUNING.read_text(encoding="utf-8")) if TUNING.is_file() else {}
        TUNING.write_text(json.dumps({**held, name: {**told, **how}}, indent=1) + "\n")
    return str(place)


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries by paper, item, model and corpus; what was made now takes the old one's place."""
    known = {(e["paper"], e["item"], e["model"], e["data"]): e for e in [*old, *new]}
    return [known[key] for key in sorted(known)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared, help="sst2/, blimp/, linzen/, mrpc/")
    parser.add_argument("--work", type=Path, default=Path("/tmp/ctxmix_papers"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", help=", ".join(part.name for part in PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = {
        "sst2": str(arguments.data / "sst2" / "dev.tsv"),
        "blimp": str(arguments.data / "blimp"),
        "linzen": str(arguments.data / "linzen" / "subj_agr_filtered.text"),
        "mrpc": str(arguments.data / "mrpc" / "msr_paraphrase_test.txt"),
        "cola": str(arguments.data / "cola"),
    }
    heads: dict[str, Any] = {}
    for part in PARTS:
        if arguments.only and part.name not in arguments.only:
            continue
        models = {}
        for role in ("classifier", "masked_lm", "encoder", "before"):
            name = getattr(part, role)
            if name is not None:
                heads[name] = heads.get(name) or opened(name, arguments.work, Path(data["blimp"]))
                models[role] = heads[name]
        report = reproduce(
            arguments.work,
            part.papers,
            items=part.items,
            limit=part.limit,
            data=data,
            fitting=part.fitting,
            **models,
        )
        made = list(report.entries)
        place = arguments.results
        held = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else []
        place.write_text(
            json.dumps(merged(held if isinstance(held, list) else [], made), indent=1) + "\n",
            encoding="utf-8",
        )
        for entry in made:
            print(part.name, entry["item"], f"n = {entry['n']},", entry["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
