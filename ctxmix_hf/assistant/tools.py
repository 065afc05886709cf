"""The six tools: each asks the library one question and answers in a few lines of JSON.

A docstring is what the assistant reads: the first paragraph says when to use the tool, `Args` (one
line each) describe the parameters, whose types are those of the signature. `describe` turns them
into a JSON schema and `checked` holds a client to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Protocol, get_type_hints

from ctxmix_hf.accounting import ledger
from ctxmix_hf.asked import class_of, place_of, row_of
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.errors import InputError, InputTypeError, OptionError, UnknownNameError
from ctxmix_hf.evaluation import evaluate
from ctxmix_hf.evaluation.table import EvaluationTable
from ctxmix_hf.explaining import attribute, explain
from ctxmix_hf.loading import named_reader
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.results.matches import Similarity, content_pairs
from ctxmix_hf.similarities import rank, similarity
from ctxmix_hf.text.tokens import MASKS

MOST = 50  # items of one list in an answer
COMPARED = ["attention_rollout", "globenc", "alti", "value_zeroing"]
NONE: list[str] = []  # never written to
Answer = dict[str, Any]


class ModelDesk(Protocol):
    """Where tools get models from, and where a person can look at what they found."""

    def model(self, name: str) -> tuple[Any, Any]:
        """An instrumented model and its tokenizer."""

    def embedder(self, name: str) -> tuple[Any, dict[str, Any]]:
        """A model that makes vectors or ranks, and the options it needs."""

    def link(self, tool: str, result: Any, asked: Mapping[str, Any]) -> str | None:
        """The address of a view of the result."""


class Tools:
    """`Tools(desk).explain(text=...)`; `NAMES` lists them."""

    def __init__(self, desk: ModelDesk) -> None:
        self.desk = desk

    def explain(
        self,
        text: str,
        model: str = AGREEMENT.name,
        method: str = DEFAULT_METHOD,
        target: str = "",
        layer: int = -1,
        top: int = 8,
    ) -> Answer:
        """Which words was a token's representation (or a prediction) made from? Use it to see how
        an encoder mixes context in one sentence.

        Args:
            text: The sentence; write the model's mask token to ask about a masked word.
            model: Hub id, local folder, or the bundled ctxmix/agreement (masked words), ctxmix/sentiment (classes).
            method: A context mixing method (alti, value_zeroing, globenc, ...) or an attribution (blank_out, ...).
            target: The word, token, position, [CLS] or mean_pool to explain; empty: the mask, else the class token.
            layer: 1 is the first layer, -1 the last.
            top: How many words to list, strongest first.
        """
        top = _count(top)
        held, reader = self.desk.model(model)
        named = named_reader(held, reader)
        asked = {"model": model, "method": method, "text": text}
        if method in ATTRIBUTIONS:
            if target or layer != -1:
                raise OptionError(
                    f"{method} explains a prediction from the input: leave out target and layer."
                )
            row = attribute(held, text, method, **named).words()
            strongest = _signed(row.top(top))
            finding = f"{row.target}: {_plus_minus(strongest)} ({method})."
            link = self.desk.link("explain", row, asked)
        else:
            made = explain(held, text, method, **named)
            if layer != -1:
                made = made.layer(layer)
            row = row_of(made, target or _mask(made)).words()
            strongest = _signed(row.top(top))
            shares = ", ".join(f"{one['word']} {one['score']:.0%}" for one in strongest[:3])
            at = f"layer {row.meta.get('layer', 'last')}"
            finding = f"{row.target} is made most of {shares} ({method}, {at}, from the input)."
            view = {"layer": "" if layer == -1 else str(row.meta["layer"])}
            view["pin"] = _pin(made, target)
            link = self.desk.link("explain", made, {**asked, **view})
        return _answer(finding, link, **asked, target=row.target, top=strongest, **_doubts(row))

    def ledger(
        self,
        text: str,
        model: str = AGREEMENT.name,
        predicted: str = "",
        foil: str = "",
        top: int = 8,
    ) -> Answer:
        """Why did the model say this, and not that? Signed contributions of the words and biases
        that add up to the model's own logit.

        Args:
            text: The sentence; for a masked language model it holds the mask token.
            model: Hub id, local folder, or the bundled ctxmix/agreement (masked words), ctxmix/sentiment (classes).
            predicted: The label, word or class number to account for; empty: what the model predicts.
            foil: Account for the logit of `predicted` minus the logit of this label or word.
            top: How many words to list, largest first.
        """
        top = _count(top)
        held, reader = self.desk.model(model)
        made = ledger(
            held,
            text,
            class_index=class_of(predicted or None),
            foil=class_of(foil or None),
            **named_reader(held, reader),
        )
        words = made.words()
        return _answer(
            f"{made.target}: {made.finding()}.",
            self.desk.link(
                "ledger", made, {"model": model, "text": text, "word": predicted, "foil": foil}
            ),
            model=model,
            text=text,
            target=made.target,
            value=_short(float(made.value[0])),
            top=_signed(words.top(top)),
            biases=_short(float(words.bias[0])),
            gap=float(made.gap[0]),
        )

    def similarity(self, a: str, b: str, model: str = "", top: int = 8) -> Answer:
        """Why are these two texts similar? Pairs of words that add up to the embedding model's own similarity.

        Args:
            a: The first text.
            b: The second text.
            model: A sentence-transformers id or any encoder; empty: the small bundled model, only to try it out.
            top: How many pairs of words to list, largest first.
        """
        top = _count(top)
        held, options = self.desk.embedder(model)
        made = similarity(held, a, b, **options)
        return _answer(
            f"{made.finding()}.",
            self.desk.link("similarity", made, {"model": model, "a": a, "b": b}),
            model=model or AGREEMENT.name,
            similarity=_short(made.cosine),
            top=_pairs(made, top),
        )

    def rank(self, query: str, documents: list[str], model: str = "", top: int = 5) -> Answer:
        """Why did this document come first? The model's own order of the documents, with the words that made it.

        Args:
            query: What was searched for.
            documents: The texts to order.
            model: An embedding model or reranker; empty: the small bundled model, only to try it out.
            top: How many documents to explain, best first.
        """
        top = _count(top)
        if not documents:
            raise InputError("There are no documents to rank: give at least one.")
        held, options = self.desk.embedder(model)
        made = rank(held, query, documents, **options)
        rows = []
        for place, number in enumerate(made.order[:top]):
            account = made[number]
            words = (
                _pairs(account, 4)
                if isinstance(account, Similarity)
                else _signed(account.words().top(4))
            )
            score = _short(float(made.scores[number]))
            rows.append({"place": place + 1, "document": number, "score": score, "top": words})
        best = made.documents[made.order[0]]
        shown = best if len(best) <= 60 else f"{best[:57]}..."
        return _answer(
            f"{shown!r} comes first of {len(made)} with {rows[0]['score']:+.3f}.",
            self.desk.link("rank", made, {"model": model, "query": query, "documents": documents}),
            model=model or AGREEMENT.name,
            query=query,
            documents=rows,
        )

    def compare(
        self,
        text: str,
        other_text: str = "",
        model: str = AGREEMENT.name,
        methods: list[str] = COMPARED,
        target: str = "",
        top: int = 5,
    ) -> Answer:
        """Do methods agree about a sentence, or what changes between two sentences? Without
        `other_text` the methods are compared, with it the two maps of the first method are subtracted.

        Args:
            text: The sentence.
            other_text: A second sentence to subtract the first one from.
            model: Hub id, local folder, or the bundled ctxmix/agreement, ctxmix/sentiment.
            methods: Names of methods; with `other_text` only the first one is used.
            target: The word or token to look at; empty: the mask, else the class token.
            top: How many words, or changes, to list.
        """
        top = _count(top)
        if not methods:
            raise OptionError("compare needs at least one method.")
        held, reader = self.desk.model(model)
        named = named_reader(held, reader)
        asked = {"model": model, "text": text}
        if other_text:
            first, second = (explain(held, one, methods[0], **named) for one in (text, other_text))
            gap = second.difference(first)
            row = gap.attribution(target or _masked(gap))
            about = target or gap.tokens.shown()[_masked(gap)]
            changes = _signed(row.words().top(top))
            return _answer(
                f"From the first sentence to the second, the sources of {about} change most by "
                f"{_plus_minus(changes)} ({methods[0]}).",
                self.desk.link(
                    "compare", gap, {**asked, "method": methods[0], "other_text": other_text}
                ),
                **asked,
                other_text=other_text,
                method=methods[0],
                target=about,
                changes=changes,
                left_out=list(gap.left_out),
            )
        made = explain(held, text, list(methods), **named)
        rows = {name: row_of(one, target or _mask(one)).words() for name, one in made.items()}
        pairs = [
            {"a": a, "b": b, "spearman": _short(rows[a].rank_correlation(rows[b]))}
            for a, b in combinations(rows, 2)
        ]
        known = [pair for pair in pairs if pair["spearman"] is not None]
        least = min(known, key=lambda pair: pair["spearman"], default=None)
        link = None
        if least is not None:  # the two of which the finding speaks
            a, b = least["a"], least["b"]
            two = {**asked, "method": a, "other_method": b}
            link = self.desk.link("compare", made[b].difference(made[a]), two)
        return _answer(
            "There is nothing to compare."
            if least is None
            else f"{least['a']} and {least['b']} agree least: Spearman {least['spearman']:.2f}.",
            link,
            **asked,
            target=next(iter(rows.values())).target,
            methods=[{"method": name, "top": _signed(row.top(top))} for name, row in rows.items()],
            rank_correlation=pairs,
        )

    def evaluate(
        self,
        evaluation: str = "faithfulness",
        model: str = "",
        methods: list[str] = NONE,
        limit: int = 20,
    ) -> Answer:
        """Which method should be believed on this model? Runs one evaluation on the built-in
        sentences; takes seconds to minutes.

        Args:
            evaluation: faithfulness, cue_alignment, erasure, plausibility, randomisation, completeness, ...
            model: Hub id or local folder; empty: the bundled model that fits.
            methods: Names of methods; empty: a selection.
            limit: Use at most so many sentences.
        """
        if limit < 1:
            raise OptionError(f"limit must be at least 1, got {limit}.")
        held, reader = self.desk.model(model) if model else (None, None)
        made = evaluate(
            evaluation, held, reader, methods=list(methods) or None, limit=limit, progress=False
        )
        tables = [made] if isinstance(made, EvaluationTable) else list(made.values())
        return _answer(
            tables[0].caption if tables else "Nothing could be evaluated.",
            None,
            model=model or "the bundled model",
            tables=[_table(table) for table in tables],
        )


NAMES = ("explain", "ledger", "similarity", "rank", "compare", "evaluate")


# ---- answers ----------------------------------------------------------------------------------------------------
def _mask(made: ContextMixingMap) -> str | None:
    """The mask by its name where there is one of it: words are counted otherwise than tokens."""
    found = [piece for piece in made.tokens[0].pieces if piece in MASKS]
    return found[0] if len(found) == 1 else None


def _pin(made: ContextMixingMap, target: str) -> str:
    """The tokens of a target as the widget marks them; empty: as it begins, none: all of them."""
    if not target:
        return ""
    places = made.position(place_of(made, target))
    return "none" if len(places) == made.size else ".".join(map(str, places))


def _masked(gap: Any) -> int:
    """The mask where both sentences have one, else the first token."""
    return next((i for i, token in enumerate(gap.tokens.shown()) if token in MASKS), 0)


def _answer(finding: str, link: str | None, **fields: Any) -> Answer:
    return {"finding": finding, **fields, **({"view": link} if link else {})}


def _short(value: float) -> float | None:
    """Four digits are enough to read; an undefined number is null."""
    return float(f"{value:.4g}") if value == value else None


def _signed(found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "score": _short(score)} for word, score in found]


def _plus_minus(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['word']} {one['score']:+.2f}" for one in rows[:3])


def _pairs(made: Similarity, top: int) -> list[dict[str, Any]]:
    return [
        {"a": a, "b": b, "score": _short(value)}
        for a, b, value in content_pairs(made.words())[:top]
    ]


def _doubts(row: Attribution) -> Answer:
    said = row.meta.get("approximate")
    return {"approximate": said} if said else {}


def _table(table: EvaluationTable) -> Answer:
    cells = [[_short(c) if isinstance(c, float) else c for c in row] for row in table.rows[:MOST]]
    return {"name": table.name, "columns": list(table.columns), "rows": cells}


def _count(top: int) -> int:
    if not 1 <= top <= MOST:
        raise OptionError(f"top must be from 1 to {MOST}, got {top}.")
    return top


# ---- what a client sees, and what it may send -------------------------------------------------------------------
JSON_TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    list[str]: {"type": "array", "items": {"type": "string"}},
}
SAID = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    list[str]: "a list of texts",
}


def describe(function: Callable[..., Answer]) -> tuple[str, dict[str, Any]]:
    """A tool's description and the JSON schema of its parameters."""
    about, _, rest = (inspect.getdoc(function) or "").partition("Args:\n")
    lines = dict(line.strip().split(": ", 1) for line in rest.splitlines() if ": " in line)
    types = get_type_hints(function)
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        properties[name] = {**JSON_TYPES[types[name]], "description": lines[name]}
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        else:
            properties[name]["default"] = parameter.default
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return " ".join(about.split()), schema


