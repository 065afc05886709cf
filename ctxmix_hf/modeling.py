"""What a user calls: `instrument` any loaded model, or load one already instrumented with the Auto mirrors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from ctxmix_hf.algebra.budget import Budget, available, size_in_words
from ctxmix_hf.errors import OptionError, RecordError
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.requests import EagerCall, RecordedCall
from ctxmix_hf.instrumentation.session import (
    Instrumentation,
    attach,
    check_family,
    declared_layers,
    detach,
    instrumentation_of,
)
from ctxmix_hf.methods.base import Reads
from ctxmix_hf.recipes import (
    LayerMaps,
    LayerRows,
    Recipe,
    Specs,
    Wanted,
    compute_maps,
    methods_to_json,
    plain_name,
    resolve,
    rows_of_maps,
    rows_of_record,
)
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.registry import VIEWS
from ctxmix_hf.sparse import LayerTops, sparse
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model, unwrapped

CHECKED_FROM = 1024  # tokens: shorter maps fit anywhere
WORK = 1e13  # multiply-adds behind rows that look cheap: five to ten minutes of one core
WORK_PER_MINUTE = 1.5e12  # of one core
ROWS = "attention_rollout, the norm family, globenc or alti"
Given = TypeVar("Given", bound=nn.Module)
CONFIG_KEY = "context_mixing"  # default methods ride in the model's own config.json


class PushToHub:
    """`model.push_to_hub` of an instrumented model. An attribute of the instance: copied, pickled
    and removed with it; the Hub's code is imported when it is called.
    """

    def __init__(self, model: Model, owner: Instrumentation, methods: Specs | None = None) -> None:
        self.model, self.owner, self.methods = model, owner, methods

    def __call__(self, repo_id: str, **options: Any) -> str:
        """Push a pointer to the base model; the commit's 40-hex sha.

        Args:
            repo_id: The repository, made if it is not there.
            options: `include_weights=True` pushes the model itself; `methods` (else those given to
                `instrument`), `tokenizer`, `private`, `token`, `revision` (a branch), `base_revision`,
                `commit_message`, `license`, `endpoint`; anything else goes to `save_pretrained`.
        """
        push = VIEWS.get("model.push")
        return push(self.model, self.methods, self.owner.revision, repo_id, **options)  # type: ignore[no-any-return]


def write_methods(config: Any, value: Any) -> None:
    """The default methods in a model's config, or nothing."""
    if value is not None:
        setattr(config, CONFIG_KEY, value)
    elif hasattr(config, CONFIG_KEY):
        delattr(config, CONFIG_KEY)


@dataclass(frozen=True)
class RecordMaps:
    """Maps that are made when the whole record is there; a `cache` (a `MapStore`) gives what it has."""

    methods: Specs
    options: dict[str, Any]
    reads: Reads = field(default_factory=Reads)

    streams = False

    def add(self, layer: LayerRecord, layers: int = 1) -> None:
        raise RecordError("These maps need the whole record: no layer can be added by itself.")

    def finish(
        self, record: ModelRecord, places: Sequence[int] | None = None, output: Any = None
    ) -> dict[str, Any]:
        options, wanted = self.options, Wanted.asked(self.options)
        if options.get("cache") is not None:
            maps = options["cache"].maps_of_call(record, self.methods, options)
        elif wanted is not None and wanted.targets:
            return rows_of_record(record, self.methods, wanted, options.get("max_memory"), output)
        else:
            maps = compute_maps(record, self.methods, options.get("max_memory"))
        if wanted is not None and wanted.top_k is not None:
            return {
                key: sparse(wanted.named(made, output), wanted.top_k) for key, made in maps.items()
            }
        return maps if wanted is None else rows_of_maps(maps, wanted, output)


class MapsOfCall:
    """What `output_context_mixing=` returns: layer by layer during the forward pass where no method needs the whole
    record, else from the record.
    """

    def begin(
        self,
        methods: Specs,
        options: dict[str, Any],
        whole: bool = False,
        depth: int | None = None,
    ) -> LayerMaps | LayerRows | LayerTops | RecordMaps:
        recipes, wanted = resolve(methods), Wanted.asked(options)
        few = all(r.method.defers and not r.method.by_rows for r in recipes.values())
        whole_record = whole or options.get("cache") is not None
        projections = whole or any(r.method.reads_projections for r in recipes.values())
        from_record = RecordMaps(
            methods,
            options,
            Reads(projections, value_bias=projections, rows=few and not whole_record),
        )
        if whole_record or not all(recipe.method.layer_by_layer for recipe in recipes.values()):
            return from_record
        budget = Budget.of(options.get("max_memory"))
        if wanted is None:
            return LayerMaps(recipes, budget, depth)
        if wanted.top_k is not None:
            rolls = all(recipe.aggregation == "rollout" for recipe in recipes.values())
            return LayerTops(recipes, budget, wanted) if rolls else from_record
        joins = all(recipe.aggregation != "flow" for recipe in recipes.values())
        return LayerRows(recipes, budget, wanted) if joins else from_record

    def check(
        self, base: PreTrainedModel, x: Tensor, methods: Specs, options: dict[str, Any]
    ) -> None:
        """Whole maps of a long input are refused where they would not fit into memory, with what can be had."""
        if x.is_floating_point() or x.dim() != 2:
            return
        batch, tokens = x.shape
        wanted = Wanted.asked(options)
        config, recipes = base.config, resolve(methods)
        depth = getattr(config, "num_hidden_layers", None)
        if not isinstance(depth, int) or (tokens < CHECKED_FROM and wanted is None):
            return
        rows = self.begin(methods, options)
        if isinstance(rows, LayerRows) and rows.reads.rows:
            return
        if wanted is not None and wanted.targets and base.device.type == "cpu":
            _check_work(config, recipes, batch * depth, tokens)
        if tokens < CHECKED_FROM:
            return
        each = batch * depth * tokens * tokens * max(4, base.dtype.itemsize)
        shape = f"[{depth}, {tokens}, {tokens}]"
        kept = 2 * len(recipes)  # within the layers and from the input
        if isinstance(
            rows, LayerTops
        ):  # a layer's map, its product with those below, and both in work
            each, shape, kept = each // depth, f"[{tokens}, {tokens}]", 4 * len(recipes)
        if (
            isinstance(rows, RecordMaps) and not rows.reads.rows
        ):  # the whole record, attention of every head among it
            kept += int(getattr(config, "num_attention_heads", 1))
        free = available()
        if free is None or each * kept <= free:
            return
        name = next(iter(recipes))
        offer = (
            "ask for rows (explain(..., target=...), targets=[...] in a model call), top_k=8 or "
            f"segments='sentences' of {ROWS}, or split the text"
            if (wanted is not None and wanted.top_k is None) or isinstance(rows, RecordMaps)
            else "ask for target=... (targets=[...] in a model call), "
            f"{'' if wanted else 'top_k=8 '}or segments='sentences', which need no whole map, or split the text"
        )
        raise OptionError(
            f"{name} at this length: {shape} would take {size_in_words(each)} for one set of "
            f"maps and {size_in_words(each * kept)} in all, {size_in_words(free)} are free: {offer}."
        )


