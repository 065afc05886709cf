"""The documentation is true: it builds without a warning, its code runs, its commands exist, its differences apply.

The blocks of a page share a namespace and run in order in an empty folder, offline; those of hub.md
push to a Hub on the loopback address. A block below `<!-- not run: reason -->` is only read. Lines
that call `ctxmix` must be understood by its parser, and those that are quick and need no network
run. README's other Python blocks run in test_readme.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.cli import main
from ctxmix_hf.cli.parser import build_parser

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
README = (ROOT / "README.md").read_text(encoding="utf-8")
ON_A_HUB = "docs/hub.md"
USER = "tester"  # of the Hub on the loopback address
MOST_NOT_RUN = 8  # blocks that need an account, a server or minutes


def load_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "scripts" / "docs_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()


class Block(NamedTuple):
    language: str
    code: str
    run: bool


def blocks(page: str, *languages: str) -> list[Block]:
    """Fenced blocks of these languages, in order."""
    pattern = r"(<!-- not run: [^>]+ -->\n)?^```(\w+)\n(.*?)^```"
    found = [
        Block(lang, code, not mark)
        for mark, lang, code in re.findall(pattern, page, flags=re.DOTALL | re.MULTILINE)
    ]
    return [block for block in found if block.language in languages]


def commands(page: str) -> list[tuple[list[str], bool]]:
    """Lines of bash blocks that call `ctxmix`, as arguments, and whether they are to be run."""
    found = []
    for block in blocks(page, "bash"):
        for line in block.code.replace("\\\n", " ").splitlines():
            call = re.match(r"(?:\w+=\S* )*ctxmix (.*)", line)  # not inside a longer command
            if call and "..." not in line:
                found.append((shlex.split(call.group(1), comments=True), block.run))
    return found


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's code runs; what it changed for the whole process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    yield tmp_path
    torch._dynamo.reset()


def run(page: str, name: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if block.run:
            exec(compile(block.code, name, "exec"), space)


@pytest.mark.parametrize(
    "name", [name for name in PAGES if name != ON_A_HUB and blocks(PAGES[name], "python")]
)
def test_python_of_a_page_runs(name: str, empty_folder: Path) -> None:
    run(PAGES[name], name)


@pytest.mark.parametrize("info", cm.list_methods(), ids=lambda info: info.name)
def test_example_of_a_method_page_runs(info: Any, empty_folder: Path) -> None:
    page = hooks.method_page(info)
    assert info.equation in page and len(blocks(page, "python")) == 1
    run(page, info.name)


@pytest.mark.parametrize(
    ("page", "repos"), [(PAGES[ON_A_HUB], 2), (README, 1)], ids=["hub.md", "README.md"]
)
def test_hub_code_runs_on_a_hub(page: str, repos: int, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the loopback Hub needs the demo extra")
    from tests.hub.loopback import LoopbackHub

    wanted = [
        block.code
        for block in blocks(page, "python")
        if block.run and (page is not README or "push_to_hub(" in block.code)
    ]
    code = "\n".join(wanted).replace('"me/', f'"{USER}/')
    with LoopbackHub(tmp_path / "server") as server:
        work = tmp_path / "work"
        work.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=work,
            env=hub_environment(server, tmp_path),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(server.repos) == repos


def hub_environment(server: Any, folder: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    return kept | {
        "HF_ENDPOINT": server.url,
        "HF_TOKEN": server.token,
        "HF_HOME": str(folder / "hf_home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
    }


# ---- the command line -------------------------------------------------------------------------------------------
EVERYWHERE = {"README.md": README, **PAGES}


@pytest.mark.parametrize("name", [name for name, page in EVERYWHERE.items() if commands(page)])
def test_commands_are_understood(name: str) -> None:
    for words, _ in commands(EVERYWHERE[name]):
        build_parser().parse_args(words)


def offline(words: list[str]) -> bool:
    """Quick and without a network: no Hub, no server, no corpus, no other model than the bundled ones."""
    named = [word for flag, word in pairwise(words) if flag in ("--model", "--other-model")]
    named += words[1:2] if words[0] == "doctor" else []
    quick = ("explain", "ledger", "similarity", "compare", "methods", "models", "doctor")
    return words[0] in quick and all(name.startswith("ctxmix/") for name in named)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, page in EVERYWHERE.items()
        if any(offline(words) for words, _ in commands(page))
    ],
)
def test_offline_commands_run(
    name: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, wanted in commands(EVERYWHERE[name]):
        if wanted and offline(words):
            assert main(words) == 0, (words, capsys.readouterr())


# ---- the site ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the docs extra is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-3000:]
    return folder


def test_every_method_has_a_page_that_can_be_reached(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    for info in cm.list_methods():
        assert f'href="methods/{info.name}.html"' in start, info.name
        assert (site / "methods" / f"{info.name}.html").exists()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in set(cm.__all__) - {"__version__"}:
        assert f'id="ctxmix_hf.{name}"' in page, name


def test_site_needs_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(?:https?:)?//([^/"]+)',
            path.read_text(encoding="utf-8"),
        )
        assert not fetched, (path.name, fetched)


class Page(HTMLParser):
    """What a built page links to, and what in it can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = {"", "__top"}  # `#` and, in the theme, the top of the page
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value or "")


