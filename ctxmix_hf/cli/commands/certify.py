"""`ctxmix certify`: a certificate of a model, or the check of one (exit code 1 if it no longer holds)."""

from __future__ import annotations

import json
from argparse import Namespace

from ctxmix_hf import loading
from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.certifying import certify, check_certificate, read_certificate
from ctxmix_hf.cli.console import Console, write_out
from ctxmix_hf.errors import OptionError


def run(args: Namespace, console: Console) -> int:
    loading.quiet(args.debug)
    if args.check is not None:
        return _check(args, console)
    name = args.model or AGREEMENT.name
    made = certify(
        name,
        texts=[args.text] if args.text else [],
        revision=args.revision,
        dtype=args.dtype,
        device=args.device,
        trust_remote_code=args.trust_remote_code,
    )
    whole = json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False)
    if args.out:
        write_out(args.out, whole + "\n")
        console.note(f"Wrote {args.out}.")
    else:
        console.say(whole)
    passed = all(case["passed"] for case in made["cases"].values())
    return 0 if made["exact"] and passed else 1


def _check(args: Namespace, console: Console) -> int:
    if args.out or args.text or args.revision or args.dtype:
        raise OptionError(
            "--check takes text, revision and precision from the certificate: leave them and --out out."
        )
    found = check_certificate(
        args.check, name=args.model, device=args.device, trust_remote_code=args.trust_remote_code
    )
    if console.as_json:
        console.data({"certificate": args.check, "holds": not found, "differences": found})
    else:
        for line in found:
            console.say(line)
        name = args.model or read_certificate(args.check)["model"]["name"]
        verdict = "does not hold" if found else "holds"
        console.say(f"The certificate {verdict} for {name}.")
    return 1 if found else 0
