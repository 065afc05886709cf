"""Long inputs: rows without maps, equal to the whole map's, and no tensor of T x T per head on the way."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    ModernBertConfig,
    ModernBertModel,
)

import ctxmix_hf as cm
from ctxmix_hf import modeling
from ctxmix_hf import sparse as sparse_maps
from ctxmix_hf.algebra.rows import BlockAttention
from ctxmix_hf.cli import main
from ctxmix_hf.cli.commands import explain as explain_command
from ctxmix_hf.errors import AlikeRowsWarning, InputError, OptionError
from ctxmix_hf.instrumentation import recorder, requests
from ctxmix_hf.instrumentation.fused import sdpa_probabilities
from ctxmix_hf.methods import alti as alti_method
from ctxmix_hf.recipes import TargetRows
from ctxmix_hf.text.segments import paragraphs, segment_groups, sentences
from ctxmix_hf.text.tokens import numbered
from tests import oracle, small
from tests.instrumentation.test_towers import two_towers
from tests.test_oracle import bert_layers

LAYER_METHODS = [
    "attention",
    "attention_fixedres",
    "attention_res",
    "attention_rollout",
    "norm",
    "norm_fixedres",
    "norm_res",
    "norm_resln",
    "norm_enc",
    "norm_rollout",
    "globenc",
    "alti",
    "effective_attention",
]
TARGETS: list[Any] = ["mean_pool", 5, [3, -1]]


def modern(
    dtype: torch.dtype = torch.float64, layers: int = 4, window: int = 32, tokens: int = 8192
) -> Any:
    torch.manual_seed(0)
    config = ModernBertConfig(
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=100,
        local_attention=window,
        max_position_embeddings=tokens,
        global_attn_every_n_layers=3,
        initializer_range=0.4,
        pad_token_id=0,
        bos_token_id=1,
        cls_token_id=1,
        eos_token_id=2,
        sep_token_id=2,
        attn_implementation="sdpa",
    )
    return cm.instrument(ModernBertModel(config).eval().to(dtype))


def bert(
    dtype: torch.dtype = torch.float64, attention: str = "sdpa", layers: int = 2, tokens: int = 400
) -> Any:
    torch.manual_seed(0)
    size = {**small.BERT, "num_hidden_layers": layers, "max_position_embeddings": tokens}
    config = BertConfig(vocab_size=100, attn_implementation=attention, **size)
    return cm.instrument(BertModel(config).eval().to(dtype))


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=100, attn_implementation="sdpa", **small.GPT2)
    return cm.instrument(GPT2Model(config).eval().double())


def batch(tokens: int = 180) -> dict[str, torch.Tensor]:
    """Two examples, the second with padding."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 90, (2, tokens), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, tokens * 3 // 4 :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.fixture
