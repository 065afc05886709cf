"""What people install: the wheel, made from the sdist, in an environment that does not know this checkout.

The heavy packages are those of the running environment (a line in a .pth file), so nothing is
downloaded; an editable install there stays asleep, because .pth files are read in the new
environment's own folder only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from ctxmix_hf.addresses import PROJECT_URLS, REPOSITORY
from ctxmix_hf.cli.parser import COMMANDS

ROOT = Path(__file__).parents[1]
PACKED = ("ctxmix_hf", "hub_cards", "tests", "scripts", ".ci", ".github")  # what tests read, too
pytestmark = pytest.mark.xdist_group("wheel")


def files(*folders: str) -> list[str]:
    """Of the working tree, as git would commit it (without git: all of them)."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    found = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [str(path.relative_to(ROOT)) for path in found]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was made of it."""
    for package in ("build", "setuptools"):
        pytest.importorskip(package, reason="the test extra is not installed")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in [
        *files(*PACKED),
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
    ]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)]
    done = subprocess.run(
        command, cwd=source, env=outside(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return made


def outside(**more: str) -> dict[str, str]:
    """An environment in which nothing points to this checkout."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FORCE_COLOR")
    }
    return {
        **kept,
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        **more,
    }


def test_wheel_and_sdist_hold_every_file(built: Path) -> None:
    wanted = {
        name.replace("hub_cards/", "ctxmix_hf/hub_cards/")
        if name.startswith("hub_cards/")
        else name
        for name in files("ctxmix_hf", "hub_cards")
    }
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert set(files(*PACKED)) <= packed


def test_metadata_is_fit_for_the_package_index(built: Path) -> None:
    """Addresses, and pictures and links that work where the repository is not around them."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        held = Parser().parsestr(wheel.read(name).decode())
        commands = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    urls = dict(line.split(", ", 1) for line in held.get_all("Project-URL", []))
    assert urls == PROJECT_URLS
    assert held["Description-Content-Type"] == "text/markdown"
    text = held.get_payload()
    words = r"(?:[^\[\]]|\[[^\]]*\])*"  # an alt text may say [MASK]
    pictures = re.findall(rf"!\[{words}\]\(([^)]+)\)", text)
    assert len(pictures) >= 3
    for link in [*pictures, *re.findall(rf"(?<!!)\[{words}\]\(([^)]+)\)", text)]:
        assert link.startswith("https://"), link
    assert f"{REPOSITORY}/raw/main/docs/images/first_map.png" in pictures
    assert "Programming Language :: Python :: 3.13" in held.get_all("Classifier", [])
    assert "mcp" in held.get_all("Provides-Extra", [])
    for command in ("ctxmix", "hf-ctxmix"):  # the second is what `hf ctxmix` looks for
        assert f"\n{command} = ctxmix_hf.cli:main\n" in commands


# ---- installed --------------------------------------------------------------------------------------------------
class Installed:
    """The wheel in an environment of its own."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        self.python = folder / "bin" / "python"

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.work,
            env=outside(**env),
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

    def ctxmix(self, *words: str, **env: str) -> str:
        done = self.run(str(self.folder / "bin" / "ctxmix"), *words, **env)
        assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-3000:])
        return done.stdout


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder, work = tmp_path_factory.mktemp("fresh") / "venv", tmp_path_factory.mktemp("work")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, env=outside()
    )
    made = Installed(folder, work)
    wheel = str(next(built.glob("*.whl")))
    done = made.run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(made.python),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
    )
    assert done.returncode == 0, done.stderr
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "heavy.pth").write_text(
        sysconfig.get_paths()["purelib"] + "\n"
    )  # after the install: pip must not see ours there
    done = made.run(str(made.python), "-c", "import ctxmix_hf, torch; print(ctxmix_hf.__file__)")
    assert done.stdout.startswith(str(site)), (done.stdout, done.stderr)
    return made


EXPLAIN = ["explain", "The keys [MASK] here."]
RUNS: dict[str, list[list[str]]] = {
    "ledger": [["ledger", "The keys [MASK] here.", "--out", "l.html"]],
    "similarity": [["similarity", "The keys are old.", "Old keys."]],
    "rank": [["rank", "--query", "The keys are old.", "docs.txt"]],
    "explain": [
        EXPLAIN,
        [*EXPLAIN, "--layer", "2", "--json"],
        [*EXPLAIN, "--out", "m.html"],
        [*EXPLAIN, "--out", "m.png"],
        [
            "explain",
            "A fine film.",
            "--model",
            "ctxmix/sentiment",
            "--method",
            "integrated_gradients",
        ],
    ],
    "compare": [
        ["compare", "The key [MASK].", "The keys [MASK].", "--out", "gap.html"],
        ["compare", "--methods", "attention,alti"],
    ],
    "methods": [["methods"], ["methods", "alti", "--json"]],
    "models": [["models"], ["models", "bert", "--json"]],
    "doctor": [["doctor"], ["doctor", "ctxmix/sentiment", "--json"]],
    "evaluate": [
        ["evaluate", "--suite", "faithfulness", "--methods", "alti", "--limit", "2"],
        [
            "evaluate",
            "--suite",
            "erasure",
            "--model",
            "ctxmix/sentiment",
            "--methods",
            "alti",
            "--limit",
            "2",
            "--json",
        ],
    ],
    "papers": [
        ["papers", "--paper", "globenc", "--item", "Table 1", "--limit", "2", "--out", "papers"]
    ],
    "tune": [["tune", "--epochs", "1", "--limit", "4", "--out", "tuned"]],
    "bench": [
        ["bench", "--methods", "attention", "--tokens", "8", "--batch", "1", "--repeat", "1"]
    ],
    "certify": [["certify", "ctxmix/agreement", "--out", "certificate.json"]],
    "completion": [["completion", shell] for shell in ("bash", "zsh", "fish")],
}
# tests of their own: below, and in tests/assistant
ELSEWHERE = {"precompute", "push", "pull", "demo", "mcp"}


def test_no_command_is_forgotten() -> None:
    assert set(RUNS) | ELSEWHERE == {name for name, *_ in COMMANDS}


@pytest.mark.slow
def test_help_of_every_command(installed: Installed) -> None:
    said = installed.ctxmix("--version")
    assert said.startswith("ctxmix ")
    assert installed.run(str(installed.folder / "bin" / "hf-ctxmix"), "--version").stdout == said
    for name, *_ in COMMANDS:
        assert "examples:" in installed.ctxmix(name, "--help")


@pytest.mark.slow
def test_commands_run(installed: Installed) -> None:
    """One through the installed script, all of them in one process: importing torch is what takes the time."""
    assert "alti" in installed.ctxmix(*EXPLAIN)
    (installed.work / "docs.txt").write_text("Old keys.\nA fine film.\n")
    runs = [words for name in RUNS for words in RUNS[name]]
    code = (
        "import json, sys\nfrom ctxmix_hf.cli import main\nfailed = [words for words in "
        "json.loads(sys.argv[1]) if main(words) != 0]\n"
    )
    done = installed.run(
        str(installed.python),
        "-c",
        f"{code}sys.exit(f'failed: {{failed}}' if failed else 0)",
        json.dumps(runs),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for path in (
        "m.html",
        "m.png",
        "gap.html",
        "ctxmix-faithfulness/faithfulness.csv",
        "ctxmix-faithfulness/faithfulness.json",
        "papers/papers.json",
        "papers/papers.md",
    ):
        assert (installed.work / path).stat().st_size > 50


@pytest.mark.slow
def test_precompute_push_and_pull(installed: Installed, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the loopback Hub needs the demo extra")
    from tests.hub.loopback import LoopbackHub

    (tmp_path / "data.csv").write_text("review\nA fine film.\nThe keys [MASK] here.\n")
    maps = str(tmp_path / "maps")
    installed.ctxmix(
        "precompute",
        "--dataset",
        str(tmp_path / "data.csv"),
        "--text-column",
        "review",
        "--methods",
        "alti",
        "--out",
        maps,
    )
    with LoopbackHub(tmp_path / "hub") as server:
        hub = {
            "HF_ENDPOINT": server.url,
            "HF_TOKEN": server.token,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        installed.ctxmix("push", maps, f"{server.user}/maps", **hub)
        assert "2 examples" in installed.ctxmix(
            "pull", f"{server.user}/maps", "--out", str(tmp_path / "again"), **hub
        )


@pytest.mark.slow
def test_demo_serves(installed: Installed) -> None:
    pytest.importorskip("gradio", reason="the extra [demo] is not installed")
    import urllib.request

    command = [str(installed.folder / "bin" / "ctxmix"), "demo", "--json"]
    process = subprocess.Popen(
        command,
        cwd=installed.work,
        env=outside(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
        with urllib.request.urlopen(url, timeout=60) as page:
            assert b"ctxmixSpace" in page.read()  # the bundled scripts are in it
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    finally:
        process.kill()


# Each bundled file with the call that reads it; "-" is for people and tools, not for the library.
READERS = {
    "architectures.json": "assert len(cm.supported_architectures()) > 200",
    "demo/examples.json": "from ctxmix_hf.demo import examples; assert examples.read()['maps']",
    **{
        f"demo/js/{name}.js": f"from ctxmix_hf.demo import parts; assert {word!r} in parts.assets({{}}).js_on_load"
        for name, word in {
            "address": "function merged",
            "compare": "class Comparison",
            "options": "function settings",
            "page": "window.ctxmixSpace = space",
            "ranks": "function spearman",
            "requests": "class Requests",
            "tour": "function tour",
            "waits": "function wait",
        }.items()
    },
    "demo/page.css": "from ctxmix_hf.demo import parts; assert parts.asset('page.css') in parts.assets({}).value",
    "demo/digits.json": "from ctxmix_hf.demo import pictures; assert pictures.example('digit 4')",
    "demo/preview.png": "from ctxmix_hf.demo import door; assert door.preview().startswith(b'\\x89PNG')",
    "demo/icon.svg": "from ctxmix_hf.demo import parts; assert parts.asset('icon.svg')",
    **{
        f"demo/maps/{file}": "from ctxmix_hf.demo import stores; assert "
        "len(stores.search('ctxmix/library')) >= 30 and stores.map_of('ctxmix/library', 'agreement-01', 'globenc')"
        for file in (
            "ctxmix.json",
            "index.jsonl",
            *(
                f"examples/{split}.jsonl"
                for split in ("agreement", "anaphora", "clause", "determiner")
            ),
            *(
                f"matrices/{method}/shard-00000.safetensors"
                for method in ("alti", "attention_rollout", "globenc", "value_zeroing")
            ),
        )
    },
    **{
        f"models/digits/{file}": "from ctxmix_hf.demo import pictures; "
        "assert pictures.map_of(pictures.example('digit 4'), 'ctxmix/digits', 'attention')[2]"
        for file in ("config.json", "model.safetensors", "preprocessor_config.json")
    },
    "models/digits/training.json": "-",
    "models/digits/README.md": "-",
    "evaluation/examples.jsonl": "from ctxmix_hf.evaluation.data import read_data; assert "
    "len(read_data('agreement').kept) > 5",
    "evaluation/examples_sentiment.jsonl": "from ctxmix_hf.evaluation.data import read_data; "
    "assert len(read_data('sentiment').kept) > 5",
    **{
        f"hub_cards/{kind}_card.md.jinja": "from ctxmix_hf.hub import cards; assert "
        f"cards.template('{kind}_card.md.jinja')"
        for kind in ("dataset", "model", "space")
    },
    **{
        f"models/{name}/{file}": f"m = cm.AutoContextMixingModel.from_pretrained('ctxmix/{name}'); "
        f"assert cm.explain(m, 'A fine film.').depth == 6"
        for name in ("agreement", "sentiment")
        for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    },
    "viz/canvas.css": "from ctxmix_hf.viz import canvas; assert '.cmx-stage' in canvas.style()",
    **{
        f"viz/js/{name}.js": f"from ctxmix_hf.viz import canvas; assert {word!r} in canvas.script()"
        for name, word in {
            "colours": "function palette",
            "controls": "function controls",
            "draw": "function drawMap",
            "finding": "function reach",
            "layout": "function thinned",
            "main": "window.ctxmix = {",
            "model": "class Model",
            "numbers": "function halves",
            "paths": "function strongest",
            "pens": "class SvgPen",
            "widget": "class Widget",
        }.items()
    },
    **{
        f"viz/js/{name}.js": f"from ctxmix_hf.viz import canvas; assert {word!r} in canvas.aloud()"
        for name, word in {"alone": "marked();", "marks": "function marked"}.items()
    },
    "models/agreement/heldout.json": "import json; json.loads((home / 'models/agreement/heldout.json').read_text())",
    "models/agreement/README.md": "-",
    "models/sentiment/README.md": "-",
    "py.typed": "-",
}


@pytest.mark.slow
def test_every_bundled_file_is_read(installed: Installed) -> None:
    home = next((installed.folder / "lib").glob("python*/site-packages")) / "ctxmix_hf"
    held = {
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and path.suffix != ".py"
    }
    assert {name for name in held if "__pycache__" not in name} == set(READERS), (
        "name the reader of a new file here"
    )
    calls = dict.fromkeys(call for call in READERS.values() if call != "-")
    code = "\n".join(
        [
            "import pathlib",
            "import ctxmix_hf as cm",
            "home = pathlib.Path(cm.__file__).parent",
            *calls,
            "print('read')",
        ]
    )
    done = installed.run(str(installed.python), "-c", code)
    assert done.stdout.strip() == "read", done.stderr[-3000:]
