"""`ctxmix doctor`: the exactness check on a probe."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch

from ctxmix_hf import loading
from ctxmix_hf.calling import read_batch
from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import OptionError
from ctxmix_hf.text.batch import reads
from ctxmix_hf.verification import noise_for, verify


def run(args: Namespace, console: Console) -> int:
    model, reader = loading.load_asked(args)
    kind = reads(model)
    if kind == "text":
        probe: Any = args.text or loading.example_of(args.model, reader)
    elif args.text:
        raise OptionError(f"--text is for models that read text: {args.model} reads {kind}.")
    elif kind == "sound" and reader is not None:
        noise = torch.randn(8000, generator=torch.Generator().manual_seed(0)).numpy()
        probe = read_batch(model, noise, processor=reader).tensors
    else:
        probe = noise_for(model, args.model)
    found = verify(model, probe, reader if kind == "text" else None)
    if console.as_json:
        console.data({"model": args.model, "exact": found.exact, **found.as_dict()})
    else:
        console.say(str(found))
        console.say(
            f"\n{args.model}: {'every layer is exact' if found.exact else 'not every layer is exact, see above'}."
        )
    return 0 if found.exact else 1
