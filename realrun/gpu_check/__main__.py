"""``python -m realrun.gpu_check``: ``realrun gpu-check`` with torch, numpy and pyzmq alone.

Nothing of this project is loaded before the C extension is there, which it builds if it can.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from realrun.build_native import build_native

# As of all commands (shmsim.program, which needs more than there may be here).
_DONE, _FAILURE, _MISUSE, _INTERRUPTED = 0, 1, 2, 130
_DESCRIPTION: Final = """
Check everything that needs a GPU, in 8 minutes: costs, policies, tests. Calibrates GPU and box,
predicts each cell that it runs where the libraries of the model are installed, and says pass or
fail. Needs torch, numpy, pyzmq and this checkout, and no network. Which GPU: the first that
CUDA_VISIBLE_DEVICES shows.
"""
_EPILOG: Final = (
    f"Exit codes: {_DONE} all hold; {_FAILURE} it failed, or a claim does not hold; {_MISUSE} "
    f"wrong arguments; {_INTERRUPTED} interrupted by Ctrl-C."
)


def main() -> int:
    """Check, and print what came out; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m realrun.gpu_check", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        *("-o", "--out"), type=Path, default=Path("runs/gpu-check"), help="folder for results"
    )
    out: Path = parser.parse_args().out
    if why_not := build_native():
        _note(f"note: no C extension, so Python does the spinning where it can: {why_not}")
    try:
        from realrun.gpu_check.carry_out import carry_out

        done = carry_out(out, _Progress().show)
    except ValueError as error:
        _note(f"error: {error}")
        return _MISUSE
    except (ImportError, OSError, RuntimeError) as error:
        _note(f"failed: {error}")
        return _FAILURE
    except KeyboardInterrupt:
        _note("interrupted; everything was stopped and cleaned up")
        return _INTERRUPTED
    for note in done.notes:
        _note(f"note: {note}")
    sys.stdout.write("\n".join(done.lines) + "\n")
    return _DONE if done.holds else _FAILURE


class _Progress:
    """A line on stderr for each thing that is begun."""

    def __init__(self) -> None:
        self._label = ""

    def show(self, label: str, share: float) -> None:
        if label != self._label:
            self._label = label
            _note(f"{100 * share:3.0f} % {label}")


def _note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
