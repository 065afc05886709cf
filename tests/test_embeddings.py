"""`similarity`, `rank` and `ledger` on sentence-transformers' own models: what is explained is the
library's own number.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ctxmix_hf as cm
from ctxmix_hf.embedders import TextCutWarning
from ctxmix_hf.errors import (
    CtxmixError,
    InputError,
    InputTypeError,
    OptionError,
    UnsupportedMethodError,
)
from ctxmix_hf.instrumentation.session import instrumentation_of
from tests import small
from tests.instrumentation.test_towers import two_towers

st = pytest.importorskip("sentence_transformers", reason="the extra 'embeddings' is not installed")
from sentence_transformers.base.modules import Dense, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling  # noqa: E402

A, B = "the keys to the cabinet are old .", "the bleaching keys is old"
MODES = ["mean", "cls", "lasttoken", "max", "weightedmean", "mean_sqrt_len_tokens"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A tiny BERT with its tokenizer, biases and all."""
    where = tmp_path_factory.mktemp("encoder")
    tokenizer = small.wordpiece()
    model = small.build("BertModel", tokenizer, **small.BERT)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.3, 0.3)
    return Path(small.saved(where, model, tokenizer))


def encoder(
    folder: Path, *further: Any, mode: Any = "mean", dtype: Any = None, **options: Any
) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = Transformer(str(folder))
        pooling = Pooling(32, pooling_mode=mode)
        made = st.SentenceTransformer(modules=[words, pooling, *further], device="cpu", **options)
    return made if dtype is None else made.to(dtype)


def own(model: Any, **options: Any) -> float:
    e = model.encode([A, B], convert_to_tensor=True, **options)
    return float(model.similarity(e[:1], e[1:]))


@pytest.mark.parametrize("mode", MODES)
def test_every_pooling_is_the_models_own(folder: Path, mode: str) -> None:
    model = encoder(folder, mode=mode)
    s = cm.similarity(model, A, B)
    assert s.cosine == pytest.approx(own(model), abs=1e-6) and s.total == pytest.approx(
        s.cosine, abs=1e-5
    )
    assert s.gap is not None and s.gap < 1e-5
    assert torch.allclose(s.pairs.sum(1) + s.lines["bias column"], s.a.scores[0], atol=1e-5)
    assert torch.allclose(s.pairs.sum(0) + s.lines["bias row"], s.b.scores[0], atol=1e-5)
    assert instrumentation_of(model) is None, "the model must be left as it was"


@pytest.mark.parametrize("score", ["cosine", "dot", "euclidean"])
def test_dense_normalised_truncated_scored(folder: Path, score: str) -> None:
    torch.manual_seed(0)
    dense = Dense(32, 24, activation_function=torch.nn.Tanh())
    for further in ([dense], [dense, Normalize()], []):
        for options in ({}, {"truncate_dim": 8}):
            model = encoder(folder, *further, similarity_fn_name=score, **options)
            s = cm.similarity(model, A, B)
            assert s.cosine == pytest.approx(own(model), abs=2e-5 if score == "dot" else 1e-5), (
                further,
                options,
            )
            assert s.total == pytest.approx(s.cosine, rel=1e-4, abs=1e-4) and s.score == score
    wide = encoder(folder)
    assert cm.similarity(wide, A, B, truncate_dim=8).cosine == pytest.approx(
        own(wide, truncate_dim=8), abs=1e-6
    )
    unit = cm.similarity(encoder(folder, similarity_fn_name="dot"), A, B, normalize=True)
    assert unit.cosine == pytest.approx(own(wide), abs=1e-6)


