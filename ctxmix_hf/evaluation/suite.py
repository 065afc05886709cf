"""`ctxmix_hf.evaluate`: from the name of a suite or an evaluation to its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ctxmix_hf.bundled import AGREEMENT, SENTIMENT
from ctxmix_hf.errors import OptionError, UnknownNameError
from ctxmix_hf.evaluation.bench import Bench, Head, architectures, open_bench
from ctxmix_hf.evaluation.context import EVALUATIONS, Context, EvaluationConfig
from ctxmix_hf.evaluation.data import BUILT_IN, Samples, read_data, tagged
from ctxmix_hf.evaluation.fitting import Fitting
from ctxmix_hf.evaluation.pronouns import sentences
from ctxmix_hf.evaluation.scores import Asked, Judged
from ctxmix_hf.evaluation.table import EvaluationReport, EvaluationTable, save_tables
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.session import instrumentation_of
from ctxmix_hf.loading import in_words
from ctxmix_hf.modeling import uninstrument
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model

# Each is what a suite runs, in this order; "all" is every one of them on the data and head of the model given.
SUITES: dict[str, tuple[str, ...]] = {
    "agreement": (
        "cue_alignment",
        "cue_alignment_sets",
        "faithfulness",
        "faithfulness_layers",
        "erasure",
        "erasure_curves",
        "mdl_probe",
        "mdl_alignment",
        "special_tokens",
        "method_matrix",
        "method_layers",
        "disagreement",
        "recommendation",
    ),
    "sentiment": (
        "faithfulness",
        "faithfulness_layers",
        "erasure",
        "erasure_curves",
        "plausibility",
        "special_tokens",
        "method_matrix",
        "method_layers",
        "disagreement",
        "recommendation",
    ),
    "identifiability": (
        "identifiability_layers",
        "identifiability_cross",
        "identifiability_hidden",
        "identifiability_neighbours",
    ),
    "mixing": ("mixing_own", "mixing_distance", "mixing_ratios", "effective_attention"),
    "sanity": ("randomisation", "completeness"),
}
# Asked for one by one; all but pronouns need no head.
ALONE = (
    "attention_types",
    "null_space",
    "anisotropy",
    "norm_outliers",
    "mixing_neighbours",
    "mixing_places",
    "mixing_pos",
    "cls_context",
    "alternative_attention",
    "identifiability_gap",
    "identifiability_fractions",
    "identifiability_tuned",
    "pronouns",
)
HEADLESS = {*SUITES["identifiability"], *SUITES["mixing"], *ALONE, "alignment_accuracy"} - {
    "pronouns"
}
SUITE_NAMES = (*SUITES, "all")


@keeps_modes
def evaluate(
    suite: str,
    model: Model | str | Sequence[Model | str] | None = None,
    tokenizer: Tokenizer | None = None,
    data: Any = None,
    methods: Judged | Iterable[Judged] | None = None,
    limit: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int = 0,
    progress: bool | None = None,
    columns: Mapping[str, str] | None = None,
    pictures: bool = True,
    answer: str = "predicted",
    of: str = "prob",
    fitting: Fitting | None = None,
    pos_tags: Callable[[list[str]], Sequence[str]] | None = None,
    trust_remote_code: bool = False,
) -> EvaluationReport | EvaluationTable:
    """Evidence for and against the methods: `print(evaluate("agreement"))` runs offline on the bundled model.

    `ctxmix_hf.evaluation.EVALUATIONS` lists the evaluations.

    Args:
        suite: A suite ("agreement", "sentiment", "identifiability", "mixing", "sanity", "all") or one evaluation
            ("cue_alignment", "faithfulness", ...).
        model: A name, a folder or a loaded model (two of them, as a pair, for "model_consistency"); None: the
            bundled one.
        tokenizer: Found beside the model where it is not given.
        data: Hub id ("owner/name", "owner/name:config:split"), CSV/TSV/JSONL/JSON/parquet file, `datasets` object,
            data frame, or list of texts or dicts; None: the built-in sentences. Pairs (sentence1 and sentence2,
            premise and hypothesis, ...) are read as pairs.
        methods: Names or objects of maps and attributions; None: a selection.
        limit: Use at most so many of the usable sentences, drawn with the seed.
        out: Folder for `<evaluation>.csv`, `.json`, `.png`, and `report.json`, `report.md`.
        resume: Folder of partial results: a run that was killed goes on from there and gives the same tables.
        seed: Of random baselines, bootstrap and probes.
        progress: True, False, or None: only where stderr is a terminal.
        columns: Other names of columns: `{"text": "review"}`, `{"text": ..., "pair": ...}`.
        pictures: Draw them beside the tables in `out`.
        answer: What is explained of a classifier: its "predicted" class, or the "true" one (the row's label).
        of: "prob" or "logit" of that class, or of the masked word against its foil.
        fitting: How the maps of identifiability are learned: `ctxmix_hf.evaluation.Fitting(...)`, or its `PAPER`.
        pos_tags: For "mixing_pos": a function from a list of words to their parts of speech (or a column
            `pos_tags`).
        trust_remote_code: Run the code that lies beside the model's weights: only if you have read it.

    Returns:
        An `EvaluationReport` (a mapping from evaluation to table) of a suite, the `EvaluationTable` of one evaluation.

    Raises:
        InputError: The data cannot be read, or no sentence of it can be used.
        UnknownNameError: There is no such suite or evaluation.

    Example:
        >>> print(cm.evaluate("cue_alignment", methods=["alti", "value_zeroing"], limit=50))
    """
    config = EvaluationConfig(
        methods,
        limit,
        seed,
        resume,
        progress,
        asked=Asked(answer, of),
        fitting=fitting or Fitting(),
        trust_remote_code=trust_remote_code,
    )
    names = _names(suite)
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit} must be at least 1.")
    models: list[Model | str | None]
    models = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    head = _head(suite, names, models[0], trust_remote_code)
    samples = read_data(data if data is not None else _default_data(suite, head), columns)
    samples = tagged(samples, pos_tags)
    built_in = data is None or (isinstance(data, str) and data in BUILT_IN)
    strangers = [m for m in models if isinstance(m, nn.Module) and instrumentation_of(m) is None]
    try:
        contexts = [open_context(m, tokenizer, head, samples, built_in, config) for m in models[:2]]
        context = contexts[0] if len(contexts) == 1 else _paired(contexts[0], contexts[1])
        chosen = _runnable(suite, names, context, samples)
        made = tuple(_run(name, context) for name in names if name in chosen)
    finally:
        for stranger in strangers:  # a model that came without instrumentation goes without
            uninstrument(stranger)
    report = EvaluationReport(suite, made)
    if out is not None:
        save_tables(made, out, pictures=pictures, report=report)
    return report if suite in SUITE_NAMES else made[0]


def _names(suite: str) -> list[str]:
    if suite == "all":
        return [name for name in EVALUATIONS if name not in ALONE]
    if suite in SUITES:
        return list(SUITES[suite])
    if suite not in EVALUATIONS:
        raise UnknownNameError.among("evaluation", suite, [*EVALUATIONS, *SUITE_NAMES])
    return [suite]


def _head(suite: str, names: list[str], model: Model | str | None, trust_remote_code: bool) -> Head:
    """The head a suite needs; an evaluation that works with both takes the model's own."""
    fixed: dict[str, Head] = {"agreement": "masked_lm", "sentiment": "classifier"}
    if suite in fixed:
        return fixed[suite]
    if set(names) <= HEADLESS:
        return "any"
    if model is None or suite.startswith("cue_alignment") or suite == "pronouns":
        return "classifier" if suite == "plausibility" else "masked_lm"
    if isinstance(model, str):
        with in_words(model, trust_remote_code=trust_remote_code):
            kinds = architectures(model, trust_remote_code)
    else:
        kinds = [type(base_model(model)).__name__]
    return (
        "classifier" if any("ForSequenceClassification" in kind for kind in kinds) else "masked_lm"
    )


def _default_data(suite: str, head: Head) -> Any:
    if suite == "pronouns":
        return sentences()
    return "sentiment" if head == "classifier" else "agreement"


def open_context(
    model: Model | str | None,
    tokenizer: Tokenizer | None,
    head: Head,
    samples: Samples,
    built_in: bool,
    config: EvaluationConfig,
) -> Context:
    """A model on samples: opened, sentences made ready, at most `limit` of them drawn with the seed."""
    default = SENTIMENT.name if head == "classifier" else AGREEMENT.name
    bench: Bench = open_bench(
        model,
        tokenizer,
        head,
        default,
        heldout_only=False if built_in else None,
        trust_remote_code=config.trust_remote_code,
    )
    ready, skipped = bench.prepare(samples.kept)
    reasons = Samples(
        tuple(item.sample for item in ready), samples.skipped + skipped, samples.source
    )
    notes = (*reasons.notes(), *bench.unknown_words(ready))
    limit, seed = config.limit, config.seed
    if limit is not None and limit < len(ready):
        notes = (*notes, f"{limit} of {len(ready)} usable sentences drawn at random (seed {seed}).")
        ready = [
            ready[i] for i in sorted(np.random.default_rng(seed).permutation(len(ready))[:limit])
        ]
    return Context(
        bench,
        tuple(ready),
        notes,
        config.methods,
        seed,
        config.resume,
        config.progress,
        asked=config.asked,
        references=config.references,
        fitting=config.fitting,
    )


def _paired(first: Context, second: Context) -> Context:
    return replace(first, other=second)


def _runnable(suite: str, names: list[str], context: Context, samples: Samples) -> set[str]:
    """A single evaluation always runs, and says what it misses; a suite leaves out what its data cannot answer."""
    if suite not in SUITE_NAMES:
        return set(names)
    chosen = set(names)
    if not any(s.cues for s in samples.kept) or context.bench.head != "masked_lm":
        chosen -= {"cue_alignment", "cue_alignment_sets", "mdl_alignment"}
    if not any(s.gold for s in samples.kept):
        chosen -= {"plausibility"}
    if not any(s.pairs for s in samples.kept):
        chosen -= {"alignment_accuracy"}
    if len({s.label for s in samples.kept if s.label is not None}) < 2:
        chosen -= {"mdl_probe", "mdl_alignment"}
    return chosen if context.other is not None else chosen - {"model_consistency"}


def _run(name: str, context: Context) -> EvaluationTable:
    table = EVALUATIONS.get(name).run(context)
    context.made[name] = table
    return table