def deferring(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of tokens from which attention is made by rows."""
    return lambda tokens: monkeypatch.setattr(requests, "DEFER_FROM", tokens)


def maps(model: Any, names: Any, **options: Any) -> dict[str, Any]:
    with torch.no_grad():
        return model(**batch(), output_context_mixing=names, **options).context_mixing


@pytest.mark.parametrize("make", [modern, bert, gpt2])
def test_rows_are_the_whole_maps_rows(make: Any, deferring: Any) -> None:
    model = make()
    deferring(10**9)
    whole = maps(model, LAYER_METHODS)
    deferring(64)
    rows = maps(model, LAYER_METHODS, targets=TARGETS)
    blocks = maps(model, LAYER_METHODS)
    for name in LAYER_METHODS:
        assert rows[name].shape == (2, 3, 180)
        size = whole[name].input.abs().max()
        for number, target in enumerate(TARGETS):
            expected, found = whole[name].attribution(target), rows[name].attribution(number)
            assert (found.scores - expected.scores).abs().max() <= 1e-9 * size, name
            assert (found.target, found.method) == (expected.target, expected.method)
            assert found.tokens == expected.tokens and found.meta["layer"] == expected.meta["layer"]
        gap = (blocks[name].layers - whole[name].layers).abs().max()
        assert gap <= 1e-9 * whole[name].layers.abs().max(), name
    for note in ("unseen_mass", "null_dimension"):
        torch.testing.assert_close(
            blocks["effective_attention"].meta["notes"][note],
            whole["effective_attention"].meta["notes"][note],
        )


@pytest.mark.slow
@pytest.mark.parametrize("make", [modern, bert])
def test_rows_of_a_thousand_tokens_are_the_whole_maps_rows(make: Any, deferring: Any) -> None:
    model, ids = make(layers=2, tokens=1024), torch.randint(5, 90, (1, 1024))
    ask = lambda **o: model(input_ids=ids, output_context_mixing=LAYER_METHODS, **o).context_mixing
    with torch.no_grad():
        deferring(10**9)
        whole = ask()
        deferring(256)
        rows = ask(targets=TARGETS)
    for name in LAYER_METHODS:
        for number, target in enumerate(TARGETS):
            expected, found = whole[name].attribution(target), rows[name].attribution(number)
            gap = (found.scores - expected.scores).abs().max()
            assert gap <= 1e-9 * whole[name].input.abs().max(), (name, target)


@pytest.mark.slow
def test_rows_of_two_thousand_tokens_are_those_of_the_equations() -> None:
    """Above the lengths whole maps are compared at: each row from the vectors of its own parts, one token at a time."""
    tokens, target = 2048, 700
    model = bert(tokens=tokens)
    ids = torch.randint(5, 90, (1, tokens))
    with torch.no_grad():
        made = model(
            input_ids=ids,
            output_decomposition=False,
            output_context_mixing=["attention_rollout", "alti", "norm_rollout"],
            targets=[target],
        ).context_mixing
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
        layers = bert_layers(model)
        for name in ("attention_rollout", "alti", "norm_rollout"):
            carried = torch.zeros(tokens, dtype=torch.float64)
            carried[target] = 1
            for layer, x in zip(reversed(layers), reversed(hidden[:-1]), strict=True):
                rows = oracle.RowByRow(layer, x[0])
                below = torch.zeros_like(carried)
                for i in carried.nonzero().flatten().tolist():
                    below += carried[i] * rows.of(name, i)
                carried = below
            torch.testing.assert_close(made[name].scores[0, 0], carried, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["alti", "globenc", "attention_rollout", "alti+none"])
def test_rows_of_every_layer(name: str, deferring: Any) -> None:
    model, inputs = modern(), batch()
    deferring(10**9)
    whole = cm.explain(model, inputs, name)
    deferring(64)
    rows = cm.explain(model, inputs, name, target="mean_pool", layers=True)
    assert len(rows) == whole.depth
    for number, row in enumerate(rows, 1):
        expected = whole.attribution("mean_pool", number)
        assert row.meta["layer"] == number and row.meta["scope"] == expected.meta["scope"]
        torch.testing.assert_close(row.scores, expected.scores, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("threshold", [4, 10**9])
def test_explain_with_a_target_is_the_maps_attribution(
    box: Any, deferring: Any, threshold: int
) -> None:
    """By rows and, for short texts, from the layers' maps: words, names and defaults alike."""
    model, tokenizer = box
    text = "The keys to the cabinet [MASK] on the table."
    deferring(10**9)
    whole = {
        name: cm.explain(model, text, name, tokenizer=tokenizer)
        for name in ("alti", "value_zeroing", "attention_flow", "norm_rollout")
    }
    deferring(threshold)
    for name, made in whole.items():
        cheap = name in ("alti", "norm_rollout")
        for target in ("mean_pool", "[CLS]", "cabinet", 3, ["keys", "table"])[: 5 if cheap else 1]:
            found = cm.explain(model, text, name, target=target, tokenizer=tokenizer)
            expected = made.attribution(target)
            assert isinstance(found, cm.Attribution)
            torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-6)
            assert found.target == expected.target and found.tokens == expected.tokens
            assert found.words().tokens == expected.words().tokens
    several = cm.explain(model, text, ["alti", "norm"], target="keys", tokenizer=tokenizer)
    assert set(several) == {"alti", "norm"} and several["norm"].method == "norm"
    rows = cm.explain(model, text, "alti", targets=["keys", "table"], tokenizer=tokenizer)
    assert isinstance(rows, TargetRows) and rows.shape[:2] == (1, 2)
    torch.testing.assert_close(
        rows.attribution(1).scores, whole["alti"].attribution("table").scores, rtol=1e-4, atol=1e-6
    )


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, torch.Tensor) and item.device.type != "meta":
                stored = item.untyped_storage().nbytes() // item.element_size()
                self.elements = max(self.elements, min(item.numel(), stored))
        return out


@pytest.mark.parametrize("name", LAYER_METHODS)
def test_no_tensor_of_tokens_by_tokens_per_head(name: str, deferring: Any) -> None:
    """The guard: with a target nothing has T x T elements per head, neither in the first call, which proves the
    layers, nor in later ones. (The model's own window mask has T x T, without heads.)
    """
    tokens, heads = 512, 4
    model = modern(torch.float32, layers=2)
    ids = torch.randint(5, 90, (1, tokens))
    deferring(128)
    for _ in range(2):
        with Largest() as guard, torch.no_grad():
            model(input_ids=ids, output_context_mixing=[name], targets=["mean_pool"])
        assert guard.elements < 0.75 * heads * tokens * tokens
    deferring(10**9)
    with Largest() as guard, torch.no_grad():
        model(input_ids=ids, output_context_mixing=[name], targets=["mean_pool"])
    assert guard.elements >= heads * tokens * tokens  # the guard sees what it is there for


def test_a_token_of_the_last_layer_costs_one_block(deferring: Any, monkeypatch: Any) -> None:
    """Rows nobody asked for are not made: one layer, one token, one block of attention."""
    model, made = modern(layers=1), []
    own = BlockAttention.rows
    deferring(64)
    maps(model, ["alti"], targets=[5])
    monkeypatch.setattr(
        BlockAttention,
        "rows",
        lambda self, targets, sources: made.append(targets) or own(self, targets, sources),
    )
    with torch.no_grad():
        model(input_ids=batch()["input_ids"][:1], output_context_mixing=["alti"], targets=[5])
    assert sum(targets.start <= 5 < targets.stop for targets in made) == 1
    assert all(targets.start <= 5 < targets.stop or targets == slice(0, 1) for targets in made)


