"""Which explanation should be believed? Cue alignment, faithfulness, erasure, plausibility and sanity of maps, scores
and the ledger, on every model at hand.

    python benchmarks/ledger_evidence.py                        # all models, 500 sentences each
    python benchmarks/ledger_evidence.py --only box_agreement --sentences 100

Data: BLiMP sentences with known cues for the masked word, and SST-2's dev sentences. A word of an
    SST-2 sentence counts as marked by people where it is a phrase of its own in the training file,
    labelled like the sentence. Reactions (rxnfp, --reactions): lines `product >> reactants` of
    USPTO-50k's test file, as github bigchem/retrosynthesis carries it; a token of the product is
    masked. Antibodies (antiberty, --antibodies): V and J genes joined, from the folder
    databases/gene_db/aa_genes_first_allele of the package riot-na; a residue is masked. Of twelve
    places drawn the one is asked about where the model is right and least sure; the foil is its
    second choice. The ledger and integrated gradients are signed, of the answer against its foil.
Stopped and started again it goes on. Results: benchmarks/results/ledger_evidence.json, with the commit.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ctxmix_hf as cm
from ctxmix_hf.evaluation import as_published, signed

sys.path.insert(0, str(Path(__file__).parent))
from testbed import SMILES, load_head, load_masked

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ledger_evidence.json"
MAPS = ["attention_rollout", "globenc", "alti", "value_zeroing"]
RECENT = ["decompx", "norm_ff+rollout", "alti_logit", "attention_gradient"]  # of 2021 to 2024
# the second is AttnLRP's way through the softmax
LEDGERS = ["ledger", as_published("ledger", rule="through")]
SIGNED = [signed("integrated_gradients"), signed("grad_dot_input")]
METHODS = [*MAPS, *RECENT, *LEDGERS, *SIGNED, "random"]
SANITY = 12  # sentences: each is explained by every method at every stage
LONGEST, TRIED = 80, 12  # tokens of a reaction; places of which one is asked about


@dataclass(frozen=True)
class Subject:
    name: str
    load: Callable[[], tuple[Any, Any]]
    data: Any
    tables: tuple[str, ...]
    erased: int = 250  # sentences at most: every method erases each of them 14 times
    most: int | None = None  # sentences at most, where one takes long


def marked(folder: Path) -> list[dict[str, Any]]:
    """SST-2's dev sentences, with the words that people labelled like the sentence when they saw them alone."""
    with (folder / "train.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    alone = {row["text"].strip(): row["label"] for row in rows if len(row["text"].split()) == 1}
    with (folder / "dev.tsv").open(encoding="utf-8") as file:
        dev = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    made = []
    for row in dev:
        words = row["text"].split()
        gold = [i for i, word in enumerate(words) if alone.get(word) == row["label"]]
        made.append({"words": words, "label": int(row["label"]), "rationale_indices": gold})
    return made


def reactions(path: Path) -> list[tuple[list[str], list[int]]]:
    """Tokens of `reactants>>product`, and the places of the product's atoms."""
    made = []
    for line in path.read_text(encoding="utf-8").splitlines():
        product, _, reactants = line.partition(" >> ")
        words = re.findall(SMILES, f"{reactants}>>{product}")
        if len(words) <= LONGEST:
            start = words.index(">>") + 1
            places = [
                i for i in range(start, len(words)) if words[i][0].isalpha() or words[i][0] == "["
            ]
            made.append((words, places))
    return made


def antibodies(folder: Path) -> list[tuple[list[str], list[int]]]:
    """Variable domains as germlines have them: each V gene with one of the J genes of its locus, in turn."""
    made = []
    for species in ("human", "mouse"):
        joining = {
            locus: fasta(folder / "j_genes" / species / f"{locus}.fasta")
            for locus in ("igh", "igk", "igl")
        }
        for number, (name, letters) in enumerate(fasta(folder / "v_genes" / f"{species}.fasta")):
            genes = joining[name[:3].lower()]
            words = list(letters + genes[number % len(genes)][1])
            made.append((words, list(range(len(words)))))
    return made


def fasta(path: Path) -> list[tuple[str, str]]:
    """`(name, letters)` of each record."""
    records = path.read_text(encoding="utf-8").split(">")[1:]
    return [(r.split()[0], "".join(r.split("\n")[1:]).replace("*", "")) for r in records]


@torch.no_grad()
def questions(
    loaded: tuple[Any, Any], texts: list[tuple[list[str], list[int]]], count: int
) -> list[dict[str, Any]]:
    """Rows to mask: of some places the one where the model is right and least sure, against its second choice."""
    model, tokenizer = loaded
    drawn = random.Random(0)
    order = drawn.sample(texts, len(texts))
    rows: list[dict[str, Any]] = []
    for words, places in order:
        tried = drawn.sample(places, min(TRIED, len(places)))
        masked = [
            [tokenizer.mask_token if i == t else w for i, w in enumerate(words)] for t in tried
        ]
        inputs = tokenizer([" ".join(m) for m in masked], return_tensors="pt", padding=True)
        logits = model(**inputs).logits
        wanted = torch.tensor([tokenizer.convert_tokens_to_ids(words[t]) for t in tried])
        at = logits[torch.arange(len(tried)), torch.tensor(tried) + 1]  # [CLS] stands before
        at[:, tokenizer.all_special_ids] = -torch.inf
        right = at.gather(1, wanted[:, None])[:, 0]
        others = at.scatter(1, wanted[:, None], -torch.inf)
        margin = right - others.amax(dim=-1)
        if bool((margin > 0).any()):
            k = int(torch.where(margin > 0, margin, torch.inf).argmin())
            foil = tokenizer.convert_ids_to_tokens(int(others[k].argmax()))
            row = {"words": words, "target_index": tried[k], "good_word": words[tried[k]]}
            rows.append({**row, "bad_word": foil})
        if len(rows) == count:
            break
    return rows


def subjects(asked: argparse.Namespace) -> list[Subject]:
    folder = asked.data
    cues, sst2 = str(folder / "blimp_number_agreement_cues.jsonl"), marked(folder / "sst2")
    agreement, sentiment = (
        ("cue_alignment", "faithfulness", "erasure"),
        ("faithfulness", "erasure", "plausibility"),
    )
    made = [
        Subject("box_agreement", lambda: ("ctxmix/agreement", None), cues, agreement),
        Subject("minilm_agreement", lambda: load_head("minilm-agreement-mlm"), cues, agreement),
        Subject("box_sentiment", lambda: ("ctxmix/sentiment", None), sst2, sentiment),
        Subject("minilm_sst2", lambda: load_head("minilm-sst2"), sst2, sentiment, 150),
    ]
    for package, texts, most in (("rxnfp", reactions, 120), ("antiberty", antibodies, 40)):
        path = asked.reactions if package == "rxnfp" else asked.antibodies
        if asked.only and package not in asked.only:
            continue
        if path is None:
            print(f"{package} left out: name its data ({texts.__name__})", flush=True)
            continue
        rows = questions(load_masked(package), texts(path), min(most, asked.sentences))
        load = partial(load_masked, package)
        made.append(Subject(package, load, rows, ("faithfulness", "erasure"), most // 2, most))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = ROOT.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--reactions", type=Path, help="product >> reactants, one a line")
    parser.add_argument("--antibodies", type=Path, help="v_genes/ and j_genes/ of riot-na")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("/tmp/ctxmix_ledger_evidence"))
    parser.add_argument("--only", nargs="*", help="models")
    parser.add_argument("--tables", nargs="*", help="evaluations")
    parser.add_argument("--sentences", type=int, default=500, help="0: sanity only")
    parser.add_argument("--sanity", type=int, default=SANITY, help="sentences; 0: none")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    for subject in subjects(asked):
        if asked.only and subject.name not in asked.only:
            continue
        model, tokenizer = subject.load()
        plan: list[tuple[str, Any, int]] = []
        if asked.sentences:
            chosen = [name for name in subject.tables if name in (asked.tables or subject.tables)]
            size = min(asked.sentences, subject.most or asked.sentences)
            least = {"erasure": min(size, subject.erased)}
            plan += [(name, METHODS, least.get(name, size)) for name in chosen]
        if asked.sanity:
            plan += [(name, None, asked.sanity) for name in ("randomisation", "completeness")]
        for name, methods, count in plan:
            start = time.process_time()
            table = cm.evaluate(
                name,
                model=model,
                tokenizer=tokenizer,
                data=subject.data,
                methods=methods,
                limit=count,
                resume=asked.work / subject.name,
                progress=False,
            )
            seconds = round(time.process_time() - start, 1)
            print(f"{subject.name} {name}: {seconds} s, n = {table.meta['sentences']}", flush=True)
            found = json.loads(asked.results.read_text()) if asked.results.is_file() else {}
            row = {**table.to_dict(), "commit": commit, "cpu_seconds": seconds}
            found.setdefault(subject.name, {})[name] = row
            asked.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
