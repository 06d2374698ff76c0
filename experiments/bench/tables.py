"""The comparison as text."""

import costs
import matrix
import numpy as np
from candidates import CANDIDATES, FLOOR, VLLM
from cells import Cell, Cells, Key

_NAMES = [candidate.name for candidate in CANDIDATES]


def _over(cell: Cell, other: Cell | None) -> str:
    return f"{cell.median_ns / other.median_ns:.2f}" if other else "-"


def _wake(cell: Cell) -> str:
    return f"{np.median(cell.wakes_ns) / 1e3:.1f}" if cell.wakes_ns.size else "-"


def _scenario(cells: Cells, n_readers: int, scenario: str) -> list[str]:
    vllm = cells.get(Key(VLLM[scenario], n_readers, scenario))
    # The floor always parks, so its gap is called parked.
    floor_scenario = "parked" if scenario == "gap_2ms" else scenario
    floor = cells.get(Key(FLOOR, n_readers, floor_scenario))
    lines = [
        "",
        f"{scenario}, {n_readers} reader{'s' * (n_readers > 1)}: round trip in us",
        f"{'':16}{'n':>7}{'median':>9}{'p90':>9}{'/vLLM':>8}{'/futex':>8}{'wake':>8}"
        f"{'writer':>9}{'reader':>8}{'switches':>10}",
    ]
    for name in _NAMES:
        cell = cells.get(Key(name, n_readers, scenario))
        if cell is None:
            continue
        # A burst of one call is too short to tell a share.
        cores = None if scenario == "idle_5s" else cell.cores()
        shares = f"{cores[0]:9.0%}{cores[1]:8.0%}" if cores else f"{'-':>9}{'-':>8}"
        per_call = cell.per_call()
        switches = per_call["parked"] + per_call["preempted"]
        lines.append(
            f"{name:16}{cell.samples_ns.size:7}{cell.median_ns / 1e3:9.1f}{cell.p90_ns / 1e3:9.1f}"
            f"{_over(cell, vllm):>8}{_over(cell, floor):>8}{_wake(cell):>8}"
            f"{shares}{switches:10.1f}"
        )
    return lines


def _payloads(cells: Cells) -> list[str]:
    keys = [key for key in cells if key.scenario == "payload" and key.n_readers == 1]
    names = [name for name in _NAMES if any(key.system == name for key in keys)]
    payloads = sorted({key.payload for key in keys}, key=lambda p: (p[0], int(p.split("/")[1])))
    if not payloads:
        return []
    lines = ["", "payloads, 1 reader, unpinned: median round trip in ms"]
    lines.append(" " * 18 + "".join(f"{name:>16}" for name in names))
    for payload in payloads:
        medians = [cells.get(Key(name, 1, "payload", payload)) for name in names]
        shown = [f"{cell.median_ns / 1e6:16.3f}" if cell else f"{'-':>16}" for cell in medians]
        lines.append(f"{payload:18}" + "".join(shown))
    return lines


def report(cells: Cells) -> str:
    """All tables.

    Wake is the way down alone: from publication until the last reader saw it. The columns of the
    writer and of the busiest reader are shares of a core.
    """
    shown = {(key.n_readers, key.scenario) for key in cells if key.system in _NAMES}
    lines = []
    for n_readers in sorted({n for n, _ in shown}):
        for scenario in ("back_to_back", "gap_2ms", "parked", "idle_5s"):
            if (n_readers, scenario) in shown:
                lines += _scenario(cells, n_readers, scenario)
    return "\n".join(lines + _payloads(cells) + matrix.table(cells) + costs.table(cells))
