"""`ctxmix demo`: the Space's page, served here until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from argparse import Namespace

from ctxmix_hf import loading
from ctxmix_hf.cli.console import Console
from ctxmix_hf.demo import launch

INTERRUPTED = 130


def run(args: Namespace, console: Console) -> None:
    loading.quiet(args.debug)
    opened = {
        "CTXMIX_DEMO_ANY_MODEL": args.let_visitors_load_any_hub_id,
        "CTXMIX_DEMO_LOCAL_PATHS": args.let_visitors_read_local_folders,
    }
    os.environ.update({name: "1" for name, asked in opened.items() if asked})
    more = {"mcp_server": True} if args.mcp else {}
    with contextlib.redirect_stdout(
        sys.stderr
    ):  # gradio announces its MCP server whatever it is told
        _, url, _ = launch(
            args.port, server_name=args.host, quiet=True, prevent_thread_lock=True, **more
        )
    tools = f"{url.rstrip('/')}/gradio_api/mcp/"
    if console.as_json:
        console.data({"url": url, **({"mcp": tools} if args.mcp else {})})
    else:
        console.say(f"The page is at {url} (Ctrl-C ends it).")
        console.say(f"Assistants find its tools at {tools}.") if args.mcp else None
    sys.stdout.flush()
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        console.error("Interrupted.")
        sys.stderr.flush()
        os._exit(
            INTERRUPTED
        )  # threads of the server may be inside torch, where an ordinary end aborts
