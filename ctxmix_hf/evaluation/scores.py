"""One pass over the sentences that leaves every method's row of the target token; most evaluations only read these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.attribution import (
    ATTRIBUTIONS,
    AbstractAttribution,
    Case,
    IntegratedGradients,
    LedgerScores,
    Question,
)
from ctxmix_hf.errors import InputError, OptionError, UnknownNameError
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.sessions import Result, Store, content_key, rounded
from ctxmix_hf.heads import link_of
from ctxmix_hf.recipes import Recipe, Spec, map_names, resolve
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.unwrapping import base_model

Array = NDArray[np.float64]
RANDOM = "random"
# |drop|, Abnar's and Ferrando's blank-out; the signed one is Mohebbi's
BLANK_OUT_ABS = "blank_out_abs"
LAYERWISE = (
    "grad_l2",
    "grad_x_input",
)  # taken at the input of every layer, as Mohebbi et al. 2023 do
REFERENCES = (
    "blank_out",
    "grad_l2",
    "grad_dot_input",
    "grad_x_input",
    "grad_sum",
    "integrated_gradients",
    "deeplift",
)
DEFAULT_METHODS = (
    "attention",
    "attention_rollout",
    "attention_flow",
    "norm",
    "norm_res",
    "norm_resln",
    "norm_rollout",
    "norm_enc",
    "alti",
    "value_zeroing",
    "ledger",
    RANDOM,
)


Judged = Spec | AbstractAttribution  # what an evaluation can compare


def listed_methods(methods: Judged | Iterable[Judged]) -> list[Judged]:
    """One or several, as a list."""
    one = isinstance(methods, str) or not isinstance(methods, Iterable)
    return [methods] if one else list(methods)  # type: ignore[list-item,arg-type]


@dataclass(frozen=True)
class Asked:
    """Which answer is explained, and as what.

    `answer` is `"predicted"` (the class the model gives) or `"true"` (the row's label, as Modarressi
    et al. 2022 do); a masked word is always its target against its foil. `of` is `"prob"` or
    `"logit"`. `layerwise` are the attributions that are taken at every layer's input as well.
    """

    answer: str = "predicted"
    of: str = "prob"
    layerwise: tuple[str, ...] = LAYERWISE

    def __post_init__(self) -> None:
        if self.answer not in ("predicted", "true"):
            raise OptionError(f"answer must be 'predicted' or 'true', got {self.answer!r}.")
        if self.of not in ("prob", "logit"):
            raise OptionError(f"of must be 'prob' or 'logit', got {self.of!r}.")


USUAL = Asked()


@dataclass(frozen=True)
class MethodSet:
    """What is compared: maps by recipe, attributions by options, and perhaps random scores."""

    maps: dict[str, Recipe]
    attributions: dict[str, AbstractAttribution]
    random: bool = False

    @classmethod
    def of(
        cls,
        methods: Judged | Iterable[Judged],
        attributions: Sequence[str | AbstractAttribution] = (),
    ) -> MethodSet:
        """From names, method objects and attribution objects; attributions by name are `as_published`."""
        listed = listed_methods(methods)
        if not listed:
            raise OptionError("No method was named.")
        maps: list[Spec] = []
        chosen: dict[str, AbstractAttribution] = {}
        has_random = False
        for spec in listed:
            if isinstance(spec, str) and spec in ATTRIBUTIONS and spec != RANDOM:
                spec = as_published(spec)
            if isinstance(spec, AbstractAttribution):
                chosen[_own_name(spec, chosen)] = spec
            elif spec == RANDOM:
                has_random = True
            else:
                _check_name(spec)
                maps.append(spec)
        for reference in attributions:  # one by name gives way to what was asked for under it
            if isinstance(reference, AbstractAttribution):
                chosen[_name_of(reference)] = reference
            elif reference not in chosen:
                chosen[reference] = as_published(reference)
        return cls(resolve(maps) if maps else {}, chosen, has_random)

    @property
    def names(self) -> list[str]:
        return [*self.maps, *self.attributions, *([RANDOM] if self.random else [])]

    def described(self) -> list[Any]:
        """Names and options: part of a result's key."""
        kept = [[name, r.aggregation, r.method.options()] for name, r in self.maps.items()]
        return [*kept, *([name, repr(a)] for name, a in self.attributions.items()), self.random]


def _name_of(made: AbstractAttribution) -> str:
    return next((n for n in ATTRIBUTIONS if ATTRIBUTIONS.get(n) is type(made)), type(made).__name__)


def _own_name(made: AbstractAttribution, taken: Mapping[str, AbstractAttribution]) -> str:
    """Its registered name; where another setting of it has that, with the options in which it differs."""
    name = _name_of(made)
    if name not in taken or taken[name] == made:
        return name
    told = {f.name: getattr(made, f.name) for f in fields(made)}
    other = [f"{k}={v!r}" for k, v in told.items() if v != getattr(taken[name], k)]
    return f"{name} ({', '.join(other)})"