def test_prompts_of_query_and_document(folder: Path) -> None:
    prompts = {"query": "the keys ", "document": "old "}
    model = encoder(folder, prompts=prompts)
    q = model.encode_query(A, convert_to_tensor=True)
    d = model.encode_document(B, convert_to_tensor=True)
    wanted = float(model.similarity(q, d))
    s = cm.similarity(model, A, B, prompt_name=("query", "document"))
    assert s.cosine == pytest.approx(wanted, abs=1e-6)
    assert s.a.scores.shape[1] > cm.similarity(model, A, B).a.scores.shape[1], (
        "the prompt's words are words of the account"
    )
    assert cm.similarity(model, A, B, prompt="old ").cosine == pytest.approx(
        own(model, prompt="old "), abs=1e-6
    )
    model.set_pooling_include_prompt(False)
    q = model.encode_query(A, convert_to_tensor=True)
    d = model.encode_document(B, convert_to_tensor=True)
    again = cm.similarity(model, A, B, prompt_name=("query", "document"))
    assert again.cosine == pytest.approx(
        float(model.similarity(q, d)), abs=1e-6
    ) and again.cosine != pytest.approx(wanted, abs=2e-6)
    r = cm.rank(model, A, [B, "is"])
    assert float(r.scores[0]) == pytest.approx(again.cosine, abs=1e-6) and r[
        0
    ].cosine == pytest.approx(again.cosine, abs=1e-6)
    with pytest.raises(OptionError, match="query"):
        cm.similarity(model, A, B, prompt_name="nothing")


def test_pairs_by_hand(folder: Path) -> None:
    """Each side's vectors by carrying one token's part through the layers is proved for the ledger;
    here: each pair of rows by a ledger of its own, with the other side's part as the direction."""
    model = encoder(folder, dtype=torch.float64)
    s = cm.similarity(model, A, B)
    p, q = (model.encode(text, convert_to_tensor=True) for text in (A, B))
    scale = 1 / (p.norm() * q.norm())
    parts_b = torch.stack(
        [
            cm.ledger(model, B, direction=unit).scores[0]
            for unit in torch.eye(32, dtype=torch.float64)
        ],
        dim=1,
    )
    rows = torch.stack([cm.ledger(model, A, direction=part).scores[0] for part in parts_b], dim=1)
    assert torch.allclose(s.pairs, rows * scale, atol=1e-12)
    assert s.gap is not None and s.gap < 1e-13


def test_top_k_rows_are_exact(folder: Path) -> None:
    model = encoder(folder)
    whole, some = cm.similarity(model, A, B), cm.similarity(model, A, B, top_k=2)
    kept = some.pairs.abs().sum(1).nonzero().squeeze(-1).tolist()
    strongest = whole.a.scores[0].abs().argsort(descending=True)[:2].sort().values.tolist()
    assert kept == strongest and torch.allclose(some.pairs[kept], whole.pairs[kept], atol=1e-6)
    assert some.total == pytest.approx(whole.cosine, abs=1e-5)
    with pytest.raises(OptionError, match="top_k"):
        cm.similarity(model, A, B, top_k=0)


def test_words_and_files(folder: Path, tmp_path: Path) -> None:
    s = cm.similarity(encoder(folder), A, B)
    words = s.words()
    assert "bleaching" in words.b.tokens[0].shown() and words.total == pytest.approx(
        s.total, abs=1e-6
    )
    assert len(words.top(3)) == 3 and "alone gives" in s.finding()
    special = [torch.tensor(side.tokens[0].special) for side in (s.a, s.b)]
    inside = float(s.pairs[~special[0]][:, ~special[1]].sum())  # what lies between words
    rest, biases = map(
        float, re.findall(r"special tokens give (\S+), biases (\S+)$", s.finding())[0]
    )
    assert inside + rest + biases == pytest.approx(s.cosine, abs=0.02)
    for suffix in ("json", "npz", "safetensors"):
        again = cm.Similarity.load(s.save(tmp_path / f"s.{suffix}"))
        assert (
            torch.equal(again.pairs, s.pairs)
            and again.cosine == s.cosine
            and set(again.lines) == set(s.lines)
        ), suffix
        assert again.a == s.a and again.b == s.b
    rows = s.to_csv().splitlines()
    assert sum(float(row.rsplit(",", 1)[1]) for row in rows[1:]) == pytest.approx(
        s.cosine, abs=1e-5
    )
    assert s.save(tmp_path / "s.png").stat().st_size > 4000 and "links between words" in s.to_html()
    assert "biases" in str(s)


