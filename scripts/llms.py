"""llms.txt: the documentation as a list of links for language models, read off mkdocs.yml and the pages themselves.

`python scripts/llms.py` rewrites it; `tests/test_project.py` fails if it is not up to date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
LONGEST = 200  # characters of a page's description


def first_sentence(page: str) -> str:
    """Of the first paragraph that is prose."""
    body = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", body):
        text = " ".join(block.split())
        if text and not re.match(r"[#|!<:\-*\d]|---", text):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
            sentence = re.split(r"(?<=[.?:])\s", text)[0].rstrip(":")
            return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 3]}..."
    return ""


def sections(nav: list[Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(section, [(title, page)]) in the site's order; pages without a section come first."""
    loose: list[tuple[str, str]] = []
    found: list[tuple[str, list[tuple[str, str]]]] = [("Documentation", loose)]
    for item in nav:
        ((title, value),) = item.items()
        if isinstance(value, str):
            loose.append((title, value))
            continue
        pages = [
            next(iter(one.items())) if isinstance(one, dict) else (title, one) for one in value
        ]
        found.append((title, pages))
    return found


def text() -> str:
    """The whole file."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for title, pages in sections(config["nav"]):
        lines += [f"## {title}", ""]
        for name, path in pages:
            about = first_sentence((ROOT / "docs" / path).read_text(encoding="utf-8"))
            lines.append(f"- [{name}](docs/{path})" + (f": {about}" if about else ""))
        lines.append("")
    lines += [
        "## Optional",
        "",
        "- [README](README.md): everything on one page, with the tables of methods and architectures",
        "- [For assistants that change the code](AGENTS.md): build, test one thing, add a method",
        "- [Changes](CHANGELOG.md)",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "llms.txt").write_text(text(), encoding="utf-8")
