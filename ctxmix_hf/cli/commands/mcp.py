"""`ctxmix mcp`: the tools for assistants, over stdio."""

from __future__ import annotations

from argparse import Namespace

from ctxmix_hf.cli.console import Console


def run(args: Namespace, console: Console) -> None:
    from ctxmix_hf.assistant.server import require_mcp, serve

    require_mcp()
    from ctxmix_hf import loading

    loading.quiet(args.debug)
    serve(args.views, args.trust_remote_code)