@pytest.mark.parametrize("make", [modern, bert, gpt2])
@pytest.mark.parametrize("factors", [(0.0,), (1.0,), (4.0,), (1e9,)])
def test_alti_by_coordinates_is_the_plain_loop(
    make: Any, factors: tuple[float, ...], deferring: Any, monkeypatch: Any
) -> None:
    """Parts are small and large by a threshold that only decides what is cheap: all large (0), some, all small."""
    model, made = make(), []
    deferring(64)
    own = alti_method.Alti._by_coordinates
    monkeypatch.setattr(alti_method, "THRESHOLDS", factors)
    monkeypatch.setattr(
        alti_method.Alti,
        "_by_coordinates",
        lambda self, *given: made.append(own(self, *given)) or made[-1],
    )
    monkeypatch.setattr(alti_method, "DENSE", 0.0)  # what it would save is never enough
    plain = maps(model, ["alti"])["alti"].layers
    assert made and all(one is None for one in made)
    made.clear()
    monkeypatch.setattr(alti_method, "DENSE", 1e9)
    found = maps(model, ["alti"])["alti"].layers
    assert made and all(one is not None for one in made)
    assert (found - plain).abs().max() <= 1e-12
    assert 0 < float(plain.max()) <= 1


def operations(model: Any, **asked: Any) -> int:
    with FlopCounterMode(display=False) as flops, torch.no_grad():
        model(**asked)
    return int(flops.get_total_flops())


@pytest.mark.parametrize("name", ["attention_rollout", "effective_attention"])
def test_a_budget_of_memory_bounds_what_is_made_on_the_way(name: str) -> None:
    """README: results and what the model computes are outside of it. One layer's map is the largest thing made."""
    tokens, heads = 1024, 16
    config = {**small.BERT, "hidden_size": 64, "num_attention_heads": heads}
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=100, max_position_embeddings=tokens, **config)).eval()
    ask = {
        "input_ids": torch.randint(5, 90, (1, tokens)),
        "output_context_mixing": [name],
        "max_memory": "4MB",
    }
    cm.instrument(model)
    with torch.no_grad():
        model(**ask)  # the first call proves the layers
        with Largest() as guard:
            result = model(**ask).context_mixing[name].layers
    assert guard.elements <= result.numel() < heads * tokens * tokens / 4


@pytest.mark.parametrize("name", ["attention_rollout", "globenc", "norm_rollout"])
def test_a_row_costs_no_product_of_maps(name: str, deferring: Any) -> None:
    """A row's rollout is vector times matrix: the whole call takes fewer operations than one product of two maps."""
    tokens, model = 1024, modern(torch.float32, layers=3, window=2048)
    ids = torch.randint(5, 90, (1, tokens))
    deferring(128)
    ask = {"input_ids": ids, "output_context_mixing": [name], "targets": ["mean_pool"]}
    operations(model, **ask)  # the first call proves the layers
    assert operations(model, **ask) < tokens**3 / 2
    del ask["targets"]
    with FlopCounterMode(display=False) as flops, torch.no_grad():
        assert model(**ask).context_mixing[name].input.shape[-1] == tokens
    assert flops.get_total_flops() >= 2 * 2 * tokens**3  # the count sees what it is there for


def test_alti_of_a_long_text_makes_no_vectors_of_pairs(deferring: Any) -> None:
    """A product per head in place of the vectors of all pairs: counted, not timed."""
    model = modern(torch.float32, layers=1)
    ids = torch.randint(5, 90, (1, 1024))
    deferring(128)

    def asked(name: Any) -> int:
        ask = {"output_context_mixing": [name], "targets": ["mean_pool"]}
        return operations(model, input_ids=ids, **ask)

    asked("alti")  # the first call proves the layers
    rollout = asked("attention_rollout")
    plain = asked(cm.method("alti", norm=2)) - rollout  # has the vectors of all pairs
    assert asked("alti") - rollout < 0.5 * plain


@pytest.mark.parametrize("make", [modern, bert, gpt2])
@pytest.mark.parametrize("options", [{}, {"distance": "euclidean"}, {"shortcut": False}])
def test_rows_of_value_zeroing_are_those_of_the_map(
    make: Any, options: dict[str, Any], deferring: Any
) -> None:
    """Also of more targets than heads, where another product is cheaper."""
    model = make()
    deferring(10**9)
    whole = maps(model, [cm.method("value_zeroing", **options)])["value_zeroing"].layers
    for threshold, targets in ((64, (5,)), (64, (0, 7, -1, 20, 21, 22)), (10**9, (5,))):
        deferring(threshold)
        asked = cm.method("value_zeroing", targets=targets, **options)
        found = maps(model, [asked])["value_zeroing"].layers
        rows = list(targets)
        assert (found[:, :, rows] - whole[:, :, rows]).abs().max() <= 1e-9
        others = [i for i in range(180) if i not in {t % 180 for t in targets}]
        assert not found[:, :, others].any()


def test_a_row_of_value_zeroing_costs_a_row(deferring: Any) -> None:
    """No attention of all heads, and T pairs per layer instead of T^2: counted, not timed."""
    tokens, model = 512, modern(torch.float32, layers=2)
    ids = torch.randint(5, 90, (1, tokens))
    deferring(128)
    ask = lambda **o: model(input_ids=ids, output_context_mixing=[cm.method("value_zeroing", **o)])
    ask(targets=(5,))
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        model(input_ids=ids)
    with FlopCounterMode(display=False) as flops, Largest() as guard, torch.no_grad():
        ask(targets=(5,))
    assert guard.elements < 0.75 * 4 * tokens * tokens
    assert flops.get_total_flops() < 4 * plain.get_total_flops()
    with pytest.raises(InputError, match=r"no token 600: the input has 512, 0 to 511"):
        ask(targets=(600,))


