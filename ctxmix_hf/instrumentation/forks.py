"""After a fork torch's threads are left behind in the parent: whoever waits for them waits for ever."""

from __future__ import annotations

import os
import warnings

import torch

from ctxmix_hf.errors import CtxmixWarning

_forked = False


def _note() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_note)


def do_without_lost_threads() -> None:
    """The first call in a forked process computes with one thread, as torch's DataLoader workers do."""
    global _forked
    if _forked:
        _forked = False
        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)
            warnings.warn(
                "This process was forked, and torch's threads do not survive that: it computes "
                "with one thread from here on. Start processes with the method 'spawn' where they "
                "should use more.",
                CtxmixWarning,
                stacklevel=4,
            )
