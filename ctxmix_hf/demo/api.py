"""The API: every function of the page as a named, typed endpoint for `gradio_client`."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.assistant.tools import checked
from ctxmix_hf.demo import gate, handlers, pictures, snippets, stores
from ctxmix_hf.demo.limits import check_text
from ctxmix_hf.demo.shelf import TEXT_MODELS


def gated(function: Callable[..., Any], endpoint: str = "") -> Callable[..., Any]:
    """The function behind the gate; our errors reach the client as their sentence. Of an endpoint,
    what the client sent is compared with the types it names first.
    """
    import gradio as gr  # a worker, which needs the functions below, does without it

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if endpoint:
                given = inspect.signature(function).bind(*args, **kwargs).arguments
                args, kwargs = (), checked(function, given, f"/{endpoint}")
            return gate.run(function, *args, **kwargs)
        except cm.CtxmixError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return call


def methods() -> list[dict[str, Any]]:
    """Every method with kind, summary, paper, equation, cost, what it covers and leaves out, and its options."""
    return [json.loads(json.dumps(row.__dict__, default=str)) for row in cm.list_methods()]


def models() -> list[str]:
    """The bundled models; other names can be given where the server allows them."""
    return list(TEXT_MODELS)


def context_map(model: str, method: str, text: str, pair: str = "") -> dict[str, Any]:
    """The whole map in the library's JSON schema: read it with
    `ContextMixingMap.from_json(json.dumps(answer))`. `pair` is an optional second sentence."""
    return map_with(model, method, text, "", pair)


def map_with(model: str, method: str, text: str, options: str, pair: str = "") -> dict[str, Any]:
    """The same with options of the method, as in `distance=euclidean,per_head=1`."""
    return handlers.map_of(model, method, text, pair, options).to_dict()  # type: ignore[no-any-return]


def attribution(
    model: str,
    method: str,
    text: str,
    target: int,
    layer: int = -1,
    words: bool = True,
    pair: str = "",
) -> dict[str, Any]:
    """One row of the map: the contribution of each token (or word) to the target token, from the input to a layer."""
    made = handlers.map_of(model, method, text, pair)
    made = made.words() if words else made
    row = made.attribution(handlers.check_target(int(target), made.size), int(layer))
    return {
        "tokens": row.tokens[0].shown(),
        "scores": row.scores[0].tolist(),
        "target": row.tokens[0].shown()[int(target)],
    }


def predictions(model: str, text: str, pair: str = "") -> dict[str, Any]:
    """Top words at each [MASK], or class probabilities."""
    return handlers.predictions(model, text, pair)


def scores(model: str, text: str, method: str = "blank_out", pair: str = "") -> dict[str, Any]:
    """How much each token mattered for the prediction: blank_out, gradients, integrated gradients, ..."""
    return scores_with(model, text, method, pair=pair)


def scores_with(
    model: str, text: str, method: str, word: str = "", foil: str = "", pair: str = ""
) -> dict[str, Any]:
    """The same for `word`, or for `word` against `foil`, in place of the prediction."""
    made = handlers.scores(model, text, method, pair, word, foil)
    return {
        "tokens": made[0].tokens[0].shown(),
        "scores": made[0].scores[0].tolist(),
        "target": made.target,
    }


def compare(
    model: str,
    method: str,
    text: str,
    other_model: str,
    other_method: str,
    other_text: str,
    target: int = 0,
    pair: str = "",
) -> dict[str, Any]:
    """Signed difference (second - first) of two maps over aligned words, and the rank correlation
    of the target's rows.
    """
    return compare_with(
        model, method, text, other_model, other_method, other_text, "", "", target, pair
    )


def compare_with(
    model: str,
    method: str,
    text: str,
    other_model: str,
    other_method: str,
    other_text: str,
    options: str,
    other_options: str,
    target: int = 0,
    pair: str = "",
) -> dict[str, Any]:
    """The same with options of each side's method, as in `distance=euclidean`."""
    first, second, gap = handlers.compare(
        model, method, text, other_model, other_method, other_text, pair, options, other_options
    )
    i, j = gap.pairs[handlers.check_target(int(target), len(gap.pairs))]
    rows = [made.attribution(place).scores[0] for made, place in ((first, i), (second, j))]
    sides = [row[[pair[side] for pair in gap.pairs]][None] for side, row in enumerate(rows)]
    mask = sides[0] == sides[0]
    aligned = [cm.Attribution(side, [gap.tokens], mask, method, "") for side in sides]
    value = aligned[0].rank_correlation(aligned[1])
    return {
        "tokens": list(gap.tokens),
        "difference": gap.input.tolist(),
        "left_out": list(gap.left_out),
        "target": gap.tokens[int(target)],
        "rank_correlation": None if value != value else value,
    }