@pytest.mark.parametrize("tokens", [20, 180])
def test_roles_are_not_looked_for_where_attention_is_enough(
    tokens: int, deferring: Any, monkeypatch: Any
) -> None:
    """What an earlier call proved is not looked at again by a call that reads attention alone."""
    model, seen = modern(), []
    deferring(64)
    ids = batch(tokens)["input_ids"][:1]
    ask = lambda name: model(input_ids=ids, output_context_mixing=[name]).context_mixing[name]
    first = ask("attention_rollout")  # proves the layers
    own = recorder.build_block
    monkeypatch.setattr(recorder, "build_block", lambda *a, **o: seen.append(1) or own(*a, **o))
    assert torch.equal(ask("attention_rollout").input, first.input)
    assert torch.equal(ask("effective_attention").layers, ask("effective_attention").layers)
    assert not seen
    ask("alti")
    assert len(seen) == 4


def added(allowed: torch.Tensor, low: float) -> torch.Tensor:
    """A mask that is added to the scores."""
    return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, low)


def test_windows_are_bands() -> None:
    """A block of rows of a local layer is multiplied with the sources of its window alone."""
    torch.manual_seed(0)
    tokens, window = 512, 32
    places = torch.arange(tokens)
    near = (places[:, None] - places[None]).abs() <= window
    q, k = torch.randn(2, 1, 2, tokens, 8, dtype=torch.float64)
    for mask in (near[None, None], added(near, torch.finfo(q.dtype).min)[None, None]):
        expected = sdpa_probabilities(q, k, attn_mask=mask)
        lazy = BlockAttention(q, k, mask, False, 8**-0.5, q.dtype)
        pairs = 0
        for targets in lazy.blocks():
            sources = lazy.reach(targets)
            pairs += (targets.stop - targets.start) * (sources.stop - sources.start)
            found = lazy.rows(targets, sources)
            torch.testing.assert_close(found, expected[:, :, targets, sources])
            outside = torch.ones(tokens, dtype=torch.bool)
            outside[sources] = False
            assert not expected[:, :, targets][..., outside].any()
        assert pairs <= 3 * (2 * window + 1) * tokens < tokens * tokens


def test_masks_that_hide_everything_and_causal_ones() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 70, 8, dtype=torch.float64)
    hidden = torch.ones(1, 1, 70, 70, dtype=torch.bool)
    hidden[..., 40:50, :] = False
    cases = [
        {"attn_mask": hidden},
        {"attn_mask": added(hidden, torch.finfo(q.dtype).min)},
        {"attn_mask": added(hidden, -torch.inf)},
        {"is_causal": True},
    ]
    for case in cases:
        expected = sdpa_probabilities(q, k, **case)
        causal = bool(case.get("is_causal"))
        lazy = BlockAttention(q, k, case.get("attn_mask"), causal, 8**-0.5, q.dtype)
        for targets in lazy.blocks():
            sources = lazy.reach(targets)
            whole = torch.zeros_like(expected[:, :, targets])
            whole[..., sources] = lazy.rows(targets, sources)
            torch.testing.assert_close(whole, expected[:, :, targets])
        assert lazy.is_causal() == causal


def test_a_frozen_product_hands_back_what_autograd_does() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 4, 70, 8, dtype=torch.float64)
    near = (torch.arange(70)[:, None] - torch.arange(70)).abs() <= 5
    near[40:50] = False
    for case in ({}, {"is_causal": True}, {"attn_mask": near}, {"attn_mask": added(near, -1e300)}):
        v = torch.randn(1, 4, 70, 8, dtype=torch.float64, requires_grad=True)
        weights = sdpa_probabilities(q, k, **case)
        g = torch.randn_like(v)
        (expected,) = torch.autograd.grad(weights @ v, v, g)
        mask = case.get("attn_mask")
        lazy = BlockAttention(q, k, mask, "is_causal" in case, 8**-0.5, q.dtype)
        torch.testing.assert_close(lazy.back(g), expected)


def test_a_ledger_keeps_nothing_of_tokens_by_tokens() -> None:
    """The fused product's own derivative kept a mask of floats for every layer with a window: at 8,192 tokens a
    quarter of a gigabyte each.
    """
    model, tokens = modern(torch.float32, layers=4), 256
    kept: list[int] = []

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        account = cm.ledger(
            model,
            {"input_ids": torch.randint(5, 90, (1, tokens))},
            readout=lambda out: out.last_hidden_state[:, 3, :5].sum(dim=-1),
        )
    assert kept and max(kept) < tokens * tokens
    assert abs(account.total - account.value) < 1e-4 * abs(account.scores).sum()


def test_eager_models_give_the_same_rows(deferring: Any) -> None:
    model = bert(attention="eager")
    whole = maps(model, ["alti"])["alti"]
    deferring(64)
    found = maps(model, ["alti"], targets=["mean_pool"])["alti"]
    torch.testing.assert_close(
        found.attribution().scores, whole.attribution("mean_pool").scores, rtol=1e-9, atol=1e-12
    )


def test_long_rollouts_of_unnormalised_maps_do_not_overflow(deferring: Any) -> None:
    torch.manual_seed(0)
    model = modern(torch.float32, layers=10)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("Wo.weight"):
                weight.mul_(40)
    inputs = {"input_ids": batch()["input_ids"][:1]}
    deferring(64)
    found = cm.explain(model, inputs, "globenc", target="mean_pool").scores
    deferring(10**9)
    expected = cm.explain(model, inputs, "globenc").attribution("mean_pool").scores
    assert expected.max() > 1e16 and bool(found.isfinite().all())
    torch.testing.assert_close(found / found.sum(), expected / expected.sum(), rtol=1e-3, atol=0)


