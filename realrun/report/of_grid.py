"""The page of a grid: in which cells the model holds, and by how much it misses."""

from pathlib import Path
from typing import Final

from realrun.equivalence import Verdict
from realrun.report.html import Html, bullets, cards, element, joined, paragraph, table
from realrun.report.page import Section, page
from realrun.report.parts import about_machine, commands, folded, limits_of_machine, machine_part
from realrun.report.pictures import picture
from realrun.report.stored import StoredGrid, read_grid_results
from shmsim.plots import Judged, agreement

#: Of each quantity its title and the label of its error.
_QUANTITIES: Final = {
    "tpot_p50": ("TPOT, median", "TPOT p50 (%)"),
    "itl_p99": ("Inter-token latency, p99", "ITL p99 (%)"),
    "cpu": ("CPU of each process", "CPU (points of a core)"),
}


def grid_page(folder: Path) -> str:
    """Make the page of a folder that ``realrun validate --grid`` wrote.

    Raises
    ------
    ValueError
        If a file is missing or damaged.
    """
    stored = read_grid_results(folder)
    return page(
        "Model against machine, cell by cell",
        f"{about_machine(stored.content['machine'])}; measured "
        f"{stored.content.get('finished_at', 'at an unknown time')}",
        [
            Section("verdict", "Verdict", _verdict(stored)),
            Section("evidence", "Evidence", _evidence(stored)),
            Section("again", "How to get this again", _again(stored)),
            Section("limits", "Limits", _limits(stored)),
        ],
    )


def _titles(quantity: str) -> tuple[str, str]:
    return _QUANTITIES.get(quantity, (quantity, quantity))


def _verdict(stored: StoredGrid) -> Html:
    facts = []
    for quantity, rows in stored.findings.items():
        said = [row.verdict for row in rows]
        facts.append(
            (
                _titles(quantity)[0],
                f"{said.count(Verdict.HOLDS)} of {len(said)} hold",
                f"{said.count(Verdict.MISSES)} miss, {said.count(Verdict.CANNOT_TELL)} cannot tell",
            )
        )
    return joined(
        [
            cards(facts),
            paragraph(
                "A prediction holds if the 90 % interval of its error lies within a margin that "
                "was set before the runs, and misses if it lies outside; else nobody can tell. "
                "Every cell stands by itself, and nothing is fitted to these runs."
            ),
        ]
    )


def _evidence(stored: StoredGrid) -> Html:
    parts = []
    for quantity, rows in stored.findings.items():
        title, label = _titles(quantity)
        parts += [
            element("h3", title),
            _picture(quantity, title, label, rows),
            folded(
                "All of them in numbers",
                table(
                    f"Error of {label}: predicted less measured, 90 % interval.",
                    ("cell", "error", "from", "to", "margin", "verdict"),
                    [
                        (
                            row.name,
                            *(f"{100 * v:+.1f}" for v in (row.error, row.low, row.high)),
                            f"±{100 * row.margin:.1f}",
                            row.verdict,
                        )
                        for row in rows
                    ],
                ),
            ),
        ]
    return joined(parts)


def _picture(quantity: str, title: str, label: str, rows: list[Judged]) -> Html:
    worst = max(rows, key=lambda row: abs(row.error) / row.margin)
    return picture(
        "errors-" + "".join(c for c in quantity.lower() if c.isascii() and c.isalnum()),
        f"Error of the predicted {title}",
        f"{len(rows)} predictions; the worst is {worst.name}, off by {100 * worst.error:+.1f} with "
        f"a margin of {100 * worst.margin:.1f}. The table below has all.",
        "Predicted less measured with its 90 % interval; grey is the margin.",
        lambda width_in: agreement(rows, label, "", width_in),
    )


def _again(stored: StoredGrid) -> Html:
    return joined(
        [
            commands(
                "realrun calibrate --thorough -o profile.json",
                "realrun validate --grid CELLS.toml -p profile.json -o runs/again",
                "realrun report runs/again",
            ),
            paragraph(
                f"Profile measured {stored.profiles}. The config of every cell is in grid.json."
            ),
            machine_part(stored.content["machine"]),
        ]
    )


def _limits(stored: StoredGrid) -> Html:
    return bullets(
        [
            "It holds for these cells and this box.",
            "Of 20 predictions that are a whole margin off, one is let through.",
            *limits_of_machine(stored.content["machine"]),
        ]
    )