def _check_work(config: Any, recipes: dict[str, Recipe], layers: int, tokens: int) -> None:
    """Refuse rows that need whole maps of every layer where those take far longer than anybody expects of a row."""
    width = getattr(config, "hidden_size", 0)
    inner = getattr(config, "intermediate_size", None) or 4 * width
    for key, recipe in recipes.items():
        work = layers * recipe.method.work(tokens, width, inner)
        if work > WORK:
            name = plain_name(key).partition("+")[0]
            raise OptionError(
                f"{key} at {tokens} tokens: it has no cheap rows, since a rolled-out row needs the map of every layer, "
                f"about {work / WORK_PER_MINUTE:.0f} minutes on one core. Ask for {ROWS} instead, for one token's row "
                f"within each layer (cm.method({name!r}, targets=(5,))), or for the whole map if you mean it (no "
                "target), of which .attribution(...) is that row."
            )


@keeps_modes
def instrument(
    model: Given,
    tokenizer: Tokenizer | None = None,
    methods: Specs | None = None,
    *,
    layers: Iterable[str | nn.Module] | None = None,
) -> Given:
    """Teach a loaded transformers model `output_decomposition=` and `output_context_mixing=`, in place.

    Args:
        model: A transformers model as it was loaded, a PEFT or compiled wrapper of one, or a model of
            sentence-transformers.
        tokenizer: Names the tokens of maps; found beside the weights where it is not given.
        methods: What `output_context_mixing=True` means later.
        layers: The model's layers, as dotted names or modules, where they cannot be found: they are
            looked for among the members of module lists. What each layer does is still found by numbers.

    Returns:
        The same object, of the same class, with the same ordinary outputs.

    Raises:
        NotATransformersModelError: It is something else.
        UnsupportedModelError: Its family cannot be decomposed, or no layers were found.
        OptionError: `layers` names no module of the model, or `methods` no method.

    Example:
        >>> model = cm.instrument(AutoModel.from_pretrained("any/encoder"))
        >>> odd = cm.instrument(my_model, layers=["lower_block", "upper_block"])
    """
    base = base_model(model)
    top: Any = unwrapped(model)
    tokenizer = tokenizer or (
        getattr(model, "tokenizer", None)
        if isinstance(top, PreTrainedModel) and top is not model
        else None
    )
    check_family(base, declared=layers is not None)
    declared = None if layers is None else declared_layers(base, layers)
    if methods is not None:
        resolve(methods)
    if (before := instrumentation_of(top)) is not None:
        _take_off(model, before)
    owner = Instrumentation(
        base.config.model_type,
        base.dtype,
        tokenizer=tokenizer,
        source=base.config._name_or_path or None,
    )
    try:
        attach(top, owner, RecordedCall(top, owner, MapsOfCall(), methods), declared)
        if hasattr(model, "_orig_mod"):  # a compiled wrapper
            model.__dict__["_call_impl"] = EagerCall(model, owner)
        top.push_to_hub = PushToHub(top, owner, methods)
        if methods is not None:
            write_methods(base.config, {"methods": methods_to_json(methods)})
    except BaseException:  # Ctrl-C among them: all of it or nothing
        _take_off(model, owner)
        raise
    return model


def uninstrument(model: Given) -> Given:
    """Take everything `instrument` added away again.

    Args:
        model: What `instrument` returned. A model that is not instrumented is left as it is.

    Returns:
        The same object.
    """
    base_model(model)
    owner = instrumentation_of(unwrapped(model))
    if owner is not None:
        _take_off(model, owner)
    return model


def _take_off(model: nn.Module, owner: Instrumentation) -> None:
    top: Any = unwrapped(model)
    if isinstance(top.__dict__.get("push_to_hub"), PushToHub):
        del top.__dict__["push_to_hub"]
        write_methods(base_model(top).config, None)
    detach(top, owner)
    if top is not model:  # a compiled wrapper, a SentenceTransformer
        model.__dict__.pop("_call_impl", None)
