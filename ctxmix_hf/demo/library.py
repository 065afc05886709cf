"""The library the page opens with: maps of sentences that show something, computed beforehand.

`python -m ctxmix_hf.demo.library` computes it again from the bundled model.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import ctxmix_hf as cm
from ctxmix_hf.bundled import AGREEMENT

NAME = "ctxmix/library"
METHODS = ("alti", "value_zeroing", "globenc", "attention_rollout")
SENTENCES = {
    "agreement": (
        "The books about the boy [MASK] old.",
        "The book about the boys [MASK] old.",
        "The boys near the teacher [MASK] tired.",
        "The boy near the teachers [MASK] tired.",
        "The sisters of the boy [MASK] here.",
        "The sister of the boys [MASK] here.",
        "The waiters near the school [MASK] tired.",
        "The waiter near the schools [MASK] tired.",
        "The apples near the truck [MASK] sweet.",
        "The apple near the trucks [MASK] sweet.",
        "The keys to the cabinet [MASK] on the table.",
        "The key to the cabinets [MASK] on the table.",
    ),
    "clause": (
        "The boys that like the girl [MASK] tired.",
        "The boy that likes the girls [MASK] tired.",
        "The teachers that like the boy [MASK] here.",
        "The teacher that likes the boys [MASK] here.",
        "The guests that like the waiter [MASK] here.",
        "The guest that likes the waiters [MASK] here.",
        "The students that admire the actress [MASK] happy.",
        "The student that admires the actresses [MASK] happy.",
    ),
    "anaphora": (
        "Many girls insulted [MASK].",
        "This girl insulted [MASK].",
        "These boys admired [MASK].",
        "The boy admired [MASK].",
        "All teachers appreciated [MASK].",
        "Some woman appreciated [MASK].",
        "The actresses had bothered [MASK].",
        "The waiter had bothered [MASK].",
    ),
    "determiner": (
        "Carl cures [MASK] horses.",
        "Laura admires [MASK] book.",
        "William bought [MASK] blue apples.",
        "Sarah sells [MASK] old bicycle.",
        "Thomas had hidden [MASK] skirts.",
        "Anne would scan [MASK] brochure.",
    ),
}


def folder() -> Path:
    return Path(str(resources.files("ctxmix_hf") / "demo" / "maps"))


def main() -> None:
    target = folder()
    shutil.rmtree(target, ignore_errors=True)
    model, tokenizer = cm.load_default()
    with cm.MapStore.create(
        target,
        model=model,
        tokenizer=tokenizer,
        methods=list(METHODS),
        model_id=AGREEMENT.name,
    ) as store:
        for split, texts in SENTENCES.items():
            store.add([f"{split}-{k + 1:02}" for k in range(len(texts))], list(texts), split=split)
    (target / ".ctxmix.lock").unlink(missing_ok=True)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{sum(map(len, SENTENCES.values()))} sentences, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