def as_published(name: str, **options: Any) -> AbstractAttribution:
    """An attribution as the papers compare it: absolute scores (`signed=False`); integrated
    gradients in 20 Gauss-Legendre steps. The ledger keeps its signs: what speaks against the answer
    is no evidence for it.

    Args:
        name: `"ledger"`, `"integrated_gradients"`, ...
        options: of its own, in the place of these.

    Returns:
        The attribution, to be given to `evaluate(methods=[...])`; two settings of one are two methods.

    Raises:
        UnknownNameError: There is no such attribution.
        OptionError: It has no such option.

    Example:
        >>> cm.evaluate("faithfulness", methods=["ledger", as_published("ledger", rule="through")])
    """
    cls = ATTRIBUTIONS.get(name)
    known = {f.name for f in fields(cls)}
    if set(options) - known:
        unknown = ", ".join(sorted(set(options) - known))
        raise OptionError(f"{name} has no option {unknown}. It has {', '.join(known) or 'none'}.")
    usual: dict[str, Any] = {}
    if "signed" in known and cls is not LedgerScores:
        usual["signed"] = False
    if cls is IntegratedGradients:
        usual |= {"steps": 20, "rule": "gauss_legendre"}
    return cls(**usual | options)


def signed(name: str) -> AbstractAttribution:
    """An attribution as `as_published`, but with its signs: what speaks against the answer ranks last.

    Args:
        name: `"integrated_gradients"`, `"grad_dot_input"`, `"deeplift"`, ...

    Returns:
        The attribution, to be given to `evaluate(methods=[...])`.

    Raises:
        OptionError: This attribution has no sign.

    Example:
        >>> cm.evaluate("faithfulness", methods=["ledger", signed("integrated_gradients")])
    """
    made = as_published(name)
    if "signed" not in {f.name for f in fields(made)}:
        raise OptionError(f"{name} has no sign: give its name alone.")
    return replace(made, signed=True)  # type: ignore[call-arg]


def _check_name(spec: Spec) -> None:
    base = spec.partition("+")[0].strip() if isinstance(spec, str) else None
    if base is not None and base not in map_names():
        raise UnknownNameError.among("method", spec, [*map_names(), *ATTRIBUTIONS])


@dataclass(frozen=True)
class Scores:
    """The rows of one sentence: `layers[m]` `[L, T]` within each layer, `input[m]` `[L or 1, T]` from the input."""

    ready: Ready
    layers: dict[str, Array]
    input: dict[str, Array]
    answer: float  # the score that attributions explain
    right: bool | None  # None where no right answer is known
    predicted: int

    def final(self, method: str) -> Array:
        """The aggregated row, or the attribution."""
        row: Array = self.input[method][-1]
        return row

    def by_unit(self, rows: Array) -> Array:
        """Pieces summed to words, last axis."""
        return np.stack([rows[..., group].sum(axis=-1) for group in self.ready.units()], axis=-1)


def collect(
    bench: Bench,
    ready: Sequence[Ready],
    methods: MethodSet,
    store: Store,
    *,
    seed: int = 0,
    layerwise: bool = True,
    progress: bool | None = None,
    asked: Asked = USUAL,
) -> list[Scores]:
    """Every method's rows for every sentence. Cost: one forward per batch, plus what each attribution costs."""
    described = [bench.fingerprint, methods.described(), seed, layerwise]
    if asked != USUAL:
        described.append(repr(asked))
    keys = [content_key("scores", item.sample.key, item.ids, *described) for item in ready]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch_scores(
            bench, [ready[i] for i in batch], methods, seed, layerwise, None, asked
        )

    found = store.run(keys, bench.batches(ready), compute, f"{len(ready)} sentences", progress)
    return [_read(item, result) for item, result in zip(ready, found, strict=True)]


def _read(ready: Ready, result: Result) -> Scores:
    rows = {
        part: {name: np.asarray(v, dtype=np.float64) for name, v in result[part].items()}
        for part in ("layers", "input")
    }
    if "blank_out" in rows["input"]:
        rows["input"][BLANK_OUT_ABS] = np.abs(rows["input"]["blank_out"])
    return Scores(
        ready, rows["layers"], rows["input"], result["answer"], result["right"], result["predicted"]
    )


