"""Dead links: relative links and pictures in the Markdown of the repository lead to files, anchors to headings.

`python scripts/links.py` prints them and ends with exit code 1; `tests/test_project.py` runs it.
Links to other hosts are not followed: tests run without a network.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]


def pages(root: Path = ROOT) -> list[Path]:
    """Markdown that git knows of (without git: all of it)."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md", "*.txt"]
    done = subprocess.run(asked, cwd=root, capture_output=True, text=True)
    names = done.stdout.split("\0") if done.returncode == 0 and done.stdout else []
    found = [root / name for name in names if name] or sorted(root.rglob("*.md"))
    return [
        path
        for path in found
        if path.is_file() and (path.suffix == ".md" or path.name == "llms.txt")
    ]


def prose(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda match: match.group().replace("](", "] ("), text)


def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub and mkdocs make them."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        found |= {re.sub(r"\s", "-", plain), re.sub(r"[\s-]+", "-", plain)}
    return found


def generated(path: Path, root: Path) -> bool:
    """A page that the site makes of the registry."""
    folder = root / "docs" / "methods"
    return path.parent == folder and path.stem in {info.name for info in cm.list_methods()}


def dead(root: Path = ROOT) -> list[str]:
    """One line per link that leads nowhere."""
    found = []
    for page in pages(root):
        for link in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            where, _, anchor = link.partition("#")
            target = (page.parent / where).resolve() if where else page
            known = target.exists() or generated(target, root)
            here = target.suffix == ".md" and target.exists()
            if not known or (anchor and here and anchor not in anchors(target)):
                found.append(f"{page.relative_to(root)}: {link}")
    return found


if __name__ == "__main__":
    lines = dead()
    print("\n".join(lines) or "no dead links")
    sys.exit(1 if lines else 0)
