"""From records to the PDF: numbers, tables, pictures, text."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from paper.document import Known, unknown
from paper.pictures import PICTURES, draw
from paper.records import HERE, Records
from paper.reproduce import page
from paper.results import all_results, held
from paper.tables import all_tables
from paper.typeset import typeset
from shmsim.whole import write_whole

GENERATED = HERE / "generated"


def generated(records: Records) -> dict[Path, str]:
    """Everything that is made of the records and kept in git, by path below the paper."""
    files = {Path("generated/results.tex"): _results(records)}
    files |= {
        Path(f"generated/table_{name}.tex"): text for name, text in all_tables(records).items()
    }
    return files | {Path("REPRODUCE.md"): page(records)}


def store(files: Mapping[Path, str], folder: Path) -> None:
    """Write generated files, and remove those that nothing makes any more."""
    (folder / "generated").mkdir(parents=True, exist_ok=True)
    for old in (folder / "generated").iterdir():
        if old.relative_to(folder) not in files:
            old.unlink()
    for path, text in files.items():
        write_whole(folder / path, text)


def check(records: Records) -> None:
    """See that the text names nothing that is not there.

    Raises
    ------
    ValueError
        If it does; the message lists all of it.
    """
    pictures = {name for name, (needed, _) in PICTURES.items() if records.has(needed)}
    known = Known(
        all_results(records), all_tables(records), pictures, records.sources, held(records)
    )
    lines = list(unknown(HERE, known))
    if lines:
        raise ValueError("\n".join(["the text names what the records do not hold:", *lines]))


def build(records: Records, folder: Path) -> int:
    """Make the PDF in a folder of its own; returns the pages of its text.

    Parameters
    ----------
    records
        What it is made of.
    folder
        Gets the text, everything generated, the pictures and ``main.pdf``.
    """
    check(records)
    (folder / "sections").mkdir(parents=True, exist_ok=True)
    for path in (HERE / "main.tex", HERE / "references.bib", *HERE.glob("sections/*.tex")):
        shutil.copy(path, folder / path.relative_to(HERE))
    store(generated(records), folder)
    draw(records, folder / "pictures")
    return typeset(folder)


def _results(records: Records) -> str:
    lines = ["% Made by python -m paper from the stored records: do not edit."]
    lines += [f"\\setrecorded{{{name}}}" for name in records.sources]
    lines += [f"\\set{'held' if so else 'failed'}{{{name}}}" for name, so in held(records).items()]
    lines += [f"\\setresult{{{key}}}{{{text}}}" for key, text in all_results(records).items()]
    return "\n".join(lines) + "\n"
