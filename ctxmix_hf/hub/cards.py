"""Cards for datasets of maps, instrumented models and Spaces: the templates of hub_cards/, filled
and rendered by huggingface_hub.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import (
    DatasetCard,
    DatasetCardData,
    ModelCard,
    ModelCardData,
    SpaceCard,
    SpaceCardData,
)

from ctxmix_hf.addresses import REPOSITORY
from ctxmix_hf.errors import StoreError
from ctxmix_hf.heads import auto_class
from ctxmix_hf.hub.folders import examples_file
from ctxmix_hf.hub.manifest import Manifest
from ctxmix_hf.recipes import MethodInfo, method_infos, plain_name

MARK = "<!-- made by ctxmix_hf;"
TAGS = ["context-mixing", "interpretability", "attribution", "ctxmix_hf"]
CITATIONS = (
    "Samira Abnar and Willem Zuidema. Quantifying Attention Flow in Transformers. ACL 2020. "
    "https://arxiv.org/abs/2005.00928",
    "Gino Brunner et al. On Identifiability in Transformers. ICLR 2020. https://arxiv.org/abs/1908.04211",
    "Goro Kobayashi et al. Attention is Not Only a Weight: Analyzing Transformers with Vector Norms. EMNLP 2020; "
    "Incorporating Residual and Normalization Layers into Analysis of Masked Language Models. EMNLP 2021. "
    "https://arxiv.org/abs/2004.10102, https://arxiv.org/abs/2109.07152",
    "Ali Modarressi et al. GlobEnc: Quantifying Global Token Attribution by Incorporating the Whole Encoder Layer in "
    "Transformers. NAACL 2022. https://arxiv.org/abs/2205.03286",
    "Javier Ferrando, Gerard I. Gállego and Marta R. Costa-jussà. Measuring the Mixing of "
    "Contextual Information in the "
    "Transformer. EMNLP 2022. https://arxiv.org/abs/2203.04212",
    "Hosein Mohebbi et al. Quantifying Context Mixing in Transformers. EACL 2023. https://arxiv.org/abs/2301.12971",
)


def template(name: str) -> str:
    """A template of hub_cards/: packed beside the library in a wheel, at the top of the repository in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "hub_cards", package.parent / "hub_cards"):
        if (folder / name).is_file():
            return (folder / name).read_text("utf-8")
    raise StoreError(f"The card template {name} is missing from this installation.")


def method_rows(
    wanted: dict[str, tuple[dict[str, Any], str]], measured: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What a card says of each method: the registry's words, its options and aggregation, and what was measured."""
    infos = {info.name: info for info in method_infos()}
    rows = []
    for key, (options, aggregation) in wanted.items():
        info: MethodInfo | None = infos.get(plain_name(key).partition("+")[0].strip())
        words = (
            info.__dict__
            if info is not None
            else dict.fromkeys(
                ("summary", "paper", "equation", "cost", "covers", "leaves_out"), "-"
            )
        )
        rows.append(
            {
                **words,
                "key": key,
                "options": options,
                "aggregation": aggregation,
                "measured": (measured or {}).get(key),
            }
        )
    return rows


def dataset_card(
    manifest: Manifest,
    repo_id: str,
    examples: int,
    measured: dict[str, Any],
    exports: list[Path],
    license: str = "unknown",
) -> str:
    """The card of a store. Its YAML names the examples files, so that `load_dataset` and the viewer read those."""
    origin = manifest.origin
    configs = _configs(manifest, exports)
    data = DatasetCardData(
        license=license,
        tags=TAGS,
        pretty_name=f"Context mixing maps of {origin.get('model_id')}",
        configs=configs if manifest.splits else None,
    )
    rows = method_rows(
        {key: (entry.options, entry.aggregation) for key, entry in manifest.methods.items()},
        measured,
    )
    return str(
        DatasetCard.from_template(
            data,
            template_str=template("dataset_card.md.jinja"),
            repository=REPOSITORY,
            repo_id=repo_id,
            examples=examples,
            splits=", ".join(manifest.splits),
            methods=rows,
            citations=CITATIONS,
            license=license,
            weights=manifest.model.get("weights"),
            tokenizer=manifest.tokenizer,
            model_dtype=manifest.model.get("dtype"),
            dtype=manifest.dtype,
            fingerprint=manifest.fingerprint,
            model_id=origin.get("model_id"),
            model_class=origin.get("model_class"),
            revision=origin.get("revision"),
            versions=origin.get("versions") or {},
        )
    )


def _configs(manifest: Manifest, exports: list[Path]) -> list[dict[str, Any]]:
    """The examples, and each exported method; all in one format, since `datasets` reads a
    repository with one reader.
    """
    found: dict[str, dict[str, str]] = {
        "examples": {split: examples_file(split) for split in manifest.splits}
    }
    for path in exports:
        if found.get(path.parent.name, {}).get(path.stem, "").endswith(".jsonl"):
            found[path.parent.name].pop(path.stem)
        found.setdefault(path.parent.name, {})[path.stem] = (
            f"parquet/{path.parent.name}/{path.name}"
        )
    configs = [
        _config("default" if name == "examples" else name, paths) for name, paths in found.items()
    ]
    configs[0]["default"] = True
    return configs


def _config(name: str, paths: dict[str, str]) -> dict[str, Any]:
    return {
        "config_name": name,
        "data_files": [{"split": split, "path": path} for split, path in paths.items()],
    }


def model_card(
    pointer: dict[str, Any], repo_id: str, methods: list[dict[str, Any]], license: str | None = None
) -> str:
    """The card of an instrumented model."""
    data = ModelCardData(
        base_model=pointer["base_model"] if pointer["revision"] else None,
        license=license,
        library_name="ctxmix_hf",
        tags=TAGS,
    )
    names = ", ".join(row["key"] for row in methods) or "none: name them in the call"
    return str(
        ModelCard.from_template(
            data,
            template_str=template("model_card.md.jinja"),
            repository=REPOSITORY,
            repo_id=repo_id,
            methods=methods,
            citations=CITATIONS,
            license=license,
            method_names=names,
            auto_class=auto_class(pointer["model_class"]),
            base_model=pointer["base_model"],
            revision=pointer["revision"],
            model_class=pointer["model_class"],
            include_weights=pointer["revision"] is None,
            versions=pointer["versions"],
        )
    )


def space_card(
    title: str = "Context mixing",
    license: str = "apache-2.0",
    sdk_version: str | None = None,
    app_file: str = "app.py",
    **fields: Any,
) -> str:
    """The README of a Space: its YAML header and what it shows. `fields` are more keys of the header."""
    data = SpaceCardData(
        title=title,
        emoji="🔎",
        colorFrom="indigo",
        colorTo="yellow",
        sdk="gradio",
        sdk_version=sdk_version,
        app_file=app_file,
        license=license,
        tags=TAGS,
        **fields,
    )
    wanted = {info.name: (info.options, "") for info in method_infos()}
    return str(
        SpaceCard.from_template(
            data,
            template_str=template("space_card.md.jinja"),
            repository=REPOSITORY,
            title=title,
            methods=method_rows(wanted),
            citations=CITATIONS,
            license=license,
        )
    )


def new_card(path: Path, make: Callable[[], str]) -> str | None:
    """A card to put in place of the one that is there; None where people changed that one."""
    return (
        make() if not path.exists() or MARK in path.read_text("utf-8", errors="replace") else None
    )
