"""`ctxmix demo`: the Space's page, served here until Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.cli.console import Console
from ctxmix_hf.demo import launch

INTERRUPTED = 130


def run(args: Any, console: Console) -> None:
    loading.quiet(args.debug)
    _, url, _ = launch(args.port, server_name=args.host, quiet=True, prevent_thread_lock=True)
    console.data({"url": url}) if console.as_json else console.say(f"The page is at {url} (Ctrl-C ends it).")
    sys.stdout.flush()
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        console.error("Interrupted.")
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # threads of the server may be inside torch, where an ordinary end aborts
