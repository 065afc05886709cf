"""Damaged and hostile result files: an error of ours, or a result whose parts fit together; never
memory for what is not there.
"""

from __future__ import annotations

import copy
import io
import json
import random
import tracemalloc
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import CtxmixError, InputError
from ctxmix_hf.text.tokens import Tokens

SWAPS: list[Any] = [
    None,
    True,
    7,
    -1,
    1.5,
    1e308 * 10,
    10**400,
    "x",
    "",
    [],
    {},
    [[]],
    ["x"],
    [[[[1.0]]]],
    {"tensor": 1, "dtype": "load"},
]


def fits(made: Any) -> None:
    """What every part of the library may rely on."""
    if isinstance(made, cm.Similarity):
        fits(made.a)
        fits(made.b)
        if made.source is not None:
            assert made.pairs.shape == (made.a.scores.shape[1], made.b.scores.shape[1])
        made.to_json()
        str(made)
        return
    batch, size = made.mask.shape
    assert len(made.tokens) == batch and all(len(tokens) == size for tokens in made.tokens)
    for tokens in made.tokens:
        for part in (tokens.words, tokens.special, tokens.spans, tokens.ids):
            assert part is None or len(part) == size
    if isinstance(made, cm.Attribution):
        assert made.scores.shape == (batch, size)
    elif isinstance(made, cm.Ledger):
        assert made.scores.shape == (batch, size) and made.value.shape == (batch,)
        assert all(line.shape in ((batch,), (batch, size)) for line in made.lines.values())
    else:
        depth = made.depth
        assert made.layers is None or made.layers.shape == (batch, depth, size, size)
        assert made.given_input is None or made.given_input.shape == (batch, depth, size, size)
        assert made.heads is None or (
            made.heads.shape[:2] == (batch, depth) and made.heads.shape[3:] == (size, size)
        )
    made.to_json()
    str(made)
    repr(made)