def agreement(model: str, text: str, target: int = 0, pair: str = "") -> dict[str, Any]:
    """Rank correlations of all pairs of (quick) methods on the target's row; null where a row is constant."""
    made = handlers.agreement(model, text, target, pair)
    return {
        **made,
        "correlation": [[None if v != v else v for v in row] for row in made["correlation"]],
    }


def similarity(model: str, text_a: str, text_b: str, method: str = "") -> dict[str, Any]:
    """The model's similarity of two texts and each token's share of it. Without a method it is shared
    out exactly, over pairs of tokens too (`pairs`, tokens of the first text by tokens of the second)."""
    made = handlers.similarity(model, text_a, text_b, method)
    sides = {
        name: {"tokens": side.tokens[0].shown(), "scores": side.scores[0].tolist()}
        for name, side in (("a", made.a), ("b", made.b))
    }
    exact = {} if method else {"pairs": made.pairs.tolist(), "finding": made.finding()}
    return {"cosine": made.cosine, **sides, **exact}


def rank(model: str, query: str, documents: list[str]) -> dict[str, Any]:
    """Documents in the order of their similarity to the query, and the scores they have."""
    made = handlers.rank(model, query, documents)
    return {"order": list(made.order), "scores": [float(score) for score in made.scores]}


def ledger(model: str, text: str, pair: str = "", word: str = "", foil: str = "") -> dict[str, Any]:
    """Why this output? Signed contributions of tokens and biases that sum to the model's own number:
    of the predicted word or class, of `word`, or of `word` minus `foil`."""
    made = handlers.ledger(model, text, pair, word, foil)
    return {
        "tokens": made.tokens[0].shown(),
        "scores": made.scores[0].tolist(),
        "biases": float(made.bias[0]),
        "value": float(made.value[0]),
        "target": str(made.target),
        "finding": made.finding(),
    }


def standalone(model: str, method: str, text: str, pair: str = "") -> str:
    """The map as one HTML file that opens without network."""
    return handlers.map_of(model, method, text, pair).to_html()  # type: ignore[no-any-return]


def table(model: str, method: str, text: str, pair: str = "") -> str:
    """The map as CSV."""
    return handlers.map_of(model, method, text, pair).to_csv()  # type: ignore[no-any-return]


def snippet(model: str, method: str, text: str, pair: str = "") -> str:
    """Python that makes the same map."""
    return snippets.of_map(model, method, check_text(text), pair)


def image_map(picture: str, model: str, method: str = cm.DEFAULT_METHOD) -> dict[str, Any]:
    """A vision model's map over the patches of a picture: an example's name (digit 0 to
    digit 9, shapes, landscape, board) or a data URL.
    """
    return pictures.map_of(pictures.read(picture), model, method)[0].to_dict()  # type: ignore[no-any-return]


def browse(store: str, split: str = "all", words: str = "") -> list[dict[str, str]]:
    """Examples of a store of precomputed maps whose text contains the words."""
    return [{"text": text, "id": key} for text, key in stores.search(store, split, words)]


def stored_map(store: str, key: str, method: str) -> dict[str, Any]:
    """One precomputed map in the library's JSON schema; no model is loaded."""
    return stores.map_of(store, key, method).to_dict()  # type: ignore[no-any-return]


ENDPOINTS: dict[str, Callable[..., Any]] = {
    "methods": methods,
    "models": models,
    "map": context_map,
    "map_with": map_with,
    "attribution": attribution,
    "predictions": predictions,
    "scores": scores,
    "scores_with": scores_with,
    "compare": compare,
    "compare_with": compare_with,
    "agreement": agreement,
    "similarity": similarity,
    "rank": rank,
    "ledger": ledger,
    "html": standalone,
    "csv": table,
    "snippet": snippet,
    "image_map": image_map,
    "browse": browse,
    "stored_map": stored_map,
}


def add_endpoints() -> None:
    """Called inside the page's Blocks."""
    import gradio as gr

    for name, function in ENDPOINTS.items():
        gr.events.api(gated(function, name), api_name=name, concurrency_id="model")
