"""Packs hub_cards/ (at the top of the repository, where people look for it) into the wheel as ctxmix_hf/hub_cards/."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithCards(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout finds them where they are
            target = Path(self.build_lib) / "ctxmix_hf" / "hub_cards"
            target.mkdir(parents=True, exist_ok=True)
            for path in Path("hub_cards").glob("*.jinja"):
                shutil.copy(path, target / path.name)


setup(cmdclass={"build_py": BuildWithCards})