def question_of(
    logits: Tensor, ready: Sequence[Ready], config: Any, asked: Asked = USUAL
) -> Question:
    """Target against foil for a masked word, else the predicted (or true) class or word, as
    the head means its logits.

    Of two classes the other one is the foil of a probability, which stays the same; the logit of a
    class is its own.
    """
    position = torch.tensor([item.position for item in ready])
    places = (
        logits[torch.arange(len(ready)), position.to(logits.device)]
        if logits.dim() == 3
        else logits
    )
    best = places.argmax(dim=-1).cpu()
    of: Literal["prob", "logit"] = "logit" if asked.of == "logit" else "prob"
    if logits.dim() == 2:
        link = link_of(config, tuple(logits.shape))
        if asked.answer == "true":
            if any(item.label is None for item in ready):
                raise InputError(
                    "answer='true' explains the label of every row, and some rows have none: give "
                    "a label column (columns={'label': ...}), or answer='predicted'."
                )
            best = torch.tensor([item.label for item in ready])
        if of == "logit":
            return Question(best, "logit", link=link)
        if link == "softmax" and logits.shape[-1] == 2:
            return Question(best, "prob", foil=1 - best)
        return Question(best, "logit" if link == "identity" else "prob", link=link)
    chosen = torch.tensor(
        [int(best[i]) if item.good is None else item.good for i, item in enumerate(ready)]
    )
    if any(item.bad is None for item in ready):
        return Question(chosen, of, position)
    return Question(chosen, of, position, torch.tensor([item.bad for item in ready]))


def _batch_scores(
    bench: Bench,
    ready: Sequence[Ready],
    methods: MethodSet,
    seed: int,
    layerwise: bool,
    question: Question | None = None,
    asked_for: Asked = USUAL,
) -> list[Result]:
    """`question`: what is explained, where it is not this model's own answer."""
    inputs = bench.inputs_of(ready)
    with torch.no_grad():
        asked = {"output_context_mixing": list(methods.maps.values())} if methods.maps else {}
        out = bench.model(**inputs, output_decomposition=True, **asked)
    depth = len(out.decomposition)
    results: list[Result] = [{"layers": {}, "input": {}} for _ in ready]
    for name, made in (out.context_mixing or {}).items() if methods.maps else ():
        _add_map(results, ready, name, made)
    if bench.head != "any":
        config = base_model(bench.model).config
        explained = question or question_of(out.logits, ready, config, asked_for)
        by_layer = asked_for.layerwise if layerwise else ()
        _add_attributions(bench, results, ready, methods, out, by_layer, explained)
    for item, result in zip(ready, results, strict=True):
        if methods.random:
            rows = random_rows(item, depth + 1, seed)
            result["layers"][RANDOM], result["input"][RANDOM] = (
                rounded(rows[:-1].tolist()),
                rounded(rows[-1:].tolist()),
            )
        result.update({"answer": 0.0, "right": None, "predicted": -1} | result.pop("asked", {}))
    return results


def random_rows(item: Ready, count: int, seed: int) -> Array:
    """Uniform scores that depend on the sentence and the seed alone, not on its batch."""
    number = int(hashlib.sha256(f"{seed}:{item.sample.key}".encode()).hexdigest()[:16], 16)
    rows: Array = np.random.default_rng(number).random((count, len(item.ids)))
    return rows


def _add_map(
    results: list[Result], ready: Sequence[Ready], name: str, made: ContextMixingMap
) -> None:
    places = sorted({item.position for item in ready})
    whole = (
        made.aggregate("flow", targets=places)
        if made.aggregation == "flow" and made.layers is not None
        else made.input
    )
    for b, item in enumerate(ready):
        size = len(item.ids)
        results[b]["input"][name] = rounded(whole[b, :, item.position, :size].tolist())
        if made.layers is not None:
            results[b]["layers"][name] = rounded(made.layers[b, :, item.position, :size].tolist())


def _add_attributions(
    bench: Bench,
    results: list[Result],
    ready: Sequence[Ready],
    methods: MethodSet,
    out: Any,
    by_layer: Sequence[str],
    question: Question,
) -> None:
    special = {"mask": bench.tokenizer.mask_token_id, "unk": bench.tokenizer.unk_token_id}
    depth = len(out.decomposition)
    answers = question.score(out.logits).tolist()
    best = question.class_index if out.logits.dim() == 3 else out.logits.argmax(dim=-1)
    even = 0.0 if question.of == "logit" else 0.5  # of target and foil
    for b, item in enumerate(ready):
        predicted = int(best[b])
        right = None if item.label is None else predicted == item.label
        right = (
            bool(answers[b] > even)
            if question.foil is not None and item.good is not None
            else right
        )
        results[b]["asked"] = {
            "answer": rounded(answers[b]),
            "right": right,
            "predicted": predicted,
        }
    for name, attribution in methods.attributions.items():
        for layer in range(depth if name in by_layer else 1):
            case = Case(out.decomposition, question, out.logits, special, Budget.of(None), layer)
            scores = attribution.scores(case).detach().tolist()
            for b, item in enumerate(ready):
                row = rounded(scores[b][: len(item.ids)])
                if layer == 0:
                    results[b]["input"][name] = [row]
                if name in by_layer:
                    results[b]["layers"].setdefault(name, []).append(row)
