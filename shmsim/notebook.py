"""Progress in a notebook; needs the extra ``notebooks``. Terminals have `shmsim.console.Bar`."""

import time
from typing import Any, Final

from IPython.display import TextDisplayObject, display

_DRAW_EVERY_S: Final = 0.5


class Line(TextDisplayObject):
    """One line of text, without the quotes of a string."""

    def __repr__(self) -> str:
        """The text."""
        return str(self.data)


class Bar:
    """One line below the cell that says what is being done, and in the end how long it took."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._handle: Any = None
        self._begun_at = self._drawn_at = 0.0

    def __enter__(self) -> "Bar":
        """Make the line."""
        self._begun_at = time.monotonic()
        shown = display(_line("   0 %"), display_id=True)  # type: ignore[no-untyped-call]
        self._handle = shown
        return self

    def __exit__(self, *_: object) -> None:
        """Say how long it took."""
        self._draw(f"took {time.monotonic() - self._begun_at:.0f} s")

    def show(self, label: str, share: float) -> None:
        """Say what is being done, and how much is: 0 to 1."""
        if time.monotonic() - self._drawn_at > _DRAW_EVERY_S:
            self._drawn_at = time.monotonic()
            self._draw(f"{100 * share:4.0f} % {label}")

    def _draw(self, text: str) -> None:
        if self._handle is not None:  # outside of a notebook there is none
            self._handle.update(_line(text))


def _line(text: str) -> Line:
    return Line(data=text)  # type: ignore[no-untyped-call]
