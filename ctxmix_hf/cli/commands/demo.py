"""`ctxmix demo`: the Space's page, served here until Ctrl-C."""

from __future__ import annotations

import sys
import time
from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.cli.console import Console
from ctxmix_hf.demo import launch


def run(args: Any, console: Console) -> None:
    loading.quiet(args.debug)
    _, url, _ = launch(args.port, server_name=args.host, quiet=True, prevent_thread_lock=True)
    console.data({"url": url}) if console.as_json else console.say(f"The page is at {url} (Ctrl-C ends it).")
    sys.stdout.flush()
    while True:
        time.sleep(3600)
