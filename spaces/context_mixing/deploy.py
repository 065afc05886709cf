"""Upload the Space: this folder, and the library beside it, to `user/name` on the Hub."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from shutil import copytree, ignore_patterns

from huggingface_hub import HfApi

HERE = Path(__file__).resolve().parent
SKIP = ignore_patterns("__pycache__", "*.pyc", "deploy.py")
NEEDS = (
    "torch",
    "transformers",
    "huggingface_hub",
    "safetensors",
    "numpy",
    "filelock",
    "packaging",
    "tqdm",
    "matplotlib",
    "numba",
)


def requirements() -> str:
    """What ctxmix-hf[demo] asks for, in the versions everything was tested with; gradio comes with
    the Space, in its header's version.
    """
    text = (HERE.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(
        line.split("==") for line in text.splitlines() if "==" in line and not line.startswith("#")
    )
    return "".join(f"{name}=={pinned[name]}\n" for name in NEEDS)


def gather(folder: Path) -> Path:
    """Everything the Space needs in one folder."""
    copytree(HERE, folder, dirs_exist_ok=True, ignore=SKIP)
    copytree(HERE.parents[1] / "ctxmix_hf", folder / "ctxmix_hf", dirs_exist_ok=True, ignore=SKIP)
    (folder / "requirements.txt").write_text(requirements(), encoding="utf-8")
    return folder


def deploy(repo_id: str, private: bool = False, api: HfApi | None = None) -> str:
    """Create the Space if need be and upload; the address of the commit."""
    api = api or HfApi()
    api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        done = api.upload_folder(
            repo_id=repo_id,
            repo_type="space",
            folder_path=gather(Path(folder)),
            commit_message="Deploy context mixing",
        )
    return str(done.commit_url)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repo_id")
    parser.add_argument("--private", action="store_true")
    print(deploy(**vars(parser.parse_args())))
