"""The shelf of models: least recently used, and never in the way of others."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ctxmix_hf.demo import shelf
from ctxmix_hf.demo.limits import estimate
from ctxmix_hf.errors import InputError, UnknownNameError, UnsupportedModelError


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
    start = time.monotonic()
    held.get("a/a")
    held.get("a/b")
    assert time.monotonic() - start < 0.5
    for thread in threads:
        thread.join()
    assert fake.count("slow/x") == 1


def test_a_failed_load_can_be_tried_again(fake: list[str]) -> None:
    held = shelf.Shelf(1)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError):
            held.get("bad/x")
    assert len(held) == 0


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
    assert estimate(held, "attention", 50) < estimate(held, "value_zeroing", 50) < estimate(held, "hta", 50)
    assert estimate(held, "alti", 80) < estimate(held, "alti+flow", 80)
    assert estimate(held, "alti", 20) < 1
    assert estimate(held, "hta", 20) > 20
