"""Finds in what a process said why it ended.

Its last line is seldom that: an error of CUDA goes on with advice for several lines, NCCL's with
what it was told last, and while Python ends it may complain of other things.
"""

import re
from collections.abc import Sequence
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_IGNORED: Final = "Exception ignored"  # at the end of a process, and no cause of it
#: ``Type: message``, or a type without one, of any module.
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
#: What C++ says of an exception that nobody caught.
_ABORTED: Final = re.compile(r"\s*what\(\):\s*(\S.*)")
#: torch puts it before every line, once ranks have met.
_RANK: Final = re.compile(r"^\[rank\d+\]: ?")
_LAST_ERROR: Final = "Last error:"


def cause_in(said: str) -> str:
    """The exception that ended a process, in a line.

    Parameters
    ----------
    said
        All that it wrote.

    Returns
    -------
    str
        ``Type: message``, with what NCCL calls its last error; empty if no exception is told.
    """
    lines = [_RANK.sub("", line) for line in said.splitlines()]
    found = ""
    for at, line in enumerate(lines):
        if line == _TRACEBACK and not (at and lines[at - 1].startswith(_IGNORED)):
            found = _exception(lines[at + 1 :]) or found
        elif aborted := _ABORTED.match(line):
            found = in_a_line([aborted[1], *lines[at + 1 :]])
    return found


def reason_in(said: str) -> str:
    """The exception that ended a process, or else its last line; empty if it said nothing."""
    lines = said.strip().splitlines()
    return cause_in(said) or (lines[-1] if lines else "")


def in_a_line(lines: Sequence[str]) -> str:
    """The first line of a message, and what NCCL calls its last error."""
    first = next((line.strip() for line in lines if line.strip()), "")
    for at, line in enumerate(lines):
        if line == _TRACEBACK:  # of another exception
            break
        if line.startswith(_LAST_ERROR):
            told = (line.removeprefix(_LAST_ERROR), *lines[at + 1 :])
            last = next((text.strip() for text in told if text.strip()), "")
            return f"{first}; {_LAST_ERROR} {last}" if last else first
    return first


def _exception(lines: Sequence[str]) -> str:
    """What stands below the frames of a traceback."""
    for at, line in enumerate(lines):
        if _EXCEPTION.match(line):
            return in_a_line(lines[at:])
        if line == _TRACEBACK:
            break
    return ""
