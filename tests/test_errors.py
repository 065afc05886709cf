"""What an error says first."""

from __future__ import annotations

import pytest

from ctxmix_hf.errors import first_line


@pytest.mark.parametrize(
    ("said", "silent", "first"),
    [
        ("one\ntwo", "", "one"),
        ("\n  one \ntwo", "", "one"),
        ("", "", "OSError"),
        (" \n", "", "OSError"),
        ("", "no answer", "no answer"),
    ],
)
def test_the_first_line_that_says_something(said: str, silent: str, first: str) -> None:
    assert first_line(OSError(said), silent) == first