def checked(
    function: Callable[..., Any], given: Mapping[str, Any], called: str = ""
) -> dict[str, Any]:
    """The arguments a client sent, or one sentence about the first that does not fit."""
    tool, types = called or function.__name__, get_type_hints(function)
    parameters = inspect.signature(function).parameters
    for name in given:
        if name not in parameters:
            raise UnknownNameError.among(f"parameter of {tool}", name, parameters)
    found = {}
    for name, parameter in parameters.items():
        if name not in given:
            if parameter.default is inspect.Parameter.empty:
                raise OptionError(f"{tool} needs {name}: {SAID[types[name]]}.")
            continue
        value = given[name]
        if types[name] is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON has one kind of number
        fits = (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
            if types[name] == list[str]
            else isinstance(value, types[name]) and isinstance(value, bool) == (types[name] is bool)
        )
        if not fits:
            raise InputTypeError(
                f"{name} of {tool} must be {SAID[types[name]]}, got {value!r:.80}."
            )
        found[name] = value
    return found


def called(tools: Tools, name: str, given: Mapping[str, Any]) -> Answer:
    """`tools.<name>(**given)`, after both were checked."""
    if name not in NAMES:
        raise UnknownNameError.among("tool", name, NAMES)
    function = getattr(tools, name)
    return function(**checked(function, given))  # type: ignore[no-any-return]
