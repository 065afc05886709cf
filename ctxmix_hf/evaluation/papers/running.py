"""The run: every item of the papers that was asked for, one file each, so that a run that was stopped goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import CtxmixError, OptionError, StoreError, UnknownNameError
from ctxmix_hf.evaluation.fitting import Fitting
from ctxmix_hf.evaluation.papers import page
from ctxmix_hf.evaluation.papers.desk import Desk
from ctxmix_hf.evaluation.papers.items import ITEMS, PAPERS, Item
from ctxmix_hf.evaluation.sessions import watched

Entry = dict[str, Any]


@dataclass(frozen=True)
class PapersReport:
    """What a run gave: the entries of `papers.json`, and why some items are not among them."""

    entries: tuple[Entry, ...]
    left_out: Mapping[str, str]  # an item to the reason

    def __str__(self) -> str:
        return page.written(self.entries, self.left_out)

    def to_json(self) -> str:
        return json.dumps(list(self.entries), indent=1, ensure_ascii=False)


def reproduce(
    out: str | Path,
    papers: Sequence[str] | str | None = None,
    *,
    classifier: Any = None,
    masked_lm: Any = None,
    encoder: Any = None,
    before: Any = None,
    data: Mapping[str, Any] | None = None,
    items: Sequence[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    fitting: Fitting | None = None,
    pos_tags: Callable[[list[str]], Sequence[str]] | None = None,
    progress: bool | None = None,
    trust_remote_code: bool = False,
) -> PapersReport:
    """The five papers' tables and figures, on any model, with the papers' numbers beside ours.

    Args:
        out: a folder. Each finished item is a file in it, and the same call again goes on from there;
            `papers.json` and `papers.md` are the whole.
        papers: "abnar", "brunner", "globenc", "alti" or "value_zeroing", or several; None is all five.
        classifier: a sentiment classifier: Hub id, folder or `(model, tokenizer)`; None is the bundled one.
        masked_lm: the same for masked words.
        encoder: the same for items that need no head.
        before: the masked LM (or encoder) before it was tuned, for items that show both; None leaves them out.
        data: what to read in the place of the built-in sentences: `{"sst2": ..., "blimp": ...,
            "linzen": ..., "mrpc": ..., "cola": ..., "mnli": ..., "pronouns": ...}`, each a Hub id, a file, or rows.
            BLiMP may be the folder with its own files (cue words are found by rule), Linzen the `.text` file,
            MRPC Microsoft's own `.txt`, CoLA its folder.
        items: only these numbers, such as "Table 1", or "Table 2 (linzen)" of two with one number; None is all.
        limit: at most so many sentences per item, drawn with the seed.
        seed: of that draw.
        fitting: how the maps of identifiability are learned; `ctxmix_hf.evaluation.PAPER` is the paper's way.
        pos_tags: a function from a list of words to their parts of speech, for the figures that need them; None:
            the rows' column `pos_tags`, else HanTa's English model where it is installed (the extra `pos`).
        progress: a bar with an estimate: True, False, or None where stderr is a terminal.
        trust_remote_code: run the code that lies beside the models' weights: only if you have read it.

    Returns:
        The report; `print(report)` is the page.

    Raises:
        UnknownNameError: No such paper or item.
        StoreError: A file in `out` is not one of ours.

    Example:
        >>> report = reproduce("ctxmix-papers", "globenc", limit=20)
    """
    wanted = _chosen(papers, items)
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit} must be at least 1.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"out={str(out)!r} is a file; give a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    models = {
        "classifier": classifier,
        "masked_lm": masked_lm,
        "encoder": encoder,
        "before": before,
    }
    desk = Desk(
        {role: model for role, model in models.items() if model is not None},
        data or {},
        limit,
        seed,
        folder / "partial",
        progress,
        fitting or Fitting(),
        pos_tags,
        trust_remote_code,
    )
    entries: list[Entry] = []
    left_out: dict[str, str] = {}
    for one in watched(wanted, "items", progress, len(wanted)):
        path = folder / f"{one.key}--{_slug(_model(one, desk))}.json"
        asked = _asked(one, desk)
        kept = _kept(path, asked)
        if kept is None:
            start = time.process_time()
            try:
                found = one.compute(desk)
            except CtxmixError as error:  # this item cannot be had here; the others can
                left_out[f"{one.paper}, {one.number} ({one.data})"] = str(error)
                continue
            kept = {
                "paper": one.paper,
                "item": one.number,
                "model": _model(one, desk),
                "data": desk.data_name(one.data),
                "n": int(found.n),
                "rows": [row.to_dict() for row in found.rows],
                "version": _version(),
                "commit": _commit(),
                "seconds": round(time.process_time() - start, 1),
            }
            if one.learns:
                kept["fitting"] = str(desk.fitting)
            if one.may_be_seen:
                kept["seen"] = desk.seen(one.role, one.data)
            if found.how:
                kept["how"] = found.how
            _put(path, json.dumps({"asked": asked, "entry": kept}, indent=1, ensure_ascii=False))
        entries.append(kept)
    report = PapersReport(tuple(entries), left_out)
    _put(folder / "papers.json", report.to_json() + "\n")
    _put(folder / "papers.md", page.written(report.entries, report.left_out))
    return report


def _chosen(papers: Sequence[str] | str | None, items: Sequence[str] | None) -> list[Item]:
    named = (
        list(PAPERS) if papers is None else [papers] if isinstance(papers, str) else list(papers)
    )
    for name in named:
        if name not in PAPERS:
            raise UnknownNameError.among("paper", name, list(PAPERS))
    numbers = list(dict.fromkeys(name for one in ITEMS.values() for name in _names(one)))
    for number in items or ():
        if number not in numbers:
            raise UnknownNameError.among("item", number, numbers)
    return [
        one
        for name in named
        for one in ITEMS.values()
        if one.paper == PAPERS[name] and (items is None or set(_names(one)) & set(items))
    ]


def _names(one: Item) -> tuple[str, str]:
    """What an item may be asked for by: its number, and its number with the corpus."""
    return one.number, f"{one.number} ({one.data})"


def _asked(one: Item, desk: Desk) -> dict[str, Any]:
    """What a kept file must have been made with to be taken up."""
    asked: dict[str, Any] = {
        "model": _model(one, desk),
        "data": desk.data_name(one.data),
        "limit": desk.limit,
        "seed": desk.seed,
        "fitting": repr(desk.fitting),
        "version": _version(),
    }
    folders = [m for m in desk.models.values() if isinstance(m, str | Path) and Path(m).is_dir()]
    if folders:  # two of them may have one name
        asked["folders"] = sorted(str(Path(m).resolve()) for m in folders)
    if desk.pos_tags is not None:
        asked["pos_tags"] = getattr(desk.pos_tags, "__qualname__", type(desk.pos_tags).__name__)
    return asked


def _model(one: Item, desk: Desk) -> str:
    """As results call it; an item that compares names both."""
    name = desk.model_name(one.role)
    return f"{name} (before: {desk.model_name('before')})" if one.compares else name


def _kept(path: Path, asked: dict[str, Any]) -> Entry | None:
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        entry: Entry = held["entry"]
        return entry if held["asked"] == asked else None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} is not an item of a run; move it away to compute it anew."
        ) from error


def _put(path: Path, text: str) -> None:
    """Written beside its place and moved there, so that no reader ever sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_.")[-80:]


def _version() -> str:
    try:
        return version("ctxmix-hf")
    except PackageNotFoundError:  # a checkout that was never installed
        return "unknown"


def _commit() -> str | None:
    """Of the checkout this runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    words = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