def test_instrument_leaves_encode_as_it_is(folder: Path) -> None:
    model = encoder(folder)
    before = model.encode([A, B], convert_to_tensor=True)
    assert cm.instrument(model) is model and instrumentation_of(model) is not None
    assert torch.equal(model.encode([A, B], convert_to_tensor=True), before)
    cm.similarity(model, A, B)
    assert instrumentation_of(model) is not None and torch.equal(
        model.encode([A, B], convert_to_tensor=True), before
    )
    cm.uninstrument(model)
    assert instrumentation_of(model) is None and torch.equal(
        model.encode([A, B], convert_to_tensor=True), before
    )


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", "max", "weightedmean"])
def test_explain_honours_the_pooling(folder: Path, mode: str) -> None:
    model = encoder(folder, mode=mode)
    m = cm.explain(model, A, "alti")
    tokens = model.encode([A], output_value="token_embeddings")[0]
    count = len(tokens)
    weights: Tensor = {
        "mean": torch.full((count,), 1 / count),
        "cls": torch.eye(count)[0],
        "lasttoken": torch.eye(count)[-1],
        "max": torch.bincount(tokens.argmax(0), minlength=count) / tokens.shape[1],
        "weightedmean": torch.arange(1, count + 1) / torch.arange(1, count + 1).sum(),
    }[mode].to(m.input)
    assert torch.allclose(m.attribution("embedding").scores[0], weights @ m.input[0, -1], atol=1e-6)
    assert torch.allclose(
        m.words().attribution("embedding").scores,
        m.attribution("embedding").words().scores,
        atol=1e-6,
    )
    assert instrumentation_of(model) is None