def test_the_errors_of_rows() -> None:
    """Each of them, and the advice it gives, followed."""
    model, inputs = bert(), batch()
    with pytest.raises(OptionError, match="one of the two"):
        cm.explain(model, inputs, "alti", target=1, targets=[2])
    with pytest.raises(OptionError, match="goes with target"):
        cm.explain(model, inputs, "alti", layers=True)
    with pytest.raises(OptionError, match="give a list"):
        maps(model, ["alti"], targets="mean_pool")
    with pytest.raises(OptionError, match="at least one"):
        maps(model, ["alti"], targets=[])
    with pytest.raises(InputError, match="There is no token 500"):
        cm.explain(model, inputs, "alti", target=500)
    with pytest.raises(InputError, match="no row 1"):
        maps(model, ["alti"], targets=[1])["alti"].attribution(1)
    with pytest.raises(OptionError, match="ask with layers=True"):
        cm.explain(model, inputs, "alti", targets=[1]).attribution(0, layer=1)
    rows = cm.explain(model, inputs, "alti", targets=[1], layers=True)
    assert rows.attribution(0, layer=1).meta["layer"] == 1 and rows.layers.shape == (2, 2, 1, 180)
    assert maps(model, ["alti"], targets=["mean_pool"])["alti"].shape == (2, 1, 180)


def test_maps_that_do_not_fit_are_refused_with_an_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = modern(torch.float32, layers=2)
    inputs = {"input_ids": torch.randint(5, 90, (1, 1100))}
    monkeypatch.setattr(modeling, "available", lambda: 5 * 10**6)
    with pytest.raises(OptionError, match=r"\[2, 1100, 1100\] would take 9.7 MB.*target="):
        cm.explain(model, inputs, "attention_rollout")
    with pytest.raises(OptionError, match=r"value_zeroing.*attention_rollout, the norm family"):
        cm.explain(model, inputs, "value_zeroing", target=3)
    assert cm.explain(model, inputs, "attention_rollout", target=3).shape == (1, 1100)
    with pytest.raises(
        OptionError, match=r"\[1100, 1100\] would take 4.8 MB.*19.4 MB in all.*target="
    ):
        cm.explain(model, inputs, "attention_rollout", top_k=3)
    parts = [range(500), range(500, 1100)]  # the offer
    assert cm.explain(model, inputs, "attention_rollout", segments=parts).size == 2
    monkeypatch.setattr(
        modeling, "available", lambda: 25 * 10**6
    )  # two layers of two would be 19.4 too
    assert cm.explain(model, inputs, "attention_rollout", top_k=3).top_k == 3


def test_the_pipeline_makes_the_row_alone(box: Any) -> None:
    model, tokenizer = box
    texts = ["The keys to the cabinet [MASK] on the table.", "She [MASK] well."]
    mix = transformers.pipeline("context-mixing", model=model, tokenizer=tokenizer, method="alti")
    for target in ("[MASK]", "mean_pool"):
        rows = mix(texts, target=target, batch_size=2)
        for text, row in zip(texts, rows, strict=True):
            whole = cm.explain(model, text, "alti", tokenizer=tokenizer).attribution(target)
            assert (
                isinstance(row, cm.Attribution) and row.tokens[0].pieces == whole.tokens[0].pieces
            )
            torch.testing.assert_close(row.scores, whole.scores, rtol=1e-3, atol=1e-5)