def dead(folder: Path) -> list[str]:
    """Relative links of a built site that lead to no file, or to no place in it."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        start = folder if path.name == "404.html" else path.parent  # that one is shown anywhere
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            name = unquote(parts.path)
            whole = folder / name.lstrip("/") if name.startswith("/") else start / name
            to = Path(os.path.normpath(whole)) if name else path
            to = to / "index.html" if to.is_dir() else to
            if not to.is_file() or (to in pages and unquote(parts.fragment) not in pages[to].ids):
                found.append(f"{path.relative_to(folder)}: {link}")
    return found


def test_no_link_of_the_site_is_dead(site: Path) -> None:
    assert sum(len(Page(path).links) for path in site.rglob("*.html")) > 1000
    assert dead(site) == []


def test_a_dead_link_of_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "two.html").write_text('<p id="a b"><a href="../one.html#x">up</a>')
    (tmp_path / "one.html").write_text(
        '<a href="deep/two.html#a%20b"></a><a href="deep/two.html#b"></a><img src="gone.png">'
        '<a href="#"></a><a href="https://example.org/gone"></a><a href="mailto:x@example.org"></a>'
    )
    lines = ["deep/two.html: ../one.html#x", "one.html: deep/two.html#b", "one.html: gone.png"]
    assert dead(tmp_path) == lines


def test_tables_are_filled_in(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert "generated:" not in path.read_text(encoding="utf-8"), path.name
    assert "squeezebert" in (site / "architectures.html").read_text(encoding="utf-8")


def test_few_blocks_are_not_run() -> None:
    assert (
        sum(not block.run for page in PAGES.values() for block in blocks(page, "python", "bash"))
        <= MOST_NOT_RUN
    )


def test_pictures_exist() -> None:
    for name, page in PAGES.items():
        for path in re.findall(r"!\[.*?\]\((.*?)\)", page):
            assert (ROOT / name).parent.joinpath(path).stat().st_size > 5000, path


# ---- the differences of adding.md -------------------------------------------------------------------------------
def differences() -> list[str]:
    return [block.code for block in blocks(PAGES["docs/adding.md"], "diff")]


def apply(difference: str, folder: Path, *options: str) -> None:
    command = ["git", "apply", "-C1", "--recount", *options, "-"]
    done = subprocess.run(command, cwd=folder, input=difference, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_added_passes_its_tests(tmp_path: Path) -> None:
    for part in ("ctxmix_hf", "tests", "hub_cards"):
        shutil.copytree(
            ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "golden")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    method, evaluation, file_format, _ = differences()
    for difference in (method, evaluation, file_format):
        apply(difference, tmp_path)
    chosen = [
        "tests/methods/test_longest.py",
        "tests/evaluation/test_spread.py",
        "tests/formats/test_text.py",
        *(
            f"tests/contract/test_methods.py::test_maps[{family}]"
            for family in ("bert", "gpt2", "vit")
        ),
    ]
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "NUMBA_DISABLE_JIT": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *chosen,
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout[-3000:]
    listed = subprocess.run(
        [sys.executable, "-m", "ctxmix_hf", "methods", "longest"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "the longest part takes all" in listed.stdout, listed.stderr


def test_added_architecture_is_what_the_repository_has(tmp_path: Path) -> None:
    for name in re.findall(r"^\+\+\+ b/(.*)$", differences()[-1], flags=re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    apply(differences()[-1], tmp_path, "--reverse")
    apply(differences()[-1], tmp_path)
    for name in re.findall(r"^\+\+\+ b/(.*)$", differences()[-1], flags=re.MULTILINE):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()


EVIDENCE = json.loads(
    (ROOT / "benchmarks" / "results" / "ledger_evidence.json").read_text(encoding="utf-8")
)
CHEAP = ["attention_rollout", "globenc", "alti", "value_zeroing"]  # a few forward passes at most
MAPS = [*CHEAP, "decompx", "norm_ff+rollout"]
THROUGH = "ledger (rule='through')"


def followed(model: str, reference: str = "blank_out") -> dict[str, tuple[float, float, float]]:
    """A method to (mean, low, high) of a model's faithfulness table."""
    rows = EVIDENCE[model]["faithfulness"]["rows"]
    return {
        r["method"]: (r["mean"], r["ci_low"], r["ci_high"])
        for r in rows
        if r["reference"] == reference
    }


