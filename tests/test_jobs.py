"""The jobs: uv reads their inline metadata and runs them, hf takes the lines of the guide, and a job whose result
could not be pushed (no token, a wrong one, no Hub) stops in one sentence before it costs anything.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]
JOBS = sorted((ROOT / "scripts" / "jobs").glob("*.py"))
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
ASKED = {
    "precompute": ["--dataset", "reviews.csv", "--methods", "alti"],
    "evaluate": ["--suite", "sentiment", "--limit", "5"],
    "papers": ["--paper", "globenc", "--limit", "5"],
}
SAID = {
    "precompute": "ctxmix precompute --dataset reviews.csv --methods alti --out maps\nctxmix push maps me/it\n",
    "evaluate": "ctxmix evaluate --suite sentiment --limit 5 --out evidence --to-hub me/it\n",
    "papers": "ctxmix papers --paper globenc --limit 5 --out papers\nupload papers to me/it\n",
}


def metadata(text: str) -> str:
    """The block of PEP 723, by the pattern the PEP gives."""
    pattern = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
    (found,) = [m for m in re.finditer(pattern, text) if m["type"] == "script"]
    return "".join(line[2:] or "\n" for line in found["content"].splitlines(keepends=True))


def uv(path: Path, *words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`uv run` in this environment: the metadata is read, but nothing is installed."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (extra test)")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder), "UV_OFFLINE": "1", **env}
    command = [found, "run", "--no-project", "--active", "--python", sys.executable, "python"]
    return subprocess.run(
        [*command, str(path), *words],
        cwd=folder,
        env={**kept, "VIRTUAL_ENV": sys.prefix, **settings},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_inline_metadata_names_this_package(path: Path) -> None:
    block = metadata(path.read_text(encoding="utf-8"))
    assert 'requires-python = ">=3.10"' in block and 'requires-python = ">=3.10"' in PROJECT
    (extras,) = re.findall(r'dependencies = \["ctxmix-hf\[([\w,]+)\]"\]', block)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", PROJECT, flags=re.MULTILINE), extra


def test_uv_reads_the_metadata(tmp_path: Path) -> None:
    """uv itself resolves from the block: offline it fails on the package the block names, not on the block."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (extra test)")
    for path in JOBS:
        done = subprocess.run(
            [
                found,
                "run",
                "--offline",
                "--no-index",
                "--python",
                sys.executable,
                str(path),
                "--help",
            ],
            cwd=tmp_path,
            env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode != 0 and "ctxmix-hf" in done.stderr, done.stderr


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_dry_run_says_what_would_be_done(path: Path, tmp_path: Path) -> None:
    words = [*ASKED[path.stem], "--repo", "me/it"]
    done = uv(path, *words, "--dry-run", folder=tmp_path, HF_TOKEN="hf_none")
    assert done.returncode == 0 and done.stdout == SAID[path.stem], done.stderr
    assert not (tmp_path / "maps").exists()
    poor = uv(path, *words, folder=tmp_path)
    assert poor.returncode == 1 and "there is no Hub token" in poor.stderr
    assert poor.stderr.count("\n") == 1
    wrong = uv(path, *ASKED[path.stem], "--mthods", "alti", "--dry-run", folder=tmp_path)
    assert wrong.returncode == 2 and "--mthods" in wrong.stderr


# ---- uv, as the guide calls it ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of our name that holds only the way to this checkout and its environment."""
    folder = tmp_path_factory.mktemp("wheels")
    about = f"ctxmix_hf-{cm.__version__}.dist-info"
    extras = re.findall(r"^(\w+) = \[", PROJECT.partition("optional-dependencies]")[2], re.M)
    lines = ["Metadata-Version: 2.1", "Name: ctxmix-hf", f"Version: {cm.__version__}"]
    held = {
        "ctxmix_checkout.pth": f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n",
        f"{about}/METADATA": "\n".join([*lines, *(f"Provides-Extra: {e}" for e in extras), ""]),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    held[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*held, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"ctxmix_hf-{cm.__version__}-py3-none-any.whl", "w") as wheel:
        for name, text in held.items():
            wheel.writestr(name, text)
    return folder


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_uv_installs_what_the_metadata_names_and_runs_the_file(
    path: Path, wheels: Path, tmp_path: Path
) -> None:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (extra test)")
    where = ["--offline", "--no-index", "--find-links", str(wheels), "--python", sys.executable]
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "HF_HUB_OFFLINE")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    done = subprocess.run(
        [found, "run", *where, str(path), *ASKED[path.stem], "--repo", "me/it", "--dry-run"],
        cwd=tmp_path,
        env={**kept, "UV_CACHE_DIR": str(tmp_path / "cache"), "HF_TOKEN": "hf_none"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout == SAID[path.stem], done.stderr
    assert "Installed 1 package" in done.stderr  # it came by the metadata


# ---- Hugging Face Jobs ------------------------------------------------------------------------------------------
def on_jobs() -> list[list[str]]:
    """Every `hf jobs uv run` line of the guide and of the files themselves, as words."""
    texts = [(ROOT / "docs" / "scale.md").read_text(encoding="utf-8")]
    texts += [path.read_text(encoding="utf-8") for path in JOBS]
    joined = re.sub(r"\\+\n", " ", "\n".join(texts))
    return [shlex.split(line) for line in re.findall(r"^hf jobs uv run .+$", joined, re.M)]


def test_each_job_has_a_line_for_hugging_face_jobs() -> None:
    held = {word for words in on_jobs() for word in words if word.startswith("scripts/jobs/")}
    assert held == {f"scripts/jobs/{path.name}" for path in JOBS}


@pytest.mark.parametrize("words", on_jobs(), ids=lambda words: " ".join(words)[15:60])
def test_hf_and_the_job_take_the_line(words: list[str], tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "hf"
    listed = ["jobs", "uv", "run", "--help"]
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
        "HOME": str(tmp_path),
        "HF_TOKEN": "hf_none",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True
        )

    offered = run(str(program), *listed) if program.exists() else None
    if offered is None or "--dry-run" not in offered.stdout:
        pytest.skip("this huggingface_hub has no hf jobs uv run --dry-run")
    done = run(str(program), "jobs", "uv", "run", "--dry-run", *words[4:])
    assert done.returncode == 0 and "Job not submitted" in done.stdout, done.stderr
    script, rest = (
        text.strip() for text in re.findall(r"^  (?:script|args) (.+)$", done.stdout, re.M)
    )
    assert "HF_TOKEN" in done.stdout and "hf_none" not in done.stdout
    if "--flavor" in words:  # hf takes any word here; the help lists those there are
        flavor = words[words.index("--flavor") + 1]
        assert flavor in re.split(r"\W*[|\[\]]\W*", re.sub(r"\s", "", offered.stdout)), flavor
    done = run(script, *shlex.split(rest), "--dry-run")
    assert done.returncode == 0 and done.stdout.startswith(f"ctxmix {Path(script).stem} ")


# ---- pushing ----------------------------------------------------------------------------------------------------
SMALLEST = {
    "precompute": ["--dataset", "reviews.csv", "--text-column", "review", "--methods", "attention"],
    "evaluate": ["--suite", "faithfulness", "--methods", "attention", "--limit", "2"],
    "papers": ["--paper", "globenc", "--item", "Table 1", "--limit", "2"],
}
MADE = {
    "precompute": "matrices/attention/shard-00000.safetensors",
    "evaluate": "faithfulness.csv",
    "papers": "papers.md",
}


def job(path: Path, *words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "reviews.csv").write_text("review\nA fine film.\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, str(path), *SMALLEST[path.stem], *words],
        cwd=folder,
        env={**kept, **settings, **env},
        capture_output=True,
        text=True,
        timeout=240,
    )


def stopped_early(done: subprocess.CompletedProcess[str], folder: Path, reason: str) -> None:
    """One sentence, and nothing computed."""
    assert done.returncode in (1, 2), done.stderr
    assert reason in done.stderr and "me/it" in done.stderr and "check" in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n"), done.stderr
    assert {path.name for path in folder.iterdir()} <= {"reviews.csv", "home"}


@pytest.fixture
def server(tmp_path: Path) -> Any:
    pytest.importorskip("uvicorn", reason="the loopback Hub needs the demo extra")
    from tests.hub.loopback import LoopbackHub

    with LoopbackHub(tmp_path / "server") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_without_a_hub_a_job_stops_before_it_computes(path: Path, folder: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    closed = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_TOKEN": "hf_none"}
    done = job(path, "--repo", "me/it", folder=folder, **closed)
    stopped_early(done, folder, "refused")


@pytest.mark.parametrize(
    ("failing", "reason"),
    [("", "the Hub refused the token (401)"), ("write", "the token may not do this (403)")],
    ids=["a wrong token", "a token that may only read"],
)
def test_with_the_wrong_token_a_job_stops_before_it_computes(
    failing: str, reason: str, folder: Path, server: Any
) -> None:
    if failing:
        server.fail_next(403, f"/auth-check/{failing}")
    token = server.token if failing else "hf_wrongwrongwrong"
    path = ROOT / "scripts" / "jobs" / "papers.py"
    hub = {"HF_ENDPOINT": server.url, "HF_TOKEN": token}
    done = job(path, "--repo", "me/it", folder=folder, **hub)
    stopped_early(done, folder, reason)
    assert token not in done.stderr


@pytest.mark.parametrize(
    "name",
    ["papers", *(pytest.param(n, marks=pytest.mark.slow) for n in ("evaluate", "precompute"))],
)
def test_a_job_pushes_what_it_made_and_keeps_it_where_it_was_told(
    name: str, folder: Path, server: Any
) -> None:
    hub = {"HF_ENDPOINT": server.url, "HF_TOKEN": server.token}
    path = ROOT / "scripts" / "jobs" / f"{name}.py"
    done = job(path, "--repo", f"{server.user}/it", "--out", "kept", folder=folder, **hub)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "kept" / MADE[name]).exists() and "--out kept" in done.stdout
    pushed = server.repos["dataset", f"{server.user}/it"].at("main").files
    assert MADE[name] in pushed, sorted(pushed)


def test_asking_the_hub_loads_no_torch() -> None:
    """`ctxmix precompute` sets its threads before torch is there, and a dry run is quick."""
    code = "import ctxmix_hf.hub.answers, sys; sys.exit('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0


def test_a_repository_is_named_in_one_way(folder: Path) -> None:
    path = ROOT / "scripts" / "jobs" / "evaluate.py"
    done = job(path, "--to-hub", "me/it", "--dry-run", folder=folder, HF_TOKEN="hf_none")
    assert done.returncode == 1 and done.stdout == ""
    assert "--repo" in done.stderr and done.stderr.count("\n") == 1


def test_the_guide_shows_the_commands() -> None:
    guide = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for path in JOBS:
        assert f"uv run scripts/jobs/{path.name}" in guide
    assert "hf jobs uv run" in guide
