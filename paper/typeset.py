"""Runs LaTeX, and says what in its log a reader would stumble over."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

#: What must not be in a log: a line that runs out of the column, a name that leads nowhere.
_FAULTS: Final = re.compile(
    r"^(Overfull \\[hv]box.*|.*[Uu]ndefined.*|.*multiply[- ]defined.*|Missing character.*"
    r"|.*Warning: (Reference|Citation).*|.*Font shape .* not available.*)$",
    re.MULTILINE,
)
#: main.tex says it before the references; the appendix behind them grows with the records.
_PAGES: Final = re.compile(r"^pages of the text: (\d+)", re.MULTILINE)
#: An error with file and line, as -file-line-error tells it, and the line of the text.
_STOPPED: Final = re.compile(r"^\./[^\n]*:\d+: .*|^l\.\d+ .*", re.MULTILINE)
_COMMAND: Final = (
    "latexmk", "-pdf", "-halt-on-error", "-interaction=nonstopmode", "-file-line-error", "-silent",
    "main.tex",
)  # fmt: skip
_LIMIT_S: Final = 300
_SHOWN_LINES: Final = 30


class TypesetError(RuntimeError):
    """LaTeX stopped, or its log holds what must not be there."""


def is_there() -> bool:
    """Whether this machine can typeset."""
    return shutil.which("latexmk") is not None and shutil.which("pdflatex") is not None


def typeset(folder: Path) -> int:
    """Make ``main.pdf`` of ``main.tex`` in a folder; returns the pages of its text.

    Raises
    ------
    TypesetError
        If LaTeX stops, or a line is too wide, or a reference or citation is missing.
    """
    run = subprocess.run(_COMMAND, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S)
    log = folder / "main.log"
    text = _unwrapped(log) if log.exists() else ""
    if run.returncode:
        said = _STOPPED.findall(text) or run.stderr.splitlines()[-_SHOWN_LINES:]
        raise TypesetError("\n".join(["LaTeX stopped:", *said, f"more in {log}"]))
    found = faults(text) + bibliography_faults(folder / "main.blg")
    if found:
        raise TypesetError("\n".join([f"{log} has {len(found)} faults:", *found]))
    pages = _PAGES.search(text)
    assert pages is not None, "main.tex says it"
    return int(pages[1])


def faults(log: str) -> list[str]:
    """What in a log of LaTeX must not be there, line by line."""
    return [match[0] for match in _FAULTS.finditer(log)]


def bibliography_faults(log: Path) -> list[str]:
    """Warnings of BibTeX: a field that is missing, an entry that is."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if line.startswith("Warning--")]


def _unwrapped(log: Path) -> str:
    """A log with the lines joined that LaTeX breaks at 79 characters."""
    lines = log.read_text(errors="replace").splitlines()
    return "".join(line if len(line) == 79 else line + "\n" for line in lines)
