"""The release checklist, as far as a script can tick it: `python scripts/release.py`, exit code 1 if a point is open.

One version everywhere, a changelog section with its date, generated files up to date, no dead links, documentation
that builds without a warning, the schemas that stored files carry, a clean checkout; with `--build` also an sdist and
a wheel whose name has the version.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def versions() -> dict[str, str]:
    """Every place that names the version."""
    places = {
        "pyproject.toml": r'^version = "(.+)"',
        "ctxmix_hf/__init__.py": r'^__version__ = "(.+)"',
        "CITATION.cff": r"^version: (.+)$",
    }
    found = {}
    for name, pattern in places.items():
        match = re.search(pattern, read(name), flags=re.MULTILINE)
        found[name] = match.group(1) if match else "not there"
    return found


def check_versions(version: str) -> str:
    wrong = [f"{name} says {held}" for name, held in versions().items() if held != version]
    return "; ".join(wrong)


def check_changelog(version: str, text: str | None = None) -> str:
    """A section `## VERSION (YYYY-MM-DD)` with something in it, above which nothing is unreleased."""
    text = read("CHANGELOG.md") if text is None else text
    heads = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    if not heads or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heads[0]):
        first = heads[0] if heads else "nothing"
        return f"CHANGELOG.md begins with {first!r}, not with '{version} (YYYY-MM-DD)'"
    section = text.partition(f"## {heads[0]}")[2].partition("\n## ")[0]
    return "" if re.search(r"^- ", section, flags=re.MULTILINE) else f"{heads[0]} is empty"


def check_generated(_: str) -> str:
    stale = []
    if script("tables").rewritten(read("README.md")) != read("README.md"):
        stale.append("README.md (python scripts/tables.py)")
    if script("llms").text() != read("llms.txt"):
        stale.append("llms.txt (python scripts/llms.py)")
    return f"out of date: {', '.join(stale)}" if stale else ""


def check_links(_: str) -> str:
    return "; ".join(script("links").dead())


def check_schemas(_: str) -> str:
    """What files on people's disks carry: a change must be in the changelog under its number."""
    from ctxmix_hf.certifying import SCHEMA as CERTIFICATE
    from ctxmix_hf.formats.reading import VERSION as JSON
    from ctxmix_hf.hub.manifest import SCHEMA as STORE

    print(f"     store schema {STORE}, JSON schema {JSON}, certificate {CERTIFICATE}")
    pages = {"docs/hub.md": ("store", STORE), "docs/exports.md": ("JSON", JSON)}
    missing = [
        f"{page} does not name {kind} schema {number}"
        for page, (kind, number) in pages.items()
        if not re.search(rf"schema\W+(version\W+)?{number}\b", read(page), flags=re.IGNORECASE)
    ]
    return "; ".join(missing)


def check_docs(_: str) -> str:
    """The site builds, and without a warning."""
    if importlib.util.find_spec("mkdocs") is None:
        return "mkdocs is not installed: pip install -e '.[docs]'"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    wrong = [line for line in done.stderr.splitlines() if re.match("WARNING|ERROR", line)]
    failed = "; ".join(wrong) or " ".join(done.stderr.split())[-300:]
    return failed if done.returncode or wrong else ""


def check_clean(_: str) -> str:
    command = ["git", "status", "--porcelain", "-z", "--no-renames"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return f"git does not say: {' '.join(done.stderr.split())}"
    names = [line[3:] for line in done.stdout.split("\0") if line]
    return f"uncommitted: {', '.join(names)}" if names else ""


def check_build(version: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True)
        made = sorted(path.name for path in Path(folder).iterdir())
    wanted = [f"ctxmix_hf-{version}-py3-none-any.whl", f"ctxmix_hf-{version}.tar.gz"]
    if done.returncode == 0 and made == wanted:
        return ""
    why = f": {' '.join((done.stdout + done.stderr).split())[-300:]}" if done.returncode else ""
    return f"built {made}, wanted {wanted}{why}"


CHECKS: dict[str, Callable[[str], str]] = {
    "one version": check_versions,
    "changelog": check_changelog,
    "generated files": check_generated,
    "links": check_links,
    "documentation": check_docs,
    "schemas": check_schemas,
    "clean checkout": check_clean,
}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default=versions()["pyproject.toml"])
    parser.add_argument("--build", action="store_true", help="also build the sdist and the wheel")
    args = parser.parse_args(words)
    checks = {**CHECKS, **({"wheel": check_build} if args.build else {})}
    still = 0
    for name, check in checks.items():
        said = check(args.version)
        still += bool(said)
        print(f"{'open' if said else 'done'} {name}{f': {said}' if said else ''}")
    print("by hand: SLOW=1 bash scripts/test.sh, then tag, then upload the two files and the Space")
    return 1 if still else 0


if __name__ == "__main__":
    sys.exit(main())
