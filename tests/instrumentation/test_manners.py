"""Good manners of an instrumented model: nothing changes, nothing is left behind, nothing crosses threads."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
)

import ctxmix_hf as cm
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.errors import OptionError, RecordError
from ctxmix_hf.instrumentation.awake import ACTIVE
from ctxmix_hf.methods import METHODS
from tests import zoo


def tiny(dtype: torch.dtype = torch.float32, **kwargs):
    return zoo.build("bert", dtype=dtype, **kwargs)


def hooks(model: torch.nn.Module) -> int:
    names = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called",
    )
    return sum(len(getattr(module, name)) for module in model.modules() for name in names)


def state(model: torch.nn.Module) -> tuple:
    attributes = sorted(
        (name, tuple(sorted(module.__dict__))) for name, module in model.named_modules()
    )
    return hooks(model), model.config.to_json_string(), attributes, type(model)


def test_same_object_class_and_outputs() -> None:
    model, inputs = tiny(attn_implementation="eager")
    with torch.no_grad():
        plain = model(**inputs, output_hidden_states=True, output_attentions=True)
        same = cm.instrument(model)
        quiet, recorded = (
            model(**inputs),
            model(
                **inputs,
                output_hidden_states=True,
                output_attentions=True,
                output_decomposition=True,
            ),
        )
    assert same is model and type(model) is BertModel
    assert torch.equal(plain[0], quiet[0]) and torch.equal(plain[0], recorded[0])
    assert isinstance(recorded, type(plain))
    assert not hasattr(quiet, "decomposition")
    for ours, theirs in zip(recorded.hidden_states, plain.hidden_states, strict=True):
        assert torch.equal(ours, theirs)
    for layer, theirs in zip(recorded.decomposition, plain.attentions, strict=True):
        real = layer.mask[:, None, :, None].expand_as(theirs)
        assert torch.equal(layer.attention[real], theirs[real])


def test_output_behaves_like_the_models_own() -> None:
    model, inputs = tiny()
    cm.instrument(model)
    with torch.no_grad():
        out = model(**inputs, output_decomposition=True, output_context_mixing="attention")
        as_tuple = model(**inputs, output_decomposition=True, return_dict=False)
        bare = model(**inputs, return_dict=False)
    assert torch.equal(out[0], out.last_hidden_state) and torch.equal(
        out["last_hidden_state"], out[0]
    )
    assert out.to_tuple()[-2] is out.decomposition
    first, *_ = out.to_tuple()
    assert torch.equal(first, out[0])
    assert len(as_tuple) == len(bare) + 1 and len(as_tuple[-1]) == len(out.decomposition)
    leaves, spec = pytree.tree_flatten(out)
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(out) and again.decomposition is out.decomposition
    loaded = pickle.loads(pickle.dumps(out))
    assert torch.equal(loaded.decomposition[0].attention, out.decomposition[0].attention)
    assert torch.equal(
        loaded.context_mixing["attention"].layers, out.context_mixing["attention"].layers
    )


def test_output_unpickles_in_a_fresh_process(tmp_path) -> None:
    model, inputs = tiny()
    with torch.no_grad():
        out = cm.instrument(model)(**inputs, output_decomposition=True)
    path = tmp_path / "out.pkl"
    path.write_bytes(pickle.dumps(out))
    code = (
        f"import pickle; o = pickle.load(open({str(path)!r}, 'rb')); "
        "print(len(o.decomposition), o.decomposition.check)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 ") and "layers decomposed" in done.stdout


def test_uninstrument_leaves_nothing() -> None:
    model, inputs = tiny()
    before = state(model)
    cm.instrument(model)
    with torch.no_grad():
        model(**inputs, output_context_mixing=["hta"])
        assert hooks(model) > 0
    assert cm.uninstrument(model) is model
    assert state(model) == before


def test_exception_inside_the_forward_is_cleaned_up() -> None:
    model, inputs = tiny()
    cm.instrument(model)
    wrong = {**inputs, "input_ids": inputs["input_ids"] + 10_000}
    with pytest.raises(IndexError):
        model(**wrong, output_decomposition=True)
    assert ACTIVE.get() is None
    assert not torch.overrides._get_current_function_mode_stack()
    with torch.no_grad():
        assert len(model(**inputs, output_decomposition=True).decomposition) == 2
    cm.uninstrument(model)
    assert hooks(model) == 0


def test_two_instrumented_models_and_a_plain_one() -> None:
    (one, inputs), (two, _), (plain, _) = (
        zoo.build("bert", seed=0),
        zoo.build("bert", seed=1),
        zoo.build("bert", seed=0),
    )
    cm.instrument(one)
    cm.instrument(two)
    with torch.no_grad():
        first = one(**inputs, output_decomposition=True)
        other = two(**inputs, output_decomposition=True)
        assert torch.equal(plain(**inputs)[0], first[0])
    assert not torch.equal(first.decomposition[0].attention, other.decomposition[0].attention)


@pytest.mark.parametrize("family", ["openai-gpt", "xlm"])
def test_models_that_share_a_module_do_not_undo_each_other(family: str) -> None:
    """Their activation is one object for every model in the process: taking one model's hooks off
    left the others deaf.
    """
    (first, inputs), (second, _) = zoo.build(family), zoo.build(family)
    with torch.no_grad():
        before = hooks(second)
        expected = (
            cm.instrument(first)(**inputs, output_context_mixing="value_zeroing")
            .context_mixing["value_zeroing"]
            .layers
        )
        installed = hooks(first)
        cm.uninstrument(cm.instrument(second))
        assert hooks(first) == installed
        again = (
            first(**inputs, output_context_mixing="value_zeroing")
            .context_mixing["value_zeroing"]
            .layers
        )
    assert torch.equal(expected, again)
    cm.uninstrument(first)
    assert hooks(second) == before


def test_instrumenting_twice_is_instrumenting_once() -> None:
    model, _ = tiny()
    count = hooks(cm.instrument(model))
    assert hooks(cm.instrument(model)) == count


def test_threads_do_not_see_each_other() -> None:
    """300 calls from two threads on different inputs, every result right."""
    model, inputs = tiny()
    cm.instrument(model)
    ids = [inputs["input_ids"][:1, :7], inputs["input_ids"][1:, :5]]
    with torch.no_grad():
        want = [
            model(input_ids=x, output_context_mixing="alti").context_mixing["alti"].layers
            for x in ids
        ]
    wrong: list[str] = []

    def work(which: int) -> None:
        for i in range(150):
            k = (which + i) % 2
            with torch.no_grad():
                got = (
                    model(input_ids=ids[k], output_context_mixing="alti")
                    .context_mixing["alti"]
                    .layers
                )
            if not torch.equal(got, want[k]):
                wrong.append(f"{which} {i}")

    threads = [threading.Thread(target=work, args=(w,)) for w in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_deepcopy_and_pickle_stay_instrumented() -> None:
    model, inputs = tiny()
    cm.instrument(model)
    with torch.no_grad():
        want = model(**inputs, output_decomposition=True)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            got = other(**inputs, output_decomposition=True)
            assert torch.equal(got.decomposition[1].attention, want.decomposition[1].attention)
            assert (
                got.decomposition[0].replay.call.module
                is not want.decomposition[0].replay.call.module
            )
            cm.uninstrument(other)
            assert hooks(other) == 0
        assert len(model(**inputs, output_decomposition=True).decomposition) == 2
        buffer = io.BytesIO()
        torch.save(model, buffer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_approximate_and_says_so(dtype: torch.dtype) -> None:
    model, inputs = tiny()
    cm.instrument(model)
    with torch.no_grad():
        exact = model(**inputs, output_context_mixing=["alti", "globenc"])
        half = model.to(dtype)(
            **inputs, output_context_mixing=["alti", "globenc"], output_decomposition=True
        )
    assert half.last_hidden_state.dtype == dtype
    assert half.decomposition[0].attention.dtype == torch.float32
    assert "model in" in half.decomposition.check.precision
    assert (
        half.context_mixing["alti"].layers - exact.context_mixing["alti"].layers
    ).abs().max() < 0.1
    assert {m.status for m in cm.verify(model, inputs).methods} == {"approximate"}


def test_sdpa_equals_eager() -> None:
    (sdpa, inputs), (eager, _) = tiny(attn_implementation="sdpa"), tiny(attn_implementation="eager")
    with torch.no_grad():
        a = cm.instrument(sdpa)(**inputs, output_decomposition=True).decomposition
        b = cm.instrument(eager)(**inputs, output_decomposition=True).decomposition
    assert (a.check.path, b.check.path) == ("sdpa", "eager")
    assert (a[0].attention - b[0].attention).abs().max() < 1e-5


def test_inference_mode_and_checkpointing_configured() -> None:
    model, inputs = tiny()
    model.gradient_checkpointing_enable()
    cm.instrument(model)
    with torch.inference_mode():
        out = model(
            **inputs, output_decomposition=True, output_context_mixing=["norm_enc", "value_zeroing"]
        )
    assert out.decomposition.check.worst_error < 1e-5


def test_gradients_only_on_request() -> None:
    model, inputs = tiny()
    cm.instrument(model)
    held = model(**inputs, output_decomposition=True, output_context_mixing="norm_resln")
    assert (
        not held.decomposition[0].attention.requires_grad
        and not held.context_mixing["norm_resln"].layers.requires_grad
    )
    names = [
        name
        for name in METHODS
        if METHODS.get(name).differentiable and METHODS.get(name).kind == "layer"
    ]
    for name in names:
        model.zero_grad()
        kept = (
            model(**inputs, output_context_mixing=name, create_graph=True)
            .context_mixing[name]
            .layers
        )
        (kept * torch.rand(kept.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
        grad = model.encoder.layer[0].attention.self.query.weight.grad
        assert torch.isfinite(grad).all() and grad.abs().max() > 0, name
    with pytest.raises(OptionError, match="graph"):
        model(**inputs, output_context_mixing="value_zeroing", create_graph=True)


def test_train_mode_is_refused() -> None:
    model, inputs = tiny()
    cm.instrument(model).train()
    with pytest.raises(RecordError, match="eval"):
        model(**inputs, output_decomposition=True)
    model(**inputs)  # the plain forward is nobody's business


def test_lora_uses_the_effective_weights() -> None:
    peft = pytest.importorskip("peft")
    base, inputs = tiny(torch.float64)
    model = (
        peft.get_peft_model(
            base, peft.LoraConfig(target_modules=["value", "dense"], r=4, init_lora_weights=False)
        )
        .double()
        .eval()
    )
    cm.instrument(model)
    with torch.no_grad():
        plain = model(**inputs)
        out = model(**inputs, output_decomposition=True, output_context_mixing=["alti"])
    assert torch.equal(plain[0], out[0])
    assert out.decomposition.check.exact_layers == 2 and out.decomposition.check.worst_error < 1e-10


def test_compiled_model_runs_plain_without_breaks_and_records_on_the_original() -> None:
    model, inputs = tiny()
    want = cm.instrument(model)
    with torch.no_grad():
        expected = want(**inputs, output_context_mixing="alti").context_mixing["alti"].layers
        report = torch._dynamo.explain(model)(**inputs)
        assert report.graph_break_count == 0, report.break_reasons
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        compiled(**inputs)
        with pytest.raises(RecordError, match="instrument"):
            compiled(**inputs, output_context_mixing="alti")
        cm.instrument(compiled)
        got = compiled(**inputs, output_context_mixing="alti").context_mixing["alti"].layers
    assert torch.allclose(got, expected)


def test_device_map_offload(tmp_path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, inputs = tiny(torch.float64)
    with torch.no_grad():
        expected = (
            cm.instrument(model)(**inputs, output_context_mixing="norm_enc")
            .context_mixing["norm_enc"]
            .layers
        )
        cm.uninstrument(model)
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        got = cm.instrument(model)(
            **inputs, output_context_mixing="norm_enc", output_decomposition=True
        )
    assert torch.allclose(got.context_mixing["norm_enc"].layers, expected)
    assert got.decomposition.check.worst_error < 1e-10


def test_save_pretrained_is_an_ordinary_checkpoint(tmp_path) -> None:
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=100,
        num_labels=3,
    )
    model = cm.instrument(BertForSequenceClassification(config).eval(), methods=["alti"])
    model.save_pretrained(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(plain) is BertForSequenceClassification and hooks(plain) == 0
    again = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(tmp_path)
    ids = torch.randint(5, 90, (1, 6))
    with torch.no_grad():
        out = again(input_ids=ids, output_context_mixing=True)
        assert torch.equal(out.logits, plain(input_ids=ids).logits)
    assert list(out.context_mixing) == ["alti"]
    half = cm.AutoContextMixingModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and isinstance(
        half, type(AutoModel.from_pretrained(tmp_path))
    )


def _calls_that_leave_no_tensors(model, tokenizer, text: str) -> dict[str, Callable[[], object]]:
    inputs = tokenizer([text, "Short."], return_tensors="pt", padding=True)
    long = tokenizer(text * 60, return_tensors="pt")  # rows by blocks
    document = zoo.build("modernbert")[0]
    cm.instrument(document)
    ids = torch.randint(5, 90, (1, long["input_ids"].shape[1]))
    blocks = {"targets": ["mean_pool"], "output_context_mixing": ["alti", "globenc"]}
    pooled = lambda out: out.last_hidden_state.mean(dim=(1, 2))
    return {
        **{name: partial(cm.explain, model, text, name, tokenizer=tokenizer) for name in METHODS},
        **{
            name: partial(cm.attribute, model, text, name, tokenizer=tokenizer)
            for name in ATTRIBUTIONS
        },
        "decomposition": lambda: model(**inputs, output_decomposition=True).decomposition.check,
        "graph": partial(model, **inputs, output_context_mixing=["alti"], create_graph=True),
        "rows": partial(document, input_ids=ids, **blocks),
        "ledger": partial(cm.ledger, document, {"input_ids": ids}, readout=pooled),
        "checkpoint": partial(
            cm.ledger, document, {"input_ids": ids}, readout=pooled, checkpoint=True
        ),
        "similarity": partial(
            cm.similarity, model, text, "Old keys.", pooling="mean", tokenizer=tokenizer
        ),
    }


def test_a_call_frees_its_tensors_at_once() -> None:
    """Tensors in a cycle stay until Python next collects, which at 8,192 tokens was a gigabyte per call."""
    model, tokenizer = cm.load_default()
    left = {}
    for name, call in _calls_that_leave_no_tensors(
        model, tokenizer, "The keys [MASK] old."
    ).items():
        call()  # proofs and caches of a first call stay on purpose
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            call()
            gc.collect()
            left[name] = sum(
                isinstance(thing, torch.Tensor)
                and not isinstance(thing, FakeTensor)  # torch.compile's, of another test
                for thing in gc.garbage
            )
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert {name: tensors for name, tensors in left.items() if tensors} == {}


def test_no_graph_where_none_is_asked_for() -> None:
    """Outside `no_grad` too, and without a warning when the record is read later."""
    model, inputs = zoo.build("bert")
    names = ["alti", "norm_enc", "value_zeroing", "hta_x_input"]
    out = cm.instrument(model)(**inputs, output_decomposition=True, output_context_mixing=names)
    assert out.last_hidden_state.requires_grad
    assert not any(m.layers.requires_grad for m in out.context_mixing.values())
    assert not any(
        part.requires_grad
        for layer in out.decomposition
        for part in (layer.output, layer.vectors("norm2", [0]))
    )
    assert out.decomposition.check.worst_error < 1e-5


def test_a_feed_forward_that_failed_its_proof_is_never_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = zoo.build("bert")
    cm.instrument(model)
    with torch.no_grad():
        monkeypatch.setattr("ctxmix_hf.instrumentation.blocks._proved", lambda *args: False)
        model(**inputs, output_context_mixing=["alti"])
        monkeypatch.undo()
        later = model(**inputs, output_decomposition=True).decomposition
    assert all(layer.level2 is not None and layer.level2.feed_forward is None for layer in later)


def test_a_target_is_named() -> None:
    """By its label or its word, with the tokens as they were written."""
    model, _ = cm.load_default()
    assert cm.attribute(model, "The Cats [MASK] here.", "grad_l2").words().tokens[0].shown()[
        1:3
    ] == ["The", "Cats"]
    sentiment = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(
        "ctxmix/sentiment"
    )
    assert (
        cm.attribute(sentiment, "A warm, funny film.", "grad_l2").target
        in sentiment.config.id2label.values()
    )
