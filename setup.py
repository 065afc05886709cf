"""What pyproject.toml cannot say: the project's addresses, a README whose links work outside the
repository, and hub_cards/ (at the top of the repository, where people look for it) packed into the
wheel as ctxmix_hf/hub_cards/.
"""

import re
import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
ADDRESSES = runpy.run_path(str(HERE / "ctxmix_hf" / "addresses.py"))


class BuildWithCards(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout finds them where they are
            target = Path(self.build_lib) / "ctxmix_hf" / "hub_cards"
            target.mkdir(parents=True, exist_ok=True)
            for path in Path("hub_cards").glob("*.jinja"):
                shutil.copy(path, target / path.name)


def readme() -> str:
    """README.md as the package index shows it: pictures and links are those of the repository."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for mark, way in (("!", "raw"), ("", "blob")):
        words = r"((?:[^\[\]]|\[[^\]]*\])*)"  # which may hold a bracket of their own: [MASK]
        whole = rf"{mark}(?<!!{mark})\[{words}\]\((?!https?://|#)([^)]+)\)"
        there = rf"{mark}[\1]({ADDRESSES['REPOSITORY']}/{way}/main/\2)"
        text = re.sub(whole, there, text)
    return text


setup(
    cmdclass={"build_py": BuildWithCards},
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=ADDRESSES["PROJECT_URLS"],
)
