"""What surrounds the code: addresses in one place, llms.txt and links up to date, guides that are true."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxmix_hf.addresses import PROJECT_URLS, REPOSITORY

ROOT = Path(__file__).parents[1]


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_address_is_written_once() -> None:
    """A file that repeats it would be forgotten when it changes."""
    assert all(url.startswith(REPOSITORY) for url in PROJECT_URLS.values())
    name = REPOSITORY.partition("://")[2]
    asked = [
        "git",
        "grep",
        "-lF",
        "--untracked",
        name,
        ":!*.ipynb",
    ]  # an executed notebook shows a card
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if done.returncode > 1:
        pytest.skip("not a git checkout")
    assert done.stdout.split() == ["ctxmix_hf/addresses.py"]


def test_cards_name_the_address() -> None:
    from ctxmix_hf.hub.cards import space_card

    assert f"({REPOSITORY})" in space_card()


def test_llms_txt_is_up_to_date() -> None:
    made = script("llms").text()
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == made, "run python scripts/llms.py"
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert len(re.findall(r"\w+\.md", nav)) == made.count("](docs/")


def test_there_are_no_dead_links() -> None:
    assert script("links").dead() == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, twice\n")
    (tmp_path / "page.md").write_text(
        "[a](there.md) [b](there.md#a-heading-twice) [c](gone.md) [d](there.md#gone)\n"
        "[e](docs/methods/alti.md) [f](docs/methods/alty.md) `[g](code.md)`\n```\n[h](code.md)\n```\n"
        "[i](https://example.org/gone) ![j](gone.png)\n"
    )
    found = [line.partition(": ")[2] for line in script("links").dead(tmp_path)]
    assert found == ["gone.md", "there.md#gone", "docs/methods/alty.md", "gone.png"]


@pytest.mark.parametrize("name", ["AGENTS.md", "CONTRIBUTING.md"])
def test_guides_name_what_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/])((?:scripts|tests|ctxmix_hf|docs)/[\w/]+\.(?:py|sh|md))", text)
    assert len(paths) > 4
    for path in paths:
        assert (ROOT / path).exists(), path


PRELUDE = """
from dataclasses import dataclass
import torch
from torch import Tensor
import ctxmix_hf as cm
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.formats import FORMATS, Format
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.methods.norms import stage_norms
from ctxmix_hf.records import LayerRecord
"""
TRIED = """
m = cm.explain(cm.load_default()[0], "The cats sleep.", "closest")
assert m.layers.shape[1] == 6 and bool((m.layers.sum(-1) == 1).all())
assert m.save("map.txt").read_text().strip()
"""


def test_the_code_in_contributing_runs(tmp_path: Path) -> None:
    """A method and a format, as they are printed, with nothing but imports before them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([PRELUDE, *blocks, TRIED])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-1500:]


def test_agents_commands_collect_tests() -> None:
    """The two lines that run one thing find something to run."""
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    for path, name in re.findall(r'pytest (tests/\S+) -k "?(\w+)', text):
        assert (ROOT / path).exists() and name
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", path, "-k", name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout[-500:]


def test_issue_templates_are_forms() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    forms = [path for path in sorted(folder.glob("*.yml")) if path.stem != "config"]
    assert {path.stem for path in forms} == {"bug", "model", "method"}
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form["name"] and form["description"] and form["body"]
        ids = [part["id"] for part in form["body"]]
        assert len(ids) == len(set(ids))
        assert all(part["type"] in ("textarea", "input") for part in form["body"])
        assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_readme_shows_five_ways_in() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Five ways in")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!from|---)(.+?) \| (.+) \|$", table, flags=re.MULTILINE)
    assert [row[0] for row in rows] == [
        "Python",
        "a notebook",
        "a terminal",
        "a page",
        "an assistant",
    ]
    assert text[: text.index("## Five ways in")].count("\n") < 40
    assert 'pip install ".[flow,plot]"' in text[:1000]


@pytest.fixture
def setting_up(tmp_path: Path) -> Path:
    """A folder with scripts/setup.sh, a python3 that only makes a pip, and a pip that only notes its words."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"))
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    pip = '#!/bin/sh\\necho "$@" >> asked.txt\\n'
    fake.write_text(
        f"#!/bin/sh\nmkdir -p .venv/bin\nprintf '{pip}' > .venv/bin/pip\nchmod +x .venv/bin/pip\n"
    )
    fake.chmod(0o755)
    return tmp_path


def test_setup_says_what_it_does(setting_up: Path) -> None:
    """The steps are announced, and the second run is silent."""
    env = {"PATH": f"{setting_up / 'bin'}:/usr/bin:/bin"}
    runs = [
        subprocess.run(
            ["bash", "scripts/setup.sh"], cwd=setting_up, env=env, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    assert [done.returncode for done in runs] == [0, 0]
    assert [line[:3] for line in runs[0].stdout.splitlines()] == ["1/3", "2/3", "3/3", "rea"]
    assert runs[1].stdout == ""
    asked = (setting_up / "asked.txt").read_text().splitlines()
    assert len(asked) == 3 and all(" -q " in line for line in asked)


def test_setup_shows_pips_progress_to_somebody_who_watches(setting_up: Path) -> None:
    """On a terminal the long steps are not quiet: with -q pip draws no bar, whatever --progress-bar says."""
    pty = pytest.importorskip("pty", reason="terminals are made this way on Unix only")
    ours, theirs = pty.openpty()
    env = {"PATH": f"{setting_up / 'bin'}:/usr/bin:/bin"}
    with os.fdopen(ours, "rb"):
        done = subprocess.run(
            ["bash", "scripts/setup.sh"], cwd=setting_up, env=env, stdout=theirs, timeout=60
        )
        os.close(theirs)
    assert done.returncode == 0
    _, *long = (setting_up / "asked.txt").read_text().splitlines()
    assert len(long) == 2 and "torch==" in long[0]
    assert not any(re.search(r" -q|--quiet|--progress-bar off", line) for line in long)
