"""Where both commands begin: from here on Ctrl-C ends them with 130, also while they load.

What a command line stands on takes a third of a second to load, and typer builds its commands
from it. Nothing that would have to be cleaned up exists until one of them begins, so Ctrl-C ends
the process at once, without the traceback of whatever was being imported or built. This module
therefore imports next to nothing itself.
"""

import os
import signal
from importlib import import_module
from types import FrameType
from typing import Final

_INTERRUPTED: Final = 130  # as shmsim.program has it, which is not loaded yet


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted; nothing had begun\n")
    os._exit(_INTERRUPTED)


def start(module: str) -> None:
    """Load a command line and run it.

    Parameters
    ----------
    module
        Its name; its ``app`` is called.
    """
    # Who starts a command with the signal ignored (nohup) means that.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    import_module(module).app()


def command_begins() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, for the command to clean up after itself."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run ``shmsim``."""
    start("shmsim.cli")