def test_the_command_line_makes_the_row_alone_of_long_texts(
    box: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The keys to the cabinet [MASK] on the table."
    whole = cm.explain(box[0], text, "alti", tokenizer=box[1])
    monkeypatch.setattr(explain_command, "LONG", 8)
    for options, layer in (([], -1), (["--layer", "2"], 2)):
        command = ["explain", text, "--method", "alti", "--target", "cabinet", "--json", *options]
        assert main(command) == 0
        said = json.loads(capsys.readouterr().out)
        assert "attribution" not in said and said["target"] == "cabinet"
        expected = whole.attribution("cabinet", layer).scores[0]
        torch.testing.assert_close(
            torch.tensor(said["scores"]).flatten(), expected, rtol=1e-3, atol=1e-5
        )


# ---- segments

DOCUMENT = (
    "The keys to the cabinet are on the table. Dr. Smith, who the boys like, sees them!\n"
    "Is it so? The dogs near the house run.\n\nThe girl likes the cats. The cats sleep."
)


def test_sentences_and_paragraphs_are_found_by_punctuation() -> None:
    cut = lambda spans: [DOCUMENT[a:b].strip() for a, b in spans]
    assert cut(sentences(DOCUMENT)) == [
        "The keys to the cabinet are on the table.",
        "Dr. Smith, who the boys like, sees them!",
        "Is it so?",
        "The dogs near the house run.",
        "The girl likes the cats.",
        "The cats sleep.",
    ]
    assert [len(text) for text in cut(paragraphs(DOCUMENT))] == [121, 40]
    assert len(paragraphs("one\ntwo\nthree")) == 3 and len(sentences("no end")) == 1
    assert [
        text.strip()
        for text in ("猫が寝る。犬が走る。"[a:b] for a, b in sentences("猫が寝る。犬が走る。"))
    ] == [
        "猫が寝る。",
        "犬が走る。",
    ]


@pytest.mark.parametrize("name", [*LAYER_METHODS, "value_zeroing", "attention_flow", "decompx"])
@pytest.mark.parametrize("unit", ["sentences", "paragraphs"])
def test_a_map_of_segments_is_the_map_of_tokens_joined(name: str, unit: str, box) -> None:
    model, _ = box
    whole = cm.explain(model, DOCUMENT, name)
    made = cm.explain(model, DOCUMENT, name, segments=unit)
    assert made.tokens[0].pieces[0] == "[CLS]" and made.size == (8 if unit == "sentences" else 4)
    groups = segment_groups(whole.tokens[0], unit)
    for kind in ("layers", "input"):
        values, found = getattr(whole, kind), getattr(made, kind)
        if values is None:
            assert found is None
            continue
        by_hand = torch.stack(
            [
                torch.stack(
                    [values[0][:, rows][:, :, columns].sum(-1).mean(-1) for columns in groups],
                    dim=-1,
                )
                for rows in groups
            ],
            dim=-2,
        )
        assert torch.allclose(
            found[0], by_hand, rtol=1e-5, atol=1e-6 * float(by_hand.abs().max())
        ), kind
    assert made.meta["unit"] == unit[:-1]
    row = whole.attribution("mean_pool").segments(unit)
    assert torch.allclose(made.attribution("mean_pool").scores, row.scores, rtol=1e-4)


def test_segments_of_long_texts_make_no_square_of_tokens() -> None:
    model, tokens = modern(layers=4, window=32), 600
    ids = torch.randint(5, 90, (1, tokens))
    parts = [range(200), range(200, 450), range(450, tokens)]
    whole = model(input_ids=ids, output_context_mixing=["alti"]).context_mixing["alti"]
    with Largest() as seen:
        out = model(input_ids=ids, output_context_mixing=["alti"], segments=parts)
    made = out.context_mixing["alti"]
    want = whole.segments(parts)
    assert made.size == 3 and made.tokens == want.tokens
    assert torch.allclose(made.input, want.input, atol=1e-9)
    assert torch.allclose(made.layers, want.layers, atol=1e-9)
    assert seen.elements < tokens * tokens * 4, (
        "something as large as all heads' attention was made"
    )


def test_segments_in_a_padded_batch(box) -> None:
    model, tokenizer = box
    texts = [DOCUMENT, "The cats sleep. The dog runs."]
    both = cm.explain(model, texts, "alti", segments="sentences")
    assert both.mask.sum(dim=1).tolist() == [8, 4]
    for b, text in enumerate(texts):
        alone = cm.explain(model, text, "alti", segments="sentences")
        assert both[b].tokens == alone.tokens
        assert torch.allclose(both[b].input, alone.input, atol=1e-6)
        assert torch.allclose(both[b].layers, alone.layers, atol=1e-6)


def test_listed_segments_need_not_be_whole(box) -> None:
    model, _ = box
    made = cm.explain(model, DOCUMENT, "alti").segments([[3, 1], [5]])
    assert [len(part) for part in made.tokens[0].parts][:5] == [
        1,
        2,
        1,
        1,
        1,
    ]  # [CLS], 1+3, 2, 4, 5
    assert torch.allclose(made.input.sum(-1), torch.ones(1, made.depth, made.size), atol=1e-5)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("words", "'sentences' or 'paragraphs'"),
        ([], "not a list of segments"),
        ([1, 2], "not a list of segments"),
        ([[1], []], "Segment 2 of the list is empty"),
        ([[1], [99999]], "names token 99999: the text has"),
        ([[1, 2], [2]], "Token 2 is in segments 1 and 2"),
    ],
)
def test_wrong_segments_are_said(by: Any, said: str, box) -> None:
    model, tokenizer = box
    with pytest.raises((InputError, OptionError), match=re.escape(said)):
        cm.explain(model, DOCUMENT, "alti", segments=by)
    with pytest.raises((InputError, OptionError), match=re.escape(said)):
        cm.explain(model, DOCUMENT, "alti").segments(by)
    listed = [range(1, 20), range(20, 30)]
    assert cm.explain(model, DOCUMENT, "alti", segments=listed).size > 3  # the advice


def test_segments_and_rows_exclude_each_other_and_need_a_text(box) -> None:
    model, tokenizer = box
    with pytest.raises(
        OptionError, match=r"take the row of a segment from the map, m\.attribution"
    ):
        cm.explain(model, DOCUMENT, "alti", segments="sentences", target=3)
    assert cm.explain(model, DOCUMENT, "alti", segments="sentences").attribution(
        2
    ).scores.shape == (1, 8)
    ids = tokenizer(DOCUMENT, return_tensors="pt")["input_ids"]
    with pytest.raises(OptionError, match="give one of the two"):
        model(input_ids=ids, output_context_mixing=["alti"], targets=[3], segments=[[1, 2]])
    with pytest.raises(InputError, match=r"list the positions of each segment"):
        cm.explain(model, {"input_ids": ids}, "alti", segments="sentences")
    made = cm.explain(model, {"input_ids": ids}, "alti", segments=[range(1, 20), range(20, 30)])
    assert made.tokens[0].pieces[1].endswith("…")  # the advice


