"""Other people's objects, with the real packages: what goes out is what they draw, what comes in is understood.

The packages are the extra `interop` (and bertviz, inseq); what is not installed is skipped by name. CI has them all, in
a venv of their own (scripts/test_interop.sh), where nothing may be skipped.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np
import pytest

import ctxmix_hf as cm
from ctxmix_hf.errors import (
    InputError,
    InputTypeError,
    MissingDependencyError,
    UnknownNameError,
    UnsupportedModelError,
)

TEXT = "The keys to the cabinet [MASK] on the table."
pytestmark = pytest.mark.filterwarnings("ignore")  # of the other packages


@pytest.fixture(scope="module")
def box() -> Any:
    return cm.load_default()


@pytest.fixture(scope="module")
def made(box: Any) -> Any:
    return cm.explain(box[0], TEXT, "alti", tokenizer=box[1])


@pytest.fixture(scope="module")
def account(box: Any) -> Any:
    return cm.ledger(box[0], TEXT, class_index="are", foil="is", tokenizer=box[1])


def need(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed (extra interop)")


def test_polars_frame_is_the_pandas_frame(made: Any, account: Any) -> None:
    need("polars")
    for result in (made, made.attribution("[MASK]"), account):
        ours, theirs = result.to_polars(), result.to_pandas()
        assert ours.columns == list(theirs.columns) and ours.height == len(theirs)
        last = theirs.columns[-1]
        numbers = [(x, y) for x, y in zip(ours[last].to_list(), theirs[last].tolist(), strict=True)]
        assert all(x == y or x is None or x != x for x, y in numbers)


def test_shap_explanation_adds_up(account: Any, made: Any) -> None:
    shap = need("shap")
    words = account.words()
    got = words.to_shap()
    assert isinstance(got, shap.Explanation)
    assert got.base_values + got.values.sum() == pytest.approx(float(account.value), rel=1e-5)
    assert list(got.data) == words.tokens[0].shown()
    row = made.attribution("[MASK]").to_shap()
    assert row.values.sum() == pytest.approx(1, abs=1e-5)
    html = shap.plots.text(got, display=False)
    assert "cabinet" in html and "keys" in html


def test_captum_draws_the_record(account: Any) -> None:
    need("captum")
    need("IPython")
    from captum.attr import visualization

    row = account.words().attribution
    record = row.to_captum()
    assert float(record.word_attributions.abs().max()) == pytest.approx(1)
    assert record.attr_score == pytest.approx(float(row.scores.sum()), rel=1e-5)
    page = visualization.visualize_text([record]).data
    assert all(word in page for word in ("keys", "cabinet", "are minus is"))


def test_spacy_documents_and_spans(box: Any) -> None:
    spacy = need("spacy")
    model, tokenizer = box
    doc = spacy.blank("en")("The keys to the cabinet sleep.")
    made = cm.explain(model, doc, "alti", tokenizer=tokenizer)
    plain = cm.explain(model, doc.text, "alti", tokenizer=tokenizer)
    assert np.array_equal(made.input, plain.input)
    span, token = doc[1:3], doc[4]
    row, both = made.attribution(span), plain.attribution(["keys", "to"])
    assert row.target == "keys to" and np.allclose(row.scores, both.scores)
    assert np.array_equal(made.attribution(token).scores, plain.attribution("cabinet").scores)
    with pytest.raises(InputError, match="name the word itself"):
        made.words().attribution(token)
    pair = cm.explain(model, [doc, spacy.blank("en")("A dog runs.")], "alti", tokenizer=tokenizer)
    assert len(pair) == 2
    with pytest.raises(InputError, match="belongs to another text"):
        made.attribution(spacy.blank("en")("Another text.")[0:1])
    with pytest.raises(InputError, match="empty"):
        cm.explain(model, spacy.blank("en")(""), "alti", tokenizer=tokenizer)


def test_frames_without_pandas_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ctxmix_hf.frames", raising=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"needs pandas.*ctxmix-hf\[data\]"):
        importlib.import_module("ctxmix_hf.frames")


def test_a_pandas_frame_explains_its_texts(box: Any) -> None:
    pandas = need("pandas")
    import ctxmix_hf.frames  # noqa: F401  adds df.ctxmix

    model, tokenizer = box
    texts = [TEXT, "The boys [MASK] tired.", "Many girls insulted [MASK]."]
    frame = pandas.DataFrame({"text": texts, "other": [1, 2, 3]}, index=["a", "b", "c"])
    made = frame.ctxmix.explain(model, target="[MASK]", tokenizer=tokenizer, batch_size=2)
    assert list(made.columns) == ["index", "token", "score"]
    for label, text in zip(frame.index, texts, strict=True):
        alone = cm.explain(model, text, "alti", tokenizer=tokenizer).attribution("[MASK]").words()
        assert made.loc[label, "token"].tolist() == alone.tokens[0].marked()
        assert np.allclose(made.loc[label, "score"], alone.scores[0], atol=1e-6)
    beside = frame.join(made.sort_values("score").groupby(level=0).tail(1))
    assert beside.loc["a", "token"] == "keys"
    signed = frame.ctxmix.attribute(model, method="ledger", class_index="are", foil="is")
    assert signed.loc["a"].set_index("token").loc["keys", "score"] > 1
    pairs = frame.assign(more="They sleep.").ctxmix.explain(model, pair="more")
    assert "sleep" in set(pairs.loc["b", "token"])
    with pytest.raises(UnknownNameError, match=r"Unknown column 'txt'\. Did you mean 'text'"):
        frame.ctxmix.explain(model, "txt")
    with pytest.raises(
        InputTypeError, match=r"Row 'a' has no text in column 'other' but int.*dropna"
    ):
        frame.ctxmix.explain(model, "other")
    some = frame.assign(other=["The boys [MASK] old.", *[None] * (len(frame) - 1)])
    rest = some.dropna(subset=["other"]).ctxmix.explain(model, "other")  # the advice
    assert "boys" in set(rest["token"])
    with pytest.raises(InputError, match="no rows"):
        frame[:0].ctxmix.explain(model)


@pytest.fixture(scope="module")
def opinions() -> dict[str, Any]:
    """What a metric is called with, of two sentences of different length (one is padded)."""
    model = cm.AutoContextMixingModelForSequenceClassification.from_pretrained("ctxmix/sentiment")
    texts = ["a wonderful , moving film", "this is a dull and lifeless mess of a movie ."]
    return {"model": model, "texts": texts}


@pytest.mark.parametrize("method", ["integrated_gradients", "alti"])
def test_quantus_judges_texts(opinions: dict[str, Any], method: str) -> None:
    quantus = need("quantus")
    model, texts = opinions.values()
    asked = cm.to_quantus(model, texts, method, **({"steps": 8} if method != "alti" else {}))
    # the advice: a metric that replaces tokens
    with_mask = {"perturb_baseline": 4.0, "subset_size": 2, "nr_runs": 20}
    faithful = quantus.FaithfulnessCorrelation(disable_warnings=True, abs=False, **with_mask)
    assert np.isfinite(faithful(**asked)).all()
    given = {key: value for key, value in asked.items() if key != "a_batch"}
    sparse = quantus.Sparseness(disable_warnings=True)
    assert sparse(**given) == pytest.approx(sparse(**asked))  # by our explain_func: the same scores
    shuffled = quantus.MPRT(disable_warnings=True, similarity_func=quantus.correlation_spearman)
    if method == "integrated_gradients":
        last = list(shuffled(**asked).values())[-1]  # every layer drawn anew: the scores change
        assert max(last) < 0.9, last
    noise = quantus.AvgSensitivity(disable_warnings=True, nr_samples=1)
    with pytest.raises(InputError, match=r"Token ids are whole numbers.*perturb_baseline"):
        noise(**asked)


def test_quantus_judges_pictures() -> None:
    quantus = need("quantus")
    model = cm.AutoContextMixingModelForImageClassification.from_pretrained("ctxmix/digits")
    size = model.config.image_size
    pictures = np.random.default_rng(0).random((2, model.config.num_channels, size, size))
    asked = cm.to_quantus(model, {"pixel_values": pictures.astype("float32")}, "alti")
    assert asked["a_batch"].shape == (2, 1, size, size)
    flips = quantus.PixelFlipping(
        features_in_step=size, perturb_baseline="black", disable_warnings=True
    )
    assert len(flips(**asked)) == 2


def test_what_quantus_cannot_judge_is_refused(box: Any, opinions: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="gives none for the whole input"):
        cm.to_quantus(box[0], TEXT)
    with pytest.raises(InputError, match="not pairs"):
        cm.to_quantus(opinions["model"], [("One.", "Two.")])


def test_bertviz_draws_the_map(made: Any) -> None:
    bertviz = need("bertviz")
    page = bertviz.head_view(**made.to_bertviz(), html_action="return").data
    drawn, _ = json.JSONDecoder().raw_decode(page, page.index('"attn": ') + len('"attn": '))
    assert np.allclose(np.array(drawn)[:, 0], made.layers[0], atol=1e-6)


def test_inseq_holds_the_map(made: Any) -> None:
    need("inseq")
    out = made.to_inseq()
    held = out.sequence_attributions[0]
    assert np.allclose(held.source_attributions.numpy().T, made.input[0, -1])
    assert [token.token for token in held.source] == list(made.tokens[0].pieces)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("polars", lambda made: made.to_polars()),
        ("shap", lambda made: made.attribution(1).to_shap()),
        ("captum", lambda made: made.attribution(1).to_captum()),
    ],
)
def test_a_missing_package_is_named(
    package: str, call: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"needs {package}.*ctxmix-hf\[interop\]"):
        call(made)