def opens(call: Any) -> bool:
    """True where a damaged file is still a result; any other error than ours fails the test."""
    try:
        made = call()
    except CtxmixError as error:
        assert len(str(error)) < 600
        return False
    fits(made)
    return True


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree of JSON; of long lists the first and last."""
    yield path
    items = (
        node.items()
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    for key, child in (
        list(items)
        if len(items) < 4 or isinstance(node, dict)
        else [*list(items)[:1], *list(items)[-1:]]
    ):
        yield from places(child, (*path, key))


def with_change(tree: Any, path: tuple[Any, ...], value: Any, drop: bool = False) -> Any:
    if not path:
        return value
    tree = copy.deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return tree


@pytest.fixture
def full(small: Any) -> Any:
    """A map that has everything."""
    spans = (None, (0, 4), (4, 7))
    tokens = replace(
        small.tokens[0],
        words=(None, 0, 0),
        special=(True, False, False),
        text="playing",
        spans=spans,
        ids=(1, 2, 3),
    )
    meta = {
        "options": {"norm": 1},
        "origin": {"model": "x"},
        "notes": {"error": torch.tensor([0.25])},
        "causal": False,
    }
    return replace(
        small, tokens=[tokens], heads=small.layers[:, :, None].repeat(1, 1, 2, 1, 1), meta=meta
    )


def test_every_place_of_the_json_changed(full: Any) -> None:
    tree = json.loads(full.to_json())
    tries = kept = 0
    for path in places(tree):
        for value in SWAPS:
            text = json.dumps(with_change(tree, path, value))
            tries, kept = (
                tries + 1,
                kept + opens(lambda text=text: cm.ContextMixingMap.from_json(text)),
            )
        if path and isinstance(path[-1], str):
            text = json.dumps(with_change(tree, path, None, drop=True))
            tries, kept = (
                tries + 1,
                kept + opens(lambda text=text: cm.ContextMixingMap.from_json(text)),
            )
    assert tries > 800 and 0 < kept < tries / 2
    row = json.loads(full.attribution(0).to_json())
    for path in places(row):
        for value in SWAPS:
            opens(
                lambda path=path, value=value: cm.Attribution.from_json(
                    json.dumps(with_change(row, path, value))
                )
            )


@pytest.fixture(scope="module")
def accounts(box: Any) -> dict[str, Any]:
    model, tokenizer = box
    return {
        "ledger": cm.ledger(model, "keys [MASK]", tokenizer=tokenizer),
        "similarity": cm.similarity(model, "keys", "old", pooling="mean", tokenizer=tokenizer),
    }


@pytest.mark.parametrize("kind", ["ledger", "similarity"])
def test_every_place_of_an_account_changed(accounts: Any, kind: str) -> None:
    whole = accounts[kind]
    tree, read = json.loads(whole.to_json()), type(whole).from_json
    tries = kept = 0
    for path in places(tree):
        for value in SWAPS:
            text = json.dumps(with_change(tree, path, value))
            tries, kept = tries + 1, kept + opens(lambda text=text: read(text))
    assert tries > 800 and 0 < kept < tries / 2


@pytest.mark.parametrize("kind", ["ledger", "similarity"])
@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_flipped_bits_of_an_account(accounts: Any, tmp_path: Path, kind: str, suffix: str) -> None:
    damage(accounts[kind], tmp_path, suffix, 80)


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_flipped_bits_and_cut_files(full: Any, tmp_path: Path, suffix: str) -> None:
    damage(full, tmp_path, suffix, 250)


def damage(made: Any, folder: Path, suffix: str, tries: int) -> None:
    data, draw = made.save(folder / f"m{suffix}").read_bytes(), random.Random(1)
    path = folder / f"damaged{suffix}"
    for _ in range(tries):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 4])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(
            damaged[: draw.randrange(len(damaged))] if draw.random() < 0.3 else damaged
        )
        opens(lambda: type(made).load(path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": np.zeros((1, 2, 3, 4), "f4")}, "layers"),
        ({"layers": np.zeros((1, 2, 4, 4), "f4")}, "layers"),
        ({"layers": np.zeros((2, 2, 3, 3), "f4")}, "layers"),
        ({"layers": np.zeros((1, 3, 3, 3), "f4")}, "layers|heads"),
        ({"heads": np.zeros((1, 2, 2, 3, 2), "f4")}, "heads"),
        ({"input": np.zeros((1, 5, 3, 3), "f4")}, "input"),
        ({"layers": np.zeros((1, 2, 3, 3), "i8")}, "layers"),
        ({"layers": np.zeros((1, 2, 3, 3), "c8")}, "layers"),
        ({"layers": np.array([[object()]], dtype=object)}, "layers"),
        ({"ctxmix": np.array(7)}, "header|no ctxmix"),
        ({"ctxmix": np.array(["a", "b"])}, "header|no ctxmix"),
        ({"other": np.zeros(3)}, "other"),
    ],
)
def test_parts_that_disagree(full: Any, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with np.load(full.save(tmp_path / "m.npz")) as data:
        arrays = {name: data[name] for name in data.files}
    np.savez(tmp_path / "damaged.npz", **{**arrays, **change})
    with pytest.raises(InputError, match=said):
        cm.ContextMixingMap.load(tmp_path / "damaged.npz")
    if all(isinstance(value, np.ndarray) and value.dtype.kind in "f" for value in change.values()):
        from safetensors import safe_open
        from safetensors.torch import save_file

        with safe_open(str(full.save(tmp_path / "m.safetensors")), "pt") as file:
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        save_file(
            {**held, **{k: torch.from_numpy(v) for k, v in change.items()}},
            tmp_path / "damaged.safetensors",
            metadata,
        )
        with pytest.raises(InputError, match=said):
            cm.ContextMixingMap.load(tmp_path / "damaged.safetensors")


def npy(shape: tuple[int, ...], data: bytes = b"", kind: str = "<f4") -> bytes:
    """An npy file that claims a shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