def test_a_map_of_segments_is_drawn_saved_and_asked_for_everywhere(box, tmp_path, capsys) -> None:
    model, tokenizer = box
    made = cm.explain(model, DOCUMENT, "alti", segments="sentences")
    assert "The keys" in str(made) and "Is it so?" in made.to_html()
    assert cm.ContextMixingMap.load(made.save(tmp_path / "m.json")) == made
    assert made.words().tokens == made.tokens
    pipe = transformers.pipeline("context-mixing", model=model, tokenizer=tokenizer, method="alti")
    assert torch.allclose(pipe(DOCUMENT, segments="sentences").input, made.input)
    (tmp_path / "text.txt").write_text(DOCUMENT)
    words = ["explain", "--file", str(tmp_path / "text.txt"), "--segments", "sentences", "--json"]
    assert main(words) == 0
    shown = json.loads(capsys.readouterr().out)
    assert torch.allclose(torch.tensor(shown["input"]), made.input, atol=1e-6)
    assert (
        main(["explain", "The cats sleep.", "--method", "blank_out", "--segments", "sentences"])
        == 2
    )
    assert "leave --segments out" in capsys.readouterr().err
    assert main(["explain", "The cats [MASK].", "--method", "blank_out"]) == 0  # the advice
    with pytest.raises(OptionError, match="leave target and words out"):
        pipe(DOCUMENT, segments="sentences", words=True)


# ---- rows that say nothing


