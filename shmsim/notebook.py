"""Progress in a notebook; needs the extra ``notebooks``. Terminals have `shmsim.console.Bar`."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from IPython.display import TextDisplayObject, display

_DRAW_EVERY_S: Final = 0.5
_LOOK_EVERY_S: Final = 1.0  # at a process that may be timing things
_T = TypeVar("_T")


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


def run_apart(work: Callable[..., _T], label: str, about_s: float, **arguments: Any) -> _T:
    """Run a function in a fresh process; the line below the cell goes by the clock meanwhile.

    What a notebook has loaded, and its threads, would disturb a measurement.

    Parameters
    ----------
    work
        A function of a module.
    label
        What it does.
    about_s
        How long that takes.
    arguments
        By name.

    Returns
    -------
    Any
        What the function returns.

    Raises
    ------
    Exception
        Whatever the function raises.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, Bar() as bar:
        future, begun_s = pool.submit(work, **arguments), time.monotonic()
        while not future.done():
            share = min((time.monotonic() - begun_s) / about_s, 0.99)
            bar.show(f"of {about_s:g} s: {label}", share)
            wait([future], _LOOK_EVERY_S)
        return future.result()
