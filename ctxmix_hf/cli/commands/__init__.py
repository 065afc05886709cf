"""One file per command, imported when it is run: `run(args, console)` returns the exit code (None: 0)."""
