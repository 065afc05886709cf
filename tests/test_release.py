"""The release checklist ticks what is done and names what is open."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
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


def test_each_schema_is_looked_for_on_its_own_page(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that only the other page names does not count."""
    store, files = "The files of a store carry schema 1.", "## JSON schema, version 2"
    pages = {"docs/hub.md": store, "docs/exports.md": files}
    monkeypatch.setattr(release, "read", pages.__getitem__)
    assert release.check_schemas("") == ""
    pages["docs/hub.md"], pages["docs/exports.md"] = files, store
    assert release.check_schemas("") == (
        "docs/hub.md does not name store schema 1; docs/exports.md does not name JSON schema 2"
    )


def test_uncommitted_files_are_named(
    release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    for words in (["init", "-q"], ["add", "."]):
        (tmp_path / "one.txt").write_text("1")
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    author = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *author, "commit", "-qm", "one"], cwd=tmp_path, check=True)
    assert release.check_clean("") == ""
    (tmp_path / "one.txt").write_text("2")
    (tmp_path / "a name.txt").write_text("new")
    assert release.check_clean("") == "uncommitted: one.txt, a name.txt"
    monkeypatch.setattr(release, "ROOT", tmp_path / "gone")
    (tmp_path / "gone").mkdir()
    shutil.rmtree(tmp_path / ".git")
    assert "git" in release.check_clean("")  # what cannot be seen is not clean


@pytest.fixture
def project(release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The smallest project that has our name, a wheel and a site."""
    (tmp_path / "ctxmix_hf.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "ctxmix-hf"\nversion = "1.2.0"\n'
        '[tool.setuptools]\npy-modules = ["ctxmix_hf"]\n'
    )
    (tmp_path / "mkdocs.yml").write_text("site_name: x\ntheme: mkdocs\nstrict: true\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def test_the_build_has_the_version_in_its_names(release: Any, project: Path) -> None:
    for package in ("build", "setuptools"):
        pytest.importorskip(package, reason="the test extra is not installed")
    assert release.check_build("1.2.0") == ""
    assert "ctxmix_hf-1.2.0.tar.gz" in (said := release.check_build("1.3.0"))
    assert "wanted ['ctxmix_hf-1.3.0" in said
    (project / "pyproject.toml").write_text("[project\n")
    assert "built []" in (said := release.check_build("1.2.0")) and "pyproject.toml" in said


@pytest.mark.slow
def test_this_version_is_built(release: Any) -> None:
    pytest.importorskip("build", reason="the test extra is not installed")
    assert release.check_build(cm.__version__) == ""


def test_a_page_that_does_not_build_is_an_open_point(release: Any, project: Path) -> None:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    assert release.check_docs in release.CHECKS.values() and release.check_docs("") == ""
    assert not (project / "site").exists()
    (project / "docs" / "index.md").write_text("# Start\n[gone](gone.md)\n")
    assert "gone.md" in (said := release.check_docs("")) and "\n" not in said


def test_without_mkdocs_the_documentation_is_an_open_point(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not built is not ready: a release is made where the docs extra is installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert release.check_docs("") == "mkdocs is not installed: pip install -e '.[docs]'"


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