def test_a_row_that_is_everybodys_warns() -> None:
    """Weights of zero attend to everything alike: after two layers every row is the same."""
    model = modern(layers=4, window=2000)
    ids = torch.randint(5, 90, (1, 600))
    ask = lambda target, name="attention": model(
        input_ids=ids, output_context_mixing=[name], targets=[target]
    ).context_mixing[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(5, "attention_rollout")  # half of each layer stays: the row is still its token's
    for layer in model.layers:
        layer.attn.Wqkv.weight.data[:64] = 0  # queries and keys
    with pytest.warns(AlikeRowsWarning, match=r"attention, .*row of 5 is that of the whole text"):
        row = ask(5)
    assert float(row.attribution().effective_sources()) == pytest.approx(600, rel=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask("mean_pool")  # is the whole text
        model(input_ids=ids[:, :300], output_context_mixing=["attention"], targets=[5])
        layers = cm.explain(model, {"input_ids": ids[:, :300]}, "attention", target=5, layers=True)
    assert len(layers) == 4  # the advice


def test_effective_sources_by_hand() -> None:
    mask, tokens = torch.ones(3, 4, dtype=torch.bool), [numbered(4)] * 3
    scores = torch.tensor([[1.0, 0, 0, 0], [0.5, -0.5, 0, 0], [2.0, 2, 2, 2]])
    made = cm.Attribution(scores, tokens, mask, "alti", "x").effective_sources()
    assert torch.allclose(made, torch.tensor([1.0, 2, 4], dtype=torch.float64))


# ---- the largest sources of every row


@pytest.mark.parametrize("name", [*LAYER_METHODS, "value_zeroing", "attention_flow", "decompx"])
def test_top_k_is_the_whole_maps(name: str, box) -> None:
    model, _ = box
    whole = cm.explain(model, DOCUMENT, name)
    made = cm.explain(model, DOCUMENT, name, top_k=5)
    assert (made.depth, made.size, made.top_k) == (whole.depth, whole.size, 5)
    for kept, values in ((made.input, whole.input), (made.layers, whole.layers)):
        if values is None:
            assert kept is None
            continue
        scale = float(values.abs().max())
        assert torch.allclose(
            kept.values + 0, values.gather(-1, kept.sources), rtol=1e-4, atol=1e-6 * scale
        )
        largest = values.abs().sort(dim=-1, descending=True).values[..., :5]
        assert torch.allclose(kept.values.abs(), largest, rtol=1e-4, atol=1e-6 * scale)
        total = kept.values.sum(-1) + kept.rest
        assert torch.allclose(total, values.sum(-1), rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["attention_rollout", "globenc", "alti"])
def test_a_local_layer_is_kept_whole_in_the_width_of_its_window(name: str) -> None:
    """A band `[T, w]`: nothing is left over."""
    window, model, given = 8, modern(window=8), batch()
    whole = cm.explain(model, given, name)
    kept = cm.explain(model, given, name, top_k=window + 1).layers
    local = [layer for layer in range(model.config.num_hidden_layers) if layer % 3]
    band = torch.arange(180)[:, None] - torch.arange(180)
    assert not whole.layers[:, local][..., band.abs() > window // 2].any(), "a window on both sides"
    assert torch.allclose(kept.dense()[:, local], whole.layers[:, local], rtol=0, atol=1e-12)
    assert float(kept.rest[:, local].abs().max()) < 1e-12
    assert float(kept.rest[:, 0].abs().max()) > 1e-3, "a global layer has more than fits"


def test_a_sparse_maps_rows(box) -> None:
    model, _ = box
    whole, made = (cm.explain(model, DOCUMENT, "alti", **k) for k in ({}, {"top_k": 4}))
    row, sparse = whole.attribution(3), made.attribution(3)
    kept = row.scores[0].topk(4).indices
    assert torch.allclose(sparse.scores[0, kept], row.scores[0, kept], rtol=1e-4)
    assert int((sparse.scores != 0).sum()) == 4
    assert float(sparse.scores.sum()) + sparse.meta["rest"][0] == pytest.approx(1, abs=1e-5)
    assert [name for name, _ in made.top(3)] == [n for n, _ in row.top(4)] + ["(rest)"]
    assert sum(value for _, value in made.top(3, layer=1)) == pytest.approx(1, abs=1e-5)
    several = made.attribution("keys")  # two pieces: the mean of their rows
    by_hand = made.to_map().input[0, -1, made.outline.position("keys")].mean(dim=0)
    assert torch.allclose(several.scores[0], by_hand)
    assert float(several.scores.sum()) + several.meta["rest"][0] == pytest.approx(1, abs=1e-5)
    assert torch.allclose(made.to_map().input.sum(-1) + made.input.rest, torch.ones(1), atol=1e-5)
    assert "top 4" in repr(made)
    everything = cm.explain(model, "The cats sleep.", "alti", top_k=99)
    assert everything.top_k == everything.size and float(everything.input.rest.abs().max()) < 1e-6


def test_top_k_of_a_padded_batch(box) -> None:
    model, _ = box
    texts = [DOCUMENT, "The cats sleep."]
    both = cm.explain(model, texts, "globenc", top_k=3)
    alone = cm.explain(model, texts[1], "globenc", top_k=3)
    assert torch.allclose(both.input.values[1, :, : alone.size], alone.input.values[0], rtol=1e-3)
    assert not both.input.values[1, :, alone.size :].any()


def test_top_k_holds_one_map_at_a_time() -> None:
    """Of every layer one map and one product: nothing of the size of all layers' maps is ever made."""
    model, tokens, depth = modern(torch.float32, layers=6, window=64), 700, 6
    ids = torch.randint(5, 90, (1, tokens))
    ask = lambda: model(input_ids=ids, output_context_mixing=["globenc"], top_k=3)
    ask()  # the first call proves the layers
    with Largest() as seen, torch.no_grad():
        made = ask().context_mixing["globenc"]
    assert made.input.values.shape == (1, depth, tokens, 3)
    assert seen.elements < (depth - 1) * tokens * tokens
    with Largest() as seen, torch.no_grad():
        whole = model(input_ids=ids, output_context_mixing=["globenc"]).context_mixing["globenc"]
        assert whole.input.shape[1] == depth
    assert seen.elements >= depth * tokens * tokens  # the guard sees what it is there for


def test_unnormalised_products_stay_in_range(monkeypatch, box) -> None:
    model, _ = box
    want = cm.explain(model, DOCUMENT, "globenc", top_k=3)
    monkeypatch.setattr(sparse_maps, "LARGE", 2.0)
    made = cm.explain(model, DOCUMENT, "globenc", top_k=3)
    assert torch.allclose(made.input.values, want.input.values, rtol=1e-4)
    assert torch.allclose(made.input.rest, want.input.rest, rtol=1e-3)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "all"])
def test_wrong_top_k_is_said(wrong: Any, box) -> None:
    model, tokenizer = box
    with pytest.raises(OptionError, match="top_k must be a whole number of at least 1"):
        cm.explain(model, DOCUMENT, "alti", top_k=wrong)
    with pytest.raises(OptionError, match="top_k must be a whole number of at least 1"):
        model(
            **tokenizer("The cats.", return_tensors="pt"),
            output_context_mixing=["alti"],
            top_k=wrong,
        )


def test_top_k_and_other_answers_exclude_each_other(box) -> None:
    model, tokenizer = box
    with pytest.raises(OptionError, match=r"take a row from the result, m\.attribution\(3\)"):
        cm.explain(model, DOCUMENT, "alti", top_k=3, target=3)
    assert cm.explain(model, DOCUMENT, "alti", top_k=3).attribution(3).shape[0] == 1  # the advice
    inputs = tokenizer("The cats.", return_tensors="pt")
    with pytest.raises(OptionError, match=r"targets=\.\.\. and top_k=\.\.\. are different answers"):
        model(**inputs, output_context_mixing=["alti"], targets=[1], top_k=3)


@pytest.mark.parametrize("images", [2, 3])
def test_top_k_needs_one_stack_of_layers(images: int) -> None:
    model, tokens = two_towers("clip")
    ids = torch.randint(5, 50, (2, tokens))
    inputs = {"input_ids": ids, "pixel_values": torch.randn(images, 3, 16, 16).double()}
    cm.instrument(model)
    with pytest.raises(OptionError, match=r"several towers.*Ask for target=\.\.\. instead"):
        model(**inputs, output_context_mixing=["alti"], top_k=2)
    made = model(**inputs, output_context_mixing=["alti"], targets=[0])  # the advice
    assert set(made.context_mixing["alti"]) == {"text_model", "vision_model"}


def test_rows_that_are_not_cheap_are_refused_with_an_estimate(monkeypatch: Any) -> None:
    """A rolled-out row of value_zeroing needs every layer's whole map: said before hours of work begin."""
    model = modern(torch.float32, layers=2)
    ids = torch.randint(5, 90, (1, 40))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    config = model.config
    work = config.num_hidden_layers * 40 * 40 * config.hidden_size * config.intermediate_size
    one_row = cm.method("value_zeroing", targets=(3,))
    monkeypatch.setattr(modeling, "WORK", work)
    row = cm.explain(model, inputs, "value_zeroing+rollout", target=3)  # just within
    monkeypatch.setattr(modeling, "WORK", work - 1)
    said = r"value_zeroing\+rollout at 40 tokens: it has no cheap rows.*minutes on one core.*targets=\(5,\)"
    with pytest.raises(OptionError, match=said):
        cm.explain(model, inputs, "value_zeroing+rollout", target=3)
    with pytest.raises(OptionError, match=r"no cheap rows.*attention_rollout"):
        model(**inputs, output_context_mixing=["alti", "value_zeroing"], targets=["mean_pool"])
    # the advice, all three
    assert cm.explain(model, inputs, one_row).layers[0, :, 3].sum() > 0
    assert cm.explain(model, inputs, "attention_rollout", target=3).scores.shape[-1] == 40
    whole = cm.explain(model, inputs, "value_zeroing+rollout").attribution(3)
    assert torch.allclose(whole.scores, row.scores, atol=1e-6)
