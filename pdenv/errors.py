"""Errors that speak to the person: one line with what was wrong, where, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from a person: a file, a scenario, a name, an option.

    The command line prints it as one line and exits with code 2.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)


def nearest(name: str, valid: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest valid name, else the list of valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"; valid: {shown}"


def worded(error: BaseException) -> str:
    """Type and message of what somebody else's code raised, in one line, whatever its message does."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # its own __str__ fails
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
