"""Real encoders: random tiny models hide what half precision, deep layers and large activations do to the numbers."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
import transformers

import ctxmix_hf as cm

TEXT = (
    "Because the keys to the old cabinet on the second floor were lost, the secretaries of the "
    "department asked the caretaker, who had "
    "worked in the building for thirty years, whether he remembered where his predecessor used to keep the spare ones."
)
LAYERS = ["value_zeroing", "alti", "norm_enc", "norm_resln", "attention_res", "effective_attention"]


def maps(model, inputs, names=LAYERS):
    cm.instrument(model)
    with torch.no_grad():
        made = model(**inputs, output_context_mixing=names).context_mixing
    return {name: made[name].layers for name in names}


def worst(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest error, relative to the largest entry of its row."""
    return float(((mine.double() - theirs).abs() / theirs.abs().amax(dim=-1, keepdim=True)).max())


@pytest.fixture(scope="module")
def reference(minilm):
    folder, tokenizer = minilm
    inputs = tokenizer(TEXT, return_tensors="pt")
    return inputs, maps(
        transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval(), inputs
    )


def test_float32_is_good_to_five_digits(minilm, reference) -> None:
    inputs, wide = reference
    narrow = maps(
        transformers.AutoModel.from_pretrained(minilm[0], dtype=torch.float32).eval(), inputs
    )
    for name in LAYERS:
        assert worst(narrow[name], wide[name]) < (
            5e-5 if name == "effective_attention" else 1e-5
        ), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_leaves_only_the_models_own_rounding(minilm, dtype: torch.dtype) -> None:
    """Against float64 with the same rounded weights. Re-running layers in half precision had 84 %
    (bfloat16) and 26 % (float16) of Value Zeroing's entries off by more than a tenth."""
    folder, tokenizer = minilm
    inputs = tokenizer(TEXT, return_tensors="pt")
    rounded = (
        transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
        .to(dtype)
        .double()
        .eval()
    )
    names = ["value_zeroing", "alti", "norm_enc", "norm_resln"]
    wide = maps(rounded, inputs, names)
    half = maps(
        transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).to(dtype).eval(),
        inputs,
        names,
    )
    for name in names:
        gap = (half[name].double() - wide[name]).abs() / wide[name].clamp(min=1e-30)
        large = wide[name] > 1e-3 * wide[name].amax(dim=-1, keepdim=True)
        off = float((gap[large] > 0.1).float().mean())
        assert off < (0.02 if dtype == torch.bfloat16 else 0.001), (name, off)


@pytest.mark.parametrize(
    ("path", "head"),
    [
        ("rxnfp/models/transformers/bert_ft", "BertModel"),
        ("antiberty/trained_models/AntiBERTy_md_smooth", "BertModel"),
    ],
)
def test_other_real_encoders_are_exact(testbed: Path, path: str, head: str) -> None:
    """Reactions and antibodies: other sizes, other activations, weights nobody here trained."""
    config = transformers.BertConfig.from_pretrained(testbed / path)
    model, report = getattr(transformers, head).from_pretrained(
        testbed / path, config=config, dtype=torch.float64, output_loading_info=True
    )
    assert not [key for key in report["missing_keys"] if "pooler" not in key]
    ids = (
        torch.randint(
            20, min(400, config.vocab_size), (2, 24), generator=torch.Generator().manual_seed(0)
        )
        % config.vocab_size
    )
    checked = cm.verify(model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert checked.exact and checked.check.worst_error < 1e-10
    assert all(layer.value_zeroing == "shortcut" for layer in checked.layers)


REACTIONS = [
    "CCNC(=O)c1ccccc1 >> CCN.O=C(Cl)c1ccccc1",
    "CC(=O)OCC >> CC(=O)O.CCO",
    "C >> " + "C" * 99,
]


@pytest.fixture
def evidence(testbed: Path, monkeypatch: pytest.MonkeyPatch):
    """benchmarks/ledger_evidence.py, which the table of methods in docs/choosing.md comes from."""
    monkeypatch.syspath_prepend(str(testbed.parent / "benchmarks"))
    monkeypatch.setenv("CTXMIX_TESTBED", str(testbed))
    return importlib.import_module("ledger_evidence")


def test_questions_about_reactions(evidence, tmp_path: Path) -> None:
    """Masked atoms of the product: where the model is right and least sure, against its second choice."""
    path = tmp_path / "reactions.smi"
    path.write_text("\n".join(REACTIONS))
    texts = evidence.reactions(path)
    assert ["".join(words) for words, _ in texts] == [
        "CCN.O=C(Cl)c1ccccc1>>CCNC(=O)c1ccccc1",
        "CC(=O)O.CCO>>CC(=O)OCC",
    ]  # the third is too long
    assert [texts[1][0][i] for i in texts[1][1]] == ["C", "C", "O", "O", "C", "C"]
    model, tokenizer = loaded = evidence.load_masked("rxnfp")
    rows = evidence.questions(loaded, texts, 5)
    assert rows and all(r["words"][r["target_index"]] == r["good_word"] for r in rows)
    for row in rows:
        table = cm.evaluate(
            "faithfulness",
            model=model,
            tokenizer=tokenizer,
            data=[row],
            methods=evidence.METHODS,
            progress=False,
        )
        assert table.notes[0] == "rxnfp is right on 1 of 1 sentences."
        assert {"decompx", "ledger", "ledger (rule='through')"} < set(table.column("method"))
        masked = [
            tokenizer.mask_token if i == row["target_index"] else w
            for i, w in enumerate(row["words"])
        ]
        with torch.no_grad():
            logits = model(**tokenizer(" ".join(masked), return_tensors="pt")).logits[0]
        best = tokenizer.convert_ids_to_tokens(
            logits[row["target_index"] + 1].topk(2).indices.tolist()
        )
        assert best == [row["good_word"], row["bad_word"]]


def test_questions_about_antibodies(evidence, tmp_path: Path) -> None:
    """A V gene and a J gene of its own locus, joined; the model knows its residues."""
    for species in ("human", "mouse"):
        for locus, letters in {
            "igh": "YFDYWGQGTLVTVSS",
            "igk": "TFGQGTKVEIK",
            "igl": "VFGGGTKLTVL",
        }.items():
            path = tmp_path / "j_genes" / species / f"{locus}.fasta"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f">{locus.upper()}J1*01 {species}\n{letters}\n")
    (tmp_path / "v_genes").mkdir()
    gene = "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQSYSTP"
    (tmp_path / "v_genes" / "human.fasta").write_text(
        f">IGKV1-39*01 IGK\n{gene[:60]}\n{gene[60:]}\n"
    )
    (tmp_path / "v_genes" / "mouse.fasta").write_text("")
    ((words, places),) = evidence.antibodies(tmp_path)
    assert "".join(words) == gene + "TFGQGTKVEIK" and places == list(range(len(words)))
    (row,) = evidence.questions(evidence.load_masked("antiberty"), [(words, places)], 1)
    assert row["good_word"] == words[row["target_index"]] != row["bad_word"]
