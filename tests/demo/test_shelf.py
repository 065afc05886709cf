"""The shelf of models: least recently used, and never in the way of others."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from ctxmix_hf.demo import examples, extras, handlers, page, parts, pictures, shelf, stores
from ctxmix_hf.demo.limits import estimate
from ctxmix_hf.errors import InputError, StoreError, UnknownNameError, UnsupportedModelError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Loading that only notes the name; `slow/...` takes a second, `bad/...` fails."""
    loaded: list[str] = []

    def load(name: str) -> Any:
        if name.startswith("bad/"):
            raise UnsupportedModelError("no")
        time.sleep(1.0 if name.startswith("slow/") else 0)
        loaded.append(name)
        return SimpleNamespace(name=name)

    monkeypatch.setattr(shelf, "load", load)
    return loaded


def test_the_least_recently_used_model_goes(fake: list[str]) -> None:
    held = shelf.Shelf(2)
    for name in ("a/a", "a/b", "a/a", "a/c"):
        held.get(name)
    assert held.names() == ["a/a", "a/c"]
    assert fake == ["a/a", "a/b", "a/c"]


def test_a_slow_download_holds_up_nobody_else(fake: list[str]) -> None:
    held = shelf.Shelf(3)
    held.get("a/a")
    threads = [threading.Thread(target=held.get, args=("slow/x",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    held.get("a/a")
    held.get("a/b")
    assert all(thread.is_alive() for thread in threads)  # they still wait for theirs
    for thread in threads:
        thread.join()
    assert fake.count("slow/x") == 1


def test_a_failed_load_can_be_tried_again(fake: list[str]) -> None:
    held = shelf.Shelf(1)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError):
            held.get("bad/x")
    assert len(held) == 0
    assert held._loading == {}  # names that cannot be loaded leave nothing behind


def test_the_page_is_useful_when_no_model_can_be_loaded(
    monkeypatch: pytest.MonkeyPatch, fake: list[str]
) -> None:
    """Every example with every cached method, its prediction and a comparison; the rest says what is wrong."""

    def fail(name: str) -> Any:
        raise UnsupportedModelError(f"The model {name!r} could not be loaded: no network.")

    monkeypatch.setattr(shelf, "load", fail)
    monkeypatch.setattr(handlers, "SHELF", shelf.Shelf(1))
    assert parts.answer(*page.DEFAULT)["info"]
    for _, model, text, pair in examples.SENTENCES:
        for method in examples.METHODS:
            view = parts.answer(model, method, text, pair)
            assert view["query"]["text"] == text and "error" not in view
        assert "ctxmix-bar" in view["prediction"]
    text = examples.SENTENCES[0][2]
    sides = ("ctxmix/agreement", "alti", text, "", "", "", "value_zeroing", "", "")
    assert "error" not in parts.compare("two methods", *sides)[2]
    assert "no network" in parts.answer("ctxmix/agreement", "alti", "Something new.")["error"]
    assert "no network" in parts.similar("ctxmix/agreement", "One.", "Two.")["html"]
    assert "no network" in parts.agree("ctxmix/agreement", text, "", 0)["html"]


def test_a_slow_pair_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    own = shelf.Shelf(1)
    own.get("ctxmix/agreement")
    monkeypatch.setattr(handlers, "SHELF", own)
    long = "The boys that the teacher likes [MASK] here. " * 12  # too slow on a fast machine too
    said = handlers.slow_note("ctxmix/agreement", "hta", long)
    assert said.startswith("Too slow for this text: about") and "tokens, cost:" in said
    assert handlers.slow_note("ctxmix/agreement", "attention", "The boys [MASK] here.") == ""
    assert "not loaded yet" in handlers.slow_note("bert-base-uncased", "alti", "The boys.")


def test_old_files_go(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.tempfile, "tempdir", str(tmp_path))
    made, said = extras.files(
        urlencode({"model": "ctxmix/agreement", "method": "alti", "text": examples.SENTENCES[0][2]})
    )
    assert said == "" and len(list(tmp_path.glob(f"{extras.FOLDERS}*"))) == 1
    (tmp_path / f"{extras.FOLDERS}dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"{extras.FOLDERS}link").symlink_to(tmp_path / "elsewhere")
    extras.tidy(seconds=-1)
    assert [
        path.name for path in tmp_path.glob(f"{extras.FOLDERS}*") if not path.is_symlink()
    ] == []
    assert (tmp_path / "elsewhere").exists()


def test_an_error_that_says_nothing_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, vision: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError

    monkeypatch.setattr(stores.cm.MapStore, "from_hub", fail)
    with pytest.raises(StoreError, match="'me/maps' could not be opened: OSError"):
        stores.open_store("me/maps")
    monkeypatch.setattr("transformers.AutoImageProcessor.from_pretrained", fail)
    with pytest.raises(InputError, match="has no image processor: OSError"):
        pictures.map_of(pictures.example("shapes"), vision, "alti")
    monkeypatch.setattr(shelf.AutoConfig, "from_pretrained", fail)
    with pytest.raises(UnsupportedModelError, match="could not be loaded: OSError"):
        shelf.load(vision)


def test_names_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Choose a model"):
        shelf.check_name("a\nb")
    with pytest.raises(UnknownNameError, match="ctxmix/agreement"):
        shelf.check_name("ctxmix/agrement")
    monkeypatch.setattr(shelf, "SETTINGS", SimpleNamespace(any_model=True, local_paths=False))
    with pytest.raises(InputError, match="not paths"):
        shelf.check_name("/etc/passwd")
    monkeypatch.setattr(shelf, "SETTINGS", SimpleNamespace(any_model=False, local_paths=False))
    with pytest.raises(InputError, match="offers only"):
        shelf.check_name("bert-base-uncased")


def test_cost_grows_with_the_text_and_the_method() -> None:
    config = SimpleNamespace(hidden_size=128, num_hidden_layers=6)
    held: Any = SimpleNamespace(model=SimpleNamespace(config=config), weights=1_200_000, rate=5e9)
    assert estimate(held, "alti", 10) < estimate(held, "alti", 100)
    assert (
        estimate(held, "attention", 50)
        < estimate(held, "value_zeroing", 50)
        < estimate(held, "hta", 50)
    )
    assert estimate(held, "alti", 80) < estimate(held, "alti+flow", 80)
    assert estimate(held, "alti", 20) < 1
    assert 2 < estimate(held, "hta", 20) < 20 < estimate(held, "hta", 100)


def test_what_the_table_of_agreement_says_in_words() -> None:
    """By hand: three methods, of which one stands alone; a method that says the same of every token counts nowhere."""
    from ctxmix_hf.demo import panels

    nan = float("nan")
    table = [[1, 0.9, 0.1, nan], [0.9, 1, -0.4, nan], [0.1, -0.4, 1, nan], [nan] * 4]
    names = ["alti", "globenc", "attention", "value_zeroing"]
    made = {"target": "[MASK]", "methods": names, "correlation": table, "left_out": []}
    assert panels.agreement_finding(made) == (
        "The rows of “[MASK]” correlate by 0.20 on average. ALTI agrees most with the others (0.50), "
        "Attention weights least (-0.15); furthest apart are GlobEnc and Attention weights (-0.40)."
    )
    two = {**made, "methods": names[:2], "correlation": [row[:2] for row in table[:2]]}
    assert panels.agreement_finding(two).endswith("correlate by 0.90 on average.")
    assert panels.agreement_finding({**made, "methods": names[:1], "correlation": [[1]]}) == ""
    assert "ALTI agrees most" in panels.agreement_table(made)
