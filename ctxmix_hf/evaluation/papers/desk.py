"""Models and sentences that the items share: each pair is opened once, and its scores are computed once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ctxmix_hf.attribution import IntegratedGradients
from ctxmix_hf.attribution.ablation import BlankOut
from ctxmix_hf.bundled import AGREEMENT, SENTIMENT
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.evaluation.context import Context, EvaluationConfig
from ctxmix_hf.evaluation.data import Samples, read_data, tagged
from ctxmix_hf.evaluation.fitting import QUICK, Fitting
from ctxmix_hf.evaluation.heldout import SPLIT_SETS
from ctxmix_hf.evaluation.papers.cues import blimp_rows
from ctxmix_hf.evaluation.pronouns import sentences
from ctxmix_hf.evaluation.scores import Asked
from ctxmix_hf.evaluation.suite import open_context
from ctxmix_hf.recipes import method as recipe

# what a corpus is for, and what is read where none is given
DATA = {
    "sst2": "sentences with a label (SST-2)",
    "blimp": "masked words with a foil and cue words (BLiMP)",
    "linzen": "sentences whose verb is masked (Linzen et al. 2016)",
    "mrpc": "pairs of sentences (MRPC)",
    "cola": "single sentences (CoLA)",
    "mnli": "pairs of sentences (MNLI)",
    "pronouns": "masked pronouns with two candidates",
}
BUILT_IN = {
    "sst2": "sentiment",
    "blimp": "agreement",
    "linzen": "agreement",
    "mrpc": "sentiment",
    "cola": "sentiment",
    "mnli": "sentiment",
    "pronouns": "pronoun",
}
IN_PAIRS = ("mrpc", "mnli")
DEFAULTS = {
    "classifier": SENTIMENT.name,
    "masked_lm": AGREEMENT.name,
    "encoder": AGREEMENT.name,
}
BEFORE = "before"  # the masked LM or encoder before it was tuned: there is no bundled one
HEADS = {"classifier": "classifier", "masked_lm": "masked_lm", "encoder": "any", BEFORE: "any"}
# GlobEnc's variants as its table 1 calls them, and ours
VARIANTS = {
    "W": "attention",
    "W_FIXEDRES": "attention_rollout",
    "W_RES": "attention_res",
    "N": "norm",
    "N_FIXEDRES": "norm_fixedres",
    "N_RES": "norm_res",
    "N_RESLN": "norm_resln",
    "N_ENC": "globenc",
}
# Mohebbi et al.'s names, and ours
ANALYSED = {
    "Rand": "random",
    "Attn": "attention",
    "Attn-norm": "norm",
    "Attn-norm+RES": "norm_res",
    "Attn-norm+RES+LN": "norm_resln",
    "GlobEnc": "globenc",
    "ALTI": "alti",
    "GradXinput": "grad_x_input",
    "IG": "integrated_gradients",
    "DL": "deeplift",
    "Value Zeroing": "value_zeroing",
}
GRADIENTS = ("grad_x_input", "integrated_gradients", "deeplift")


ONCE = Asked(layerwise=())  # gradients at the input alone


@dataclass(frozen=True)
class Sheet:
    """What is computed of a corpus in one pass: methods, references, and which answer is explained."""

    role: str
    data: str
    methods: tuple[Any, ...] | None = None
    references: tuple[Any, ...] = ()
    asked: Asked = ONCE
    head: str | None = None  # where it is not the role's own


_IG = IntegratedGradients(steps=10, rule="gauss_legendre", signed=False)
SHEETS = {
    # the true class's logit, as Modarressi et al. 2022 (eq. 17)
    "sst2": Sheet(
        "classifier",
        "sst2",
        (*VARIANTS.values(), "norm_rollout", "alti"),
        ("grad_l2", "grad_x_input", "grad_sum"),
        Asked("true", "logit", ()),
    ),
    "sst2 flow": Sheet(
        "classifier",
        "sst2",
        ("attention", "attention_rollout", "attention_flow"),
        ("grad_sum",),
        Asked("true", "logit", ()),
    ),
    "sst2 two models": Sheet(
        "classifier",
        "sst2",
        ("alti", "attention_rollout", "norm_rollout"),
        ("grad_l2", "grad_dot_input", _IG),
    ),
    "blimp": Sheet(
        "masked_lm",
        "blimp",
        (
            *(name for name in ANALYSED.values() if name not in GRADIENTS),
            "attention_rollout",
            "norm_rollout",
        ),
        ("blank_out", "grad_x_input", "deeplift", _IG),
        Asked(layerwise=GRADIENTS),
    ),
    "blimp distances": Sheet(
        "masked_lm",
        "blimp",
        (
            recipe("value_zeroing"),
            recipe("value_zeroing", distance="euclidean"),
            recipe("value_zeroing", distance="euclidean", normalised=True),
            recipe("value_zeroing", distance="spearman"),
        ),
    ),
    "linzen": Sheet(
        "masked_lm",
        "linzen",
        ("attention", "attention_rollout", "attention_flow"),
        ("blank_out", "grad_sum"),
    ),
    "linzen mask": Sheet(
        "masked_lm",
        "linzen",
        ("attention_rollout", "norm_rollout", "alti"),
        (BlankOut(replace_with="mask"),),
    ),
    "blimp by mask": Sheet(
        "masked_lm",
        "blimp",
        ("value_zeroing", "alti", "globenc"),
        (BlankOut(replace_with="mask"),),
    ),
    "pronouns": Sheet(
        "masked_lm", "pronouns", ("attention", "attention_rollout", "attention_flow")
    ),
    **{name: Sheet("encoder", name) for name in ("mrpc", "cola", "mnli")},
    "mrpc before": Sheet(BEFORE, "mrpc"),
    "cola before": Sheet(BEFORE, "cola"),
}
SHEETS["blimp before"] = replace(SHEETS["blimp"], role=BEFORE, head="masked_lm")


@dataclass
class Desk:
    """The models and data of a run of the papers. `pos_tags` gives words their parts of speech.

    Models are names, folders or `(model, tokenizer)`; data are Hub ids, files or rows by their name
    in `DATA`. `limit` holds for every item; some items take fewer (`most`), because they cost more.
    """

    models: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    seed: int = 0
    work: Path | None = None
    progress: bool | None = None
    fitting: Fitting = QUICK
    pos_tags: Callable[[list[str]], Sequence[str]] | None = None
    trust_remote_code: bool = False
    _samples: dict[str, Samples] = field(default_factory=dict, repr=False)
    _contexts: dict[Any, Context] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in self.data:
            if name not in DATA:
                raise OptionError(f"data is for {', '.join(DATA)}; {name!r} is none of them.")

    def model_name(self, role: str) -> str:
        """As results call it: a folder by its name alone, because results are published."""
        given = self.models.get(role) or DEFAULTS.get(role, "none")
        if isinstance(given, tuple | list):
            return str(getattr(given[0].config, "_name_or_path", "") or type(given[0]).__name__)
        return Path(given).resolve().name if Path(given).is_dir() else str(given)

    def data_name(self, name: str) -> str:
        """As results call it: the corpus, and where it was read from."""
        given = self.data.get(name)
        if given is None:
            pairs = ", in pairs" if name in IN_PAIRS else ""
            return f"{name}: built-in {BUILT_IN[name]} sentences{pairs}"
        return f"{name}: {Path(given).name if isinstance(given, str | Path) else 'rows given'}"

    def is_second(self, role: str = "classifier") -> bool:
        """Is there another model of this kind to compare with: the bundled one?"""
        return self.model_name(role) != DEFAULTS[role]

    def seen(self, role: str, data: str) -> str:
        """Whether the model may have learned from the sentences it was asked about, in a sentence."""
        used = [
            context
            for (sheet, *_), context in self._contexts.items()
            if (SHEETS[sheet].role, SHEETS[sheet].data) == (role, data)
        ]
        if not used or not all(one.bench.heldout_only for one in used):
            return "The model has no heldout.json: it may have seen some of these sentences."
        split = all(
            one.bench.every_set or item.sample.group in SPLIT_SETS
            for one in used
            for item in one.ready
        )
        if split:
            return "The sentences are of the held-out half, which the model never saw (its heldout.json)."
        return "The sentences are of no set that the model learned from (its heldout.json)."

    def samples(self, name: str) -> Samples:
        """The sentences of one of `DATA`, read once."""
        if name not in self._samples:
            given = self.data.get(name)
            read = _built_in(name) if given is None else read_data(rows_of(name, given))
            self._samples[name] = tagged(read, self.pos_tags)
        return self._samples[name]

    def context(self, sheet: str, most: int | None = None, bundled: bool = False) -> Context:
        """The context of a sheet: at most `most` sentences, opened once."""
        made = SHEETS[sheet]
        limit = min((v for v in (self.limit, most) if v is not None), default=None)
        key = (sheet, limit, bundled)
        if key not in self._contexts:
            given = None if bundled else self.models.get(made.role)
            model, tokenizer = given if isinstance(given, tuple | list) else (given, None)
            if model is None and made.role == BEFORE:
                raise InputError(
                    "This item is about the model before it was tuned: give it (before=, --before)."
                )
            if model is None:
                model = DEFAULTS[made.role]
            built_in = made.data not in self.data
            opened = open_context(
                model,
                tokenizer,
                made.head or HEADS[made.role],  # type: ignore[arg-type]
                self.samples(made.data),
                built_in,
                EvaluationConfig(
                    None if made.methods is None else list(made.methods),
                    limit,
                    self.seed,
                    None if self.work is None else self.work / sheet.replace(" ", "_"),
                    self.progress,
                    made.asked,
                    made.references,
                    self.fitting,
                    self.trust_remote_code,
                ),
            )
            if made.asked.answer == "true":
                opened = replace(
                    opened, ready=tuple(r for r in opened.ready if r.label is not None)
                )
            opened.need_sentences()
            self._contexts[key] = opened
        return self._contexts[key]


def _built_in(name: str) -> Samples:
    """Sentences that come with the package, so that every item runs offline."""
    if name == "pronouns":
        return read_data(sentences())
    read = read_data(BUILT_IN[name])
    if name == "linzen":  # those whose masked word is a verb: its cue stands before it
        kept = tuple(
            s for s in read.kept if s.target is not None and min(s.cues, default=99) < s.target
        )
        return replace(read, kept=kept or read.kept)
    if name not in IN_PAIRS:
        return read
    texts = [sample.written(None)[0] for sample in read.kept]
    return read_data(
        [{"text": a, "pair": b} for a, b in zip(texts[::2], texts[1::2], strict=False)]
    )


def rows_of(name: str, given: Any) -> Any:
    """Rows of a corpus in the form its authors publish it; anything else is left to `read_data`."""
    if not isinstance(given, str | Path):
        return given
    path = Path(given).expanduser()
    if name == "linzen" and path.suffix == ".text":
        return linzen_rows(path)
    if name == "mrpc" and path.suffix == ".txt" and path.is_file():
        return mrpc_rows(path)
    if name == "blimp" and path.is_dir():
        return blimp_rows(path)
    if name == "cola" and (path.is_dir() or path.suffix == ".tsv"):
        return cola_rows(path)
    return str(given)


def linzen_rows(path: Path) -> list[dict[str, Any]]:
    """`NAME.text` and `NAME.gold` (Gulordava et al. 2018's form of Linzen et al. 2016): the verb is the target."""
    gold = path.with_suffix(".gold")
    if not path.is_file() or not gold.is_file():
        raise InputError(
            f"Linzen's sentences are two files, {path.name} and {gold.name}, side by side: give the path "
            "of the first."
        )
    rows = []
    texts = path.read_text(encoding="utf-8").splitlines()
    for text, line in zip(texts, gold.read_text(encoding="utf-8").splitlines(), strict=False):
        place, good, bad, *_ = line.split("\t")
        words = text.replace("<eos>", "").split()
        rows.append(
            {"words": words, "target_index": int(place), "good_word": good, "bad_word": bad}
        )
    return rows


def mrpc_rows(path: Path) -> list[dict[str, Any]]:
    """Microsoft's own file: tabs between label, two ids and two sentences, no quoting."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()[1:]
    cells = [re.split(r"\t", line) for line in lines]
    return [{"text": c[3], "pair": c[4], "label": c[0]} for c in cells if len(c) == 5]


def cola_rows(path: Path) -> list[dict[str, Any]]:
    """CoLA's own files (source, label, its authors' mark and the sentence, between tabs, without a head); of a folder
    both halves of the development set, as GLUE joins them."""
    paths = sorted(path.glob("*_dev.tsv")) if path.is_dir() else [path]
    if not paths:
        raise InputError(
            f"{path} holds no in_domain_dev.tsv or out_of_domain_dev.tsv: give CoLA's folder or one of its files."
        )
    lines = [line for one in paths for line in one.read_text(encoding="utf-8").splitlines()]
    cells = [line.split("\t") for line in lines]
    rows = [{"text": c[3], "label": c[1]} for c in cells if len(c) == 4]
    if not rows:
        raise InputError(
            f"{paths[0].name} is not one of CoLA's files: each line has a source, a label, a mark and a sentence, "
            "with tabs between."
        )
    return rows
