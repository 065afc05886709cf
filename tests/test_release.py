"""The release checklist ticks what is done and names what is open."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release() -> Any:
    return script("release")


def test_the_version_is_the_same_everywhere(release: Any) -> None:
    assert set(release.versions().values()) == {cm.__version__}
    assert release.check_versions(cm.__version__) == ""
    assert "CITATION.cff says" in release.check_versions("9.9.9")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Changelog\n## 1.2.0 (2026-11-17)\n### Added\n- A thing.\n", ""),
        ("# Changelog\n## Unreleased (1.2.0)\n- A thing.\n", "begins with 'Unreleased (1.2.0)'"),
        ("# Changelog\n## 1.2.0 (soon)\n- A thing.\n", "begins with '1.2.0 (soon)'"),
        ("# Changelog\n## 1.2.0 (2026-11-17)\n## 1.1.0 (2026-10-01)\n- Old.\n", "is empty"),
        ("", "begins with 'nothing'"),
    ],
)
def test_the_changelog_has_a_dated_section(release: Any, text: str, said: str) -> None:
    found = release.check_changelog("1.2.0", text)
    assert said in found and bool(said) == bool(found)


def test_generated_files_links_and_schemas_are_ready(release: Any) -> None:
    for check in (release.check_generated, release.check_links, release.check_schemas):
        assert check(cm.__version__) == ""


def test_open_points_are_printed(
    release: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "CHECKS", {"a": lambda _: "", "b": lambda v: f"{v} is not ready"})
    assert release.main(["1.2.0"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["done a", "open b: 1.2.0 is not ready"]
    monkeypatch.setattr(release, "CHECKS", {"a": lambda _: ""})
    assert release.main(["1.2.0"]) == 0


def test_the_compatibility_table_is_what_was_measured() -> None:
    made = script("compatibility")
    found = json.loads(made.RESULTS.read_text())
    page = made.PAGE.read_text(encoding="utf-8")
    assert made.rewritten(page, found) == page
    assert {row["python"][:4] for row in found["rows"]} == set(made.PYTHONS)
    assert re.match(r"[0-9a-f]{40}", found["commit"])
    assert not [row for row in found["rows"] if row["result"] == "failed"]


@pytest.mark.slow
def test_another_python_compiles_and_starts_it(tmp_path: Path) -> None:
    """The short version of the table: a Python that the tests themselves do not run on."""
    made = script("compatibility")
    version = next(v for v in made.PYTHONS if v != "{}.{}".format(*sys.version_info))
    if (python := made.interpreter(version)) is None:
        pytest.skip(f"no Python {version} on this machine")
    found = made.bare(python, tmp_path / "venv")
    assert (found["compiles"], found["starts"]) == ("yes", "yes"), found
