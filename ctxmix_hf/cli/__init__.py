"""`ctxmix`: arguments -> public function -> printed line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ctxmix_hf.cli.console import Console
from ctxmix_hf.cli.parser import build_parser
from ctxmix_hf.errors import CtxmixError

QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 done; 1 a failure, or a check that did not pass; 2 something that cannot be done as asked."""
    console = Console()
    try:
        args = build_parser().parse_args(argv)
        console = Console(debug=args.debug, as_json=args.json)
        code = _run(args.command.replace("-", "_"), args, console)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse: --help, --version, wrong usage
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        console.error("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:  # `ctxmix methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CtxmixError as error:
        return console.failed(str(error), error, 2)
    except Exception as error:
        return console.failed(f"{type(error).__name__}: {error}", error, 1)


def _run(name: str, args: object, console: Console) -> int:
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    command = importlib.import_module(f"ctxmix_hf.cli.commands.{name}")
    return int(command.run(args, console) or 0)
