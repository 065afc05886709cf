"""What a user calls: `instrument` any loaded model, or load one already instrumented with the Auto mirrors."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.hub.pointers import add_to_model, remove_from_model
from ctxmix_hf.instrumentation.requests import AfterCall, BeforeCall, EagerAfter, EagerBefore
from ctxmix_hf.instrumentation.session import Instrumentation, attach, base_model, check_family, detach, instrumentation_of
from ctxmix_hf.maps import ContextMixingMap
from ctxmix_hf.recipes import LayerMaps, compute_maps, resolve
from ctxmix_hf.records import ModelRecord

Model = TypeVar("Model", bound=nn.Module)


class MapsOfCall:
    """What `output_context_mixing=` returns; a `cache` (a `MapStore`) gives what it has."""

    def gather(self, methods: Any, options: dict[str, Any]) -> LayerMaps | None:
        """Layer by layer during the forward pass, where no method needs the whole record."""
        recipes = resolve(methods)
        if options.get("cache") is not None or not all(recipe.method.layer_by_layer for recipe in recipes.values()):
            return None
        return LayerMaps(recipes, Budget.of(options.get("max_memory")))

    def of_record(self, record: ModelRecord, methods: Any, options: dict[str, Any]) -> dict[str, ContextMixingMap]:
        if options.get("cache") is not None:
            return options["cache"].maps_of_call(record, methods, options)  # type: ignore[no-any-return]
        return compute_maps(record, methods, options.get("max_memory"))


def instrument(model: Model, tokenizer: Any = None, methods: Any = None) -> Model:
    """Teach a loaded transformers model `output_decomposition=` and `output_context_mixing=`, in place.

    Same object, same class, same ordinary outputs. `methods` are what `output_context_mixing=True` means later;
    `tokenizer` names the tokens of maps (found beside the weights where it is not given).
    """
    base = base_model(model)
    top: Any = getattr(model, "_orig_mod", model)
    check_family(base)
    if methods is not None:
        resolve(methods)
    if instrumentation_of(top) is not None:
        detach(model)
    owner = Instrumentation(base.config.model_type, base.dtype, tokenizer=tokenizer, source=base.config._name_or_path or None)
    maps = MapsOfCall()
    attach(top, BeforeCall(owner, maps, methods), AfterCall(owner, maps))
    if top is not model:  # a compiled wrapper
        model.register_forward_pre_hook(EagerBefore(owner), with_kwargs=True)
        model.register_forward_hook(EagerAfter(owner), always_call=True)
    add_to_model(top, methods)
    return model


def uninstrument(model: Model) -> Model:
    """Take everything `instrument` added away again."""
    base_model(model)
    top: Any = getattr(model, "_orig_mod", model)
    detach(model)
    remove_from_model(top)
    return model