def mean_ranks(reference: str) -> dict[str, float]:
    ranks: dict[str, list[int]] = {}
    for model in EVIDENCE:
        found = followed(model, reference)
        for place, name in enumerate(sorted(found, key=lambda n: -found[n][0]), 1):
            ranks.setdefault(name, []).append(place)
    return {name: sum(r) / len(r) for name, r in ranks.items()}


def apart(low: tuple[float, float, float], high: tuple[float, float, float]) -> bool:
    return low[2] < high[1]


def test_the_table_of_beliefs_is_whole() -> None:
    """Every model with its n, every method with an interval: six models, the methods of 2021 to 2024 too."""
    assert len(EVIDENCE) == 6
    text = hooks.believed()
    for model, tables in EVIDENCE.items():
        assert f"{model} (n = {tables['faithfulness']['meta']['sentences']})" in text
    recent = {"decompx", "norm_ff+rollout", "alti_logit", "attention_gradient", THROUGH}
    assert {*MAPS, *recent, "ledger", "integrated_gradients", "random"} <= set(
        mean_ranks("blank_out")
    )
    cells = re.findall(r"-?\d\.\d\d \[-?\d\.\d\d, -?\d\.\d\d\]", text)
    assert len(cells) == 2 * 6 * len(mean_ranks("blank_out"))


def test_what_is_said_of_the_evidence_is_in_it() -> None:
    """docs/choosing.md and docs/evaluation.md: each of their sentences about these numbers."""
    for model in EVIDENCE:
        found = followed(model)
        best = max(found[name][0] for name in (*MAPS, "integrated_gradients"))
        assert (found["ledger"][0] > best) == (model != "antiberty"), model
    antibodies = followed("antiberty")
    assert not apart(antibodies["ledger"], antibodies["integrated_gradients"])
    assert all(antibodies[name][1] < 0 < antibodies[name][2] for name in MAPS)
    assert {THROUGH, "ledger"} == set(
        sorted(mean_ranks("blank_out"), key=mean_ranks("blank_out").get)[:2]
    )
    for model in EVIDENCE:
        found = followed(model)
        assert apart(found["ledger"], found[THROUGH]) == model.startswith("box_"), model
        assert apart(found[THROUGH], found["ledger"]) == (model == "minilm_agreement"), model
    size = mean_ranks("blank_out_abs")
    assert min(size, key=size.get) == "decompx"
    reactions = followed("rxnfp", "blank_out_abs")
    assert apart(reactions["alti"], reactions["decompx"])
    for reference in ("blank_out", "blank_out_abs"):
        ranks = mean_ranks(reference)
        assert min(CHEAP, key=ranks.get) == "alti"
        assert set(sorted(MAPS, key=ranks.get)[-2:]) == {"value_zeroing", "attention_rollout"}
    ahead = [
        m
        for m in EVIDENCE
        if apart(*(followed(m, "blank_out_abs")[n] for n in ("alti", "globenc")))
    ]
    assert ahead == ["minilm_sst2"]
    sentiment = followed("minilm_sst2", "blank_out_abs")
    assert all(apart(sentiment["decompx"], sentiment[n]) for n in ("alti_logit", "norm_ff+rollout"))
    for model, tables in EVIDENCE.items():
        erased = {
            r["method"]: r["comprehensiveness"] for r in tables.get("erasure", {"rows": []})["rows"]
        }
        if erased:
            assert max(CHEAP, key=erased.get) == "alti", model
            asked = ("ledger", THROUGH, "integrated_gradients")
            assert min(erased[n] for n in asked) > max(erased[n] for n in MAPS), model
            assert all(erased[n] > 0.9 * erased["blank_out"] for n in asked), model
    for model in ("box_agreement", "minilm_agreement"):
        rows = EVIDENCE[model]["cue_alignment"]["rows"]
        first = {r["method"]: r["cue_first"] for r in rows if r["layer"] == "input"}
        assert max(first, key=first.get) == "alti_logit"
        assert (first["alti_logit"] - first["ledger"] < 0.01) == (model == "box_agreement")
        assert first["attention_gradient"] == 0
    assert first["ledger"] < first["integrated_gradients"]
    marked = {r["method"]: r for r in EVIDENCE["minilm_sst2"]["plausibility"]["rows"]}
    ledger, gradients = marked["ledger"], marked["integrated_gradients"]
    assert ledger["ci_high"] > gradients["ci_low"] and ledger["ci_low"] < gradients["ci_high"]