def test_a_reranker_is_a_ledger(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = st.CrossEncoder(str(folder), num_labels=1, device="cpu")
    logit = float(model.predict([(A, B)], activation_fn=torch.nn.Identity())[0])
    l = cm.ledger(model, (A, B))
    assert float(l.value) == pytest.approx(logit, abs=1e-5) and float(l.gap) < 1e-5
    assert (
        l.scores.shape[1] == len(model.tokenizer(A, B)["input_ids"])
        and instrumentation_of(model) is None
    )
    r = cm.rank(model, A, [B, "is", "the keys"])
    assert r.order == sorted(
        range(3), key=lambda i: -float(model.predict([(A, r.documents[i])])[0])
    )
    best, worst = r.order[0], r.order[-1]
    compared = r.compare(best, worst)
    assert float(compared.scores.sum()) + compared.meta["rest"] == pytest.approx(
        float(r.scores[best] - r.scores[worst]), abs=2e-5
    )
    with pytest.raises(InputTypeError, match=r"cm\.ledger"):
        cm.similarity(model, A, B)


def test_ranking(folder: Path, tmp_path: Path) -> None:
    model = encoder(folder)
    documents = [B, A, "is"]
    r = cm.rank(model, A, documents)
    assert r.order[0] == 1 and float(r.scores[1]) == pytest.approx(1.0, abs=1e-5)
    assert r[0].cosine == pytest.approx(float(r.scores[0]), abs=1e-6)
    gap = r.compare(1, 0)
    assert float(gap.scores.sum()) + gap.meta["rest"] == pytest.approx(
        float(r.scores[1] - r.scores[0]), abs=1e-5
    )
    assert "1." in str(r) and A in r.to_html() and r.to_dict()["order"] == r.order
    html, words = r.to_html(), r[r.order[0]].words()
    named = [not flag for flag in words.a.tokens[0].special or ()]
    chosen = re.findall(r"<b class='cmx-q\d+' tabindex='0'", html)
    assert len(chosen) == sum(named), "every word of the query shows its matches"
    assert all((f".cmx-q{k}:hover" in html) == shown for k, shown in enumerate(named))
    assert ":100%" in html, "the strongest match there is has the full colour"
    assert (tmp_path / "r.csv").samefile(r.save(tmp_path / "r.csv"))
    axes = r.plot(top=2).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [float(r.scores[i]) for i in r.order[:2]]
    assert r.save(tmp_path / "r.png").stat().st_size > 1000
    assert (tmp_path / "r.csv").read_text().splitlines()[1].startswith(f"1,{r.order[0]},")
    for bad in ([], ["", "x"], "text"):
        with pytest.raises(CtxmixError):
            cm.rank(model, A, bad)
    plain = cm.rank(
        cm.instrument(small.build("BertModel", small.wordpiece(), **small.BERT), small.wordpiece()),
        A,
        documents,
        pooling="mean",
    )
    assert plain.order[0] == 1 and plain[0].cosine == pytest.approx(
        float(plain.scores[0]), abs=1e-6
    )


def test_late_interaction(folder: Path) -> None:
    """Each MaxSim term is a dot product of two vectors, traced to the words that went in (random
    weights: none can be had offline).
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = st.MultiVectorEncoder(str(folder), device="cpu")
    wanted = float(model.similarity(model.encode_query([A]), model.encode_document([B])))
    s = cm.similarity(model, A, B)
    assert (
        s.cosine == pytest.approx(wanted, rel=1e-5)
        and s.total == pytest.approx(wanted, rel=1e-4)
        and s.score == "maxsim"
    )
    assert cm.rank(model, A, [B, "is"])[0].cosine == pytest.approx(wanted, rel=1e-5)


def test_sparse_terms(tmp_path: Path) -> None:
    """Which words of the text made a term of its sparse vector? (random weights)."""
    tokenizer = small.wordpiece()
    small.saved(tmp_path, small.build("BertForMaskedLM", tokenizer, **small.BERT), tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = st.SparseEncoder(str(tmp_path), device="cpu")
    vectors = model.encode([A, B], convert_to_tensor=True)
    vectors = vectors.to_dense() if vectors.is_sparse else vectors
    s = cm.similarity(model, A, B)
    assert s.cosine == pytest.approx(
        float(vectors[0] @ vectors[1]), rel=1e-5
    ) and s.total == pytest.approx(s.cosine, rel=1e-4)
    term = int(vectors[0].argmax())
    l = cm.ledger(model, A, term)
    assert (
        float(l.value) == pytest.approx(float(vectors[0, term]), rel=1e-5) and float(l.gap) < 1e-5
    )


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_words_and_patches(kind: str) -> None:
    """A text and an image: words x patches sum to the towers' own cosine (random weights: none can be had offline)."""
    model, _ = two_towers(kind)
    tokenizer = small.wordpiece(segments=False)
    pixels = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    s = cm.similarity(model, A, pixels, tokenizer=tokenizer)
    with torch.no_grad():
        out = model(**tokenizer([A], return_tensors="pt"), pixel_values=pixels)
    assert s.cosine == pytest.approx(
        float(torch.cosine_similarity(out.text_embeds, out.image_embeds)), abs=1e-12
    )
    assert s.total == pytest.approx(s.cosine, abs=1e-10) and s.pairs.shape == (
        10,
        17 if kind == "clip" else 16,
    )
    assert instrumentation_of(model) is None
    with pytest.raises(InputTypeError, match="image"):
        cm.similarity(model, A, B, tokenizer=tokenizer)


def test_bad_input_is_one_sentence(folder: Path) -> None:
    model = encoder(folder)
    cases = [
        (InputError, "empty", lambda: cm.similarity(model, "  ", B)),
        (InputTypeError, "no tower for images", lambda: cm.similarity(model, A, 3)),
        (OptionError, "own pooling", lambda: cm.similarity(model, A, B, pooling="cls")),
        (OptionError, "method", lambda: cm.similarity(model, A, B, "alti")),
        (
            UnsupportedMethodError,
            "Manhattan",
            lambda: cm.similarity(encoder(folder, similarity_fn_name="manhattan"), A, B),
        ),
        (InputError, "vector", lambda: cm.ledger(model, A)),
        (
            UnsupportedMethodError,
            "same vector",
            lambda: cm.similarity(encoder(folder, similarity_fn_name="euclidean"), A, A),
        ),
    ]
    for kind, said, run in cases:
        with pytest.raises(kind, match=said):
            run()
    model.max_seq_length = 5
    with pytest.warns(TextCutWarning, match="reads 5"):
        cut = cm.similarity(model, A, B)
    assert cut.cosine == pytest.approx(own(model), abs=1e-6)


def test_texts_without_a_word_are_refused(folder: Path) -> None:
    """What a tokenizer leaves nothing of is no text; what it does not know is one."""
    plain = small.build("BertModel", small.wordpiece(), **small.BERT)
    how = {"pooling": "mean", "tokenizer": small.wordpiece()}
    for model, options in ((encoder(folder), {}), (plain, how)):
        for text in ("\u200b", "\x00\x01"):
            with pytest.raises(InputError, match="Nothing is left"):
                cm.similarity(model, A, text, **options)
            with pytest.raises(InputError, match="Nothing is left"):
                cm.rank(model, A, [B, text], **options)
        with pytest.warns(UserWarning, match="unknown"):
            emoji = cm.similarity(model, "😀😀", B, **options)
        assert emoji.total == pytest.approx(emoji.cosine, abs=1e-5) and "😀" in str(emoji)
        one = cm.similarity(model, "keys", "keys", **options)
        assert one.words().top(1) and one.finding().startswith("keys-keys")
        assert instrumentation_of(model) is None


def test_options_that_make_no_sense(folder: Path) -> None:
    model = encoder(folder)
    plain = small.build("BertModel", small.wordpiece(), **small.BERT)
    for name in ("top_k", "truncate_dim"):
        for value in (0, -1, 1.5, "x", True):
            with pytest.raises(OptionError, match=f"{name} must be a whole number"):
                cm.similarity(model, A, B, **{name: value})
    with pytest.raises(OptionError, match="top_k"):
        cm.rank(model, A, [B], top_k=0)
    with pytest.raises(OptionError, match="are texts"):
        cm.similarity(model, A, B, prompt=3)
    with pytest.raises(InputTypeError, match="got int"):
        cm.similarity(plain, A, B, pooling="mean", tokenizer=3)
    for wrong in ((model, model), "MiniLM", None, torch.nn.Linear(2, 2)):
        with pytest.raises(CtxmixError, match="Expected a Hugging Face"):
            cm.similarity(wrong, A, B)


def test_documents_as_people_hold_them(folder: Path) -> None:
    np = pytest.importorskip("numpy")
    model = encoder(folder)
    wanted = cm.rank(model, A, [B, A]).order
    for given in ((B, A), np.array([B, A]), iter([B, A]), [np.str_(B), np.str_(A)]):
        assert cm.rank(model, np.str_(A), given).order == wanted
    cases = [
        ([], InputError, "nothing to rank"),
        (None, InputTypeError, "NoneType"),
        ({"a": B}, InputTypeError, "dict"),
        ([B, 3], InputTypeError, "number 1 is of type int"),
        ([B, " "], InputError, "Document 1 is empty"),
    ]
    for given, kind, said in cases:
        with pytest.raises(kind, match=said):
            cm.rank(model, A, given)
    r = cm.rank(model, A, [B])
    assert r.order == [0] and r[np.int64(0)] is r[-1] and len(list(r)) == 1
    for place in ("a", 1.0, slice(0, 1)):
        with pytest.raises(InputTypeError, match="by its number"):
            r[place]
    with pytest.raises(IndexError, match="1 documents"):
        r.compare(0, 1)


def test_a_cut_document_is_said_when_it_is_ranked(folder: Path) -> None:
    model = encoder(folder)
    model.max_seq_length = 6
    with pytest.warns(TextCutWarning, match="reads 6") as said:
        r = cm.rank(model, "keys", ["old", A])
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert r[1].cosine == pytest.approx(float(r.scores[1]), abs=1e-6)


def test_numbers_that_are_none(folder: Path) -> None:
    """NaN weights and vectors of length zero have no order and no cosine."""
    broken, empty = encoder(folder), encoder(folder)
    with torch.no_grad():
        broken[0].auto_model.embeddings.word_embeddings.weight.fill_(float("nan"))
        for parameter in empty.parameters():
            parameter.zero_()
    with pytest.raises(InputError, match="not finite"):
        cm.rank(broken, A, [B])
    with pytest.raises(CtxmixError, match=r"finite|NaN"):
        cm.similarity(broken, A, B)
    with pytest.raises(InputError, match="no direction"):
        cm.similarity(empty, A, B)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_says_how_far_it_is_off(folder: Path, dtype: torch.dtype) -> None:
    model, exact = encoder(folder, dtype=dtype), cm.similarity(encoder(folder), A, B)
    s = cm.similarity(model, A, B)
    assert s.cosine == pytest.approx(exact.cosine, abs=0.02) and s.gap is not None and s.gap < 0.03
    assert torch.allclose(s.pairs.float(), exact.pairs, atol=0.03)
    assert cm.rank(model, A, [B, A]).order[0] == 1


def test_nothing_stays_after_an_exception(folder: Path) -> None:
    model = encoder(folder)
    before, layer = cm.similarity(model, A, B), model[0].auto_model.encoder.layer[1]
    whole = model.encode([A], convert_to_tensor=True)

    def fails(*args: Any, **options: Any) -> Any:
        raise RuntimeError("in the middle")

    layer.forward = fails
    for run in (lambda: cm.similarity(model, A, B), lambda: cm.rank(model, A, [B])):
        with pytest.raises(RuntimeError, match="in the middle"):
            run()
        assert instrumentation_of(model) is None
    del layer.forward
    assert torch.equal(model.encode([A], convert_to_tensor=True), whole)
    assert torch.equal(cm.similarity(model, A, B).pairs, before.pairs)
    cm.instrument(cm.instrument(model))
    assert torch.equal(cm.similarity(model, A, B).pairs, before.pairs)
    cm.uninstrument(model)
    assert instrumentation_of(model) is None


def test_pairs_are_those_of_the_call(folder: Path) -> None:
    """Made late, but of the weights the similarity was computed with."""
    model = encoder(folder)
    early, late = cm.similarity(model, A, B), cm.similarity(model, A, B)
    wanted = early.pairs.clone()
    with torch.no_grad():
        model[0].auto_model.embeddings.word_embeddings.weight.mul_(2)
    assert torch.allclose(late.pairs, wanted, atol=1e-6)


def test_a_map_needs_no_instrumentation_by_hand() -> None:
    tokenizer = small.wordpiece()
    model = small.build("BertModel", tokenizer, **small.BERT)
    s = cm.similarity(model, A, B, "alti", pooling="mean", tokenizer=tokenizer)
    assert s.score == "shares" and instrumentation_of(model) is None


def test_the_real_minilm(minilm: Any) -> None:
    """The example of the papers' kind: a doctor's medicine and a physician's drug."""
    model = st.SentenceTransformer(str(minilm[0]), device="cpu")
    a, b = (
        "The doctor recommended a new medicine for the patient.",
        "A physician prescribed a drug.",
    )
    e = model.encode([a, b], convert_to_tensor=True)
    s = cm.similarity(model, a, b)
    assert s.cosine == pytest.approx(float(model.similarity(e[:1], e[1:])), abs=1e-6)
    assert s.words().top(1)[0][:2] == ("medicine", "drug")
