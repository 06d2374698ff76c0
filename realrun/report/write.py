"""Makes the page of whatever a folder holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from realrun.report.of_grid import grid_page
from realrun.report.of_run import run_page
from realrun.report.of_validation import validation_page
from realrun.report.stored import GRID, META, VALIDATION
from shmsim.whole import write_whole

NAME: Final = "report.html"

#: By the file that tells what a folder holds.
_PAGES: Final[dict[str, Callable[[Path], str]]] = {
    VALIDATION: validation_page,
    GRID: grid_page,
    META: run_page,
}


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a validation, a grid or a run.

    Parameters
    ----------
    folder
        What ``realrun validate``, ``validate --grid`` or ``run --out`` wrote. It may come from
        anybody: text in it is escaped, and no code that it names is run.
    out
        Where the page goes; None: ``report.html`` in the folder.

    Returns
    -------
    Path
        The page: one file, which opens without a network and runs no script.

    Raises
    ------
    ValueError
        If the folder holds nothing of this kind, or its files are damaged.
    """
    make = next((m for name, m in _PAGES.items() if (folder / name).is_file()), None)
    if make is None and folder.name in _PAGES and folder.is_file():
        raise ValueError(f"{folder} is a file of a run; name its folder, {folder.parent}")
    if make is None:
        raise ValueError(
            f"{folder} holds none of {', '.join(_PAGES)}; name a folder that 'realrun validate', "
            "'realrun validate --grid' or 'realrun run --out' wrote"
        )
    try:
        text = make(folder)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # Each file can be read, yet they do not belong together: no run of ours left them.
        raise ValueError(f"the files in {folder} contradict each other: {error!r}") from None
    path = out or folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path
