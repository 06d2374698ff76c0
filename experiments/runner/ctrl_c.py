"""Notices Ctrl-C also where Python drops it.

A signal that comes while the process forks is handled in a hook around the fork, and exceptions of
such hooks are ignored. So whoever was interrupted remembers it, and is asked again between cells.
"""

import signal
from types import FrameType
from typing import Self


class CtrlC:
    """Raises KeyboardInterrupt at once, and once more when asked; use as a context manager."""

    def __init__(self) -> None:
        """Nothing was pressed."""
        self._pressed = False

    def __enter__(self) -> Self:
        """Begin to listen; only the main thread can."""
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the signal to whom it belonged."""
        signal.signal(signal.SIGINT, self._before)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        self._pressed = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was pressed and did not come through."""
        if self._pressed:
            raise KeyboardInterrupt