def test_a_bomb_is_refused_before_it_is_inflated(full: Any, tmp_path: Path) -> None:
    """400 MB of zeros in 400 kB; a claim of a petabyte in 300 bytes; a header of a gigabyte."""
    size = 4000
    tokens = {
        "pieces": ["a"] * size,
        "words": None,
        "special": None,
        "text": None,
        "spans": None,
        "ids": None,
    }
    held = {"mask": [[1] * size], "tokens": [tokens], "layers": None, "heads": None, "input": None}
    header = json.dumps({**json.loads(full.to_json()), **held})
    fine = io.BytesIO()
    np.save(fine, np.array(header))
    files = {
        "bomb": {
            "ctxmix.npy": fine.getvalue(),
            "layers.npy": npy((1, 6, size, size), bytes(4 * 6 * size * size)),
        },
        "claim": {"ctxmix.npy": fine.getvalue(), "layers.npy": npy((1, 1 << 26, size, size))},
        "overflow": {
            "ctxmix.npy": fine.getvalue(),
            "layers.npy": npy((1 << 62, 1 << 62, size, size)),
        },
        "negative": {"ctxmix.npy": fine.getvalue(), "layers.npy": npy((1, -1, size, size))},
        "header": {"ctxmix.npy": npy((), kind="<U500000000")},
        "many": {f"{n}.npy": b"" for n in range(5000)},
    }
    for name, entries in files.items():
        path = tmp_path / f"{name}.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, data in entries.items():
                archive.writestr(entry, data)
        assert path.stat().st_size < 1 << 20
        tracemalloc.start()
        with pytest.raises(InputError):
            cm.ContextMixingMap.load(path, max_bytes=100 << 20)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 20 << 20, name


def test_a_large_result_says_how_to_open_it(full: Any, tmp_path: Path) -> None:
    for suffix in (".json", ".npz", ".safetensors"):
        path = full.save(tmp_path / f"m{suffix}")
        with pytest.raises(InputError, match="max_bytes"):
            cm.ContextMixingMap.load(path, max_bytes=100)
        assert cm.ContextMixingMap.load(path, max_bytes=1 << 20).size == 3  # the advice


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 5000,
        "\x00",
        "[]",
        "null",
        '{"schema"',
        "[" * 200_000,
        "{" + '"a":{' * 100_000,
        "1" * 5000,
        "no-such-file",
    ],
)
def test_texts_that_are_no_result(text: str) -> None:
    with pytest.raises(InputError):
        cm.ContextMixingMap.from_json(text)
    with pytest.raises(InputError):
        cm.Attribution.from_json(text)


def test_files_that_are_no_result(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "latin.json").write_bytes(b'{"schema": "\xff\xfe"}')
    (tmp_path / "zip.npz").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "empty.safetensors").touch()
    for path in tmp_path.iterdir():
        with pytest.raises(InputError):
            cm.ContextMixingMap.load(path)


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_empty_maps_still_read_back(small: Any, tmp_path: Path, suffix: str) -> None:
    for made in (
        cm.ContextMixingMap(
            "alti",
            torch.zeros(1, 2, 0, 0),
            torch.zeros(1, 0, dtype=torch.bool),
            [Tokens(())],
        ),
        cm.ContextMixingMap(
            "alti", torch.zeros(0, 2, 3, 3), torch.zeros(0, 3, dtype=torch.bool), []
        ),
    ):
        back = cm.ContextMixingMap.load(made.save(tmp_path / f"m{suffix}"))
        assert len(back) == len(made) and len(back.tokens) == len(made.tokens)


def test_all_of_a_batch_reads_back(box: Any, tmp_path: Path) -> None:
    made = cm.explain(box[0], ["Many girls insulted [MASK].", "It is."], "alti", tokenizer=box[1])
    for suffix in (".json", ".npz", ".safetensors"):
        back = cm.ContextMixingMap.load(made.save(tmp_path / f"m{suffix}"))
        fits(back)
        assert torch.equal(back.layers, made.layers) and [t.pieces for t in back.tokens] == [
            t.pieces for t in made.tokens
        ]


@pytest.mark.parametrize("change", [{"layer": None}, {"layer": "2"}, {"scope": []}, {"scope": "x"}])
def test_a_row_without_its_place_is_refused(full: Any, change: dict[str, Any]) -> None:
    """Found by the fuzzer: it was read, and printing it raised a KeyError."""
    tree = json.loads(full.attribution(1).to_json())
    assert str(cm.Attribution.from_json(json.dumps(tree)))
    tree["meta"] = {k: v for k, v in {**tree["meta"], **change}.items() if v is not None}
    with pytest.raises(InputError, match="of which layer and scope"):
        cm.Attribution.from_json(json.dumps(tree))
