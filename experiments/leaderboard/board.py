"""What bundles say together: policies on workloads on machines, with the bound."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.contribute import read_bundle
from shmsim.units import MS, US

_HOW_MANY: Final = ("run.seed", "run.repeats", "run.pin")  # how it was measured, not what
_REFERENCE: Final = "spin"
_ENDS: Final = ("spin", "park")
_GAP: Final = 0.01
_ID_DIGITS: Final = 8


class Row(NamedTuple):
    """One policy on one workload on one machine.

    Parameters
    ----------
    workload, machine
        Ids.
    measured_on
        Date.
    policy
        As a command line takes it.
    cost, noise
        CPU of all processes in cores plus *r* times the share by which TPOT is above the
        reference's, as in ``shmsim tune --goal "price R"``; and half its range over repeats.
    tpot_ms, more, itl_p99_ms, ttft_idle_ms, cores
        Measured: TPOT p50, how much above the reference's (a share), ITL p99, TTFT of requests that
        find the engine idle, and CPU.
    model_tpot_ms, model_cores
        What the model had said.
    wait_us, gap_closed
        Mean cost of the scheduler's waits for the tokens of a step, CPU plus *r* times delay; and
        the share that it closes of the distance from the better of spin and park to the bound.
        None where it is not known.
    is_best
        Whether no policy of this bundle is cheaper by more than the noise of both.
    """

    workload: str
    machine: str
    measured_on: str
    policy: str
    cost: float
    noise: float
    tpot_ms: float
    more: float
    itl_p99_ms: float
    ttft_idle_ms: float | None
    cores: float
    model_tpot_ms: float
    model_cores: float
    wait_us: float | None
    gap_closed: float | None
    is_best: bool = False


class Board(NamedTuple):
    """All bundles together.

    Parameters
    ----------
    machines, workloads
        Facts and settings, by id.
    rows
        By workload, machine and date, then the cheapest first.
    bounds
        Of each workload on each machine, ``"WORKLOAD MACHINE DATE"``: what the waits' bound is.
    tuned, runs
        Bundles of these kinds, as they are.
    """

    machines: dict[str, dict[str, Any]]
    workloads: dict[str, dict[str, Any]]
    rows: list[Row]
    bounds: dict[str, dict[str, Any]]
    tuned: list[dict[str, Any]]
    runs: list[dict[str, Any]]

    def as_data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}


def board_of(paths: Iterable[Path]) -> Board:
    """Read bundles, and bring what they say into one order, whatever theirs.

    Raises
    ------
    ValueError
        If one is no bundle; names it.
    AttributeError, KeyError, TypeError
        If one lacks what its kind has.
    """
    board = Board({}, {}, [], {}, [], [])
    for path in paths:
        _add(board, read_bundle(path))
    board.rows.sort(key=lambda r: (r.workload, r.machine, r.measured_on, r.cost, r.policy))
    for bundles in (board.tuned, board.runs):
        bundles.sort(key=lambda b: (b["machine"], json.dumps(b, sort_keys=True)))
    return board._replace(
        machines=dict(sorted(board.machines.items())),
        workloads=dict(sorted(board.workloads.items())),
        bounds=dict(sorted(board.bounds.items())),
    )


def _add(board: Board, bundle: dict[str, Any]) -> None:
    machine = _id(bundle["machine"])
    known = board.machines.setdefault(machine, {"facts": bundle["machine"], "costs": {}})
    known["costs"] = known["costs"] or bundle.get("costs", {})
    if bundle["kind"] == "validation":
        settings = {k: v for k, v in bundle["settings"].items() if k not in _HOW_MANY}
        workload = _id(settings)
        board.workloads[workload] = settings
        board.rows.extend(_ranked(_rows(bundle, workload, machine)))
        place = f"{workload} {machine} {bundle['measured_on']}"
        board.bounds[place] = {k: v for k, v in bundle["waits"].items() if k != "cost_ns"}
    else:
        names = ("policy", "goal", "kept_default", "found", "held_out", "figures", "n_workers")
        told = {name: bundle[name] for name in names if name in bundle}
        where = board.tuned if bundle["kind"] == "tune" else board.runs
        where.append({"machine": machine, **told})


def _rows(bundle: dict[str, Any], workload: str, machine: str) -> list[Row]:
    settings, policies = bundle["settings"], bundle["policies"]
    n_workers, price = settings["engine.workers"], settings.get("run.delay_price", 10.0)
    reference = policies[_REFERENCE if _REFERENCE in policies else next(iter(policies))]
    base_ns = reference["tpot_p50_ns"]["measured"]
    waits = bundle["waits"]
    rows = []
    for policy, figures in policies.items():
        tpot, itl, idle = (
            figures[name] for name in ("tpot_p50_ns", "itl_p99_ns", "ttft_after_idle_p50_ns")
        )
        parts = ((1, figures["scheduler_cores"]), (n_workers, figures["worker_cores"]))
        cores, model_cores, spread = (
            sum(n * part[key] for n, part in parts) for key in ("measured", "simulated", "spread")
        )
        more = tpot["measured"] / base_ns - 1.0
        rows.append(
            Row(
                workload,
                machine,
                bundle["measured_on"],
                policy,
                cores + price * more,
                spread + price * tpot["spread"] / base_ns,
                tpot["measured"] / MS,
                more,
                itl["measured"] / MS,
                None if idle["measured"] is None else idle["measured"] / MS,
                cores,
                tpot["simulated"] / MS,
                model_cores,
                _wait_us(waits, policy),
                _gap_closed(waits, policy),
            )
        )
    return rows


def _wait_us(waits: dict[str, Any], policy: str) -> float | None:
    cost = waits.get("cost_ns", {}).get(policy)
    return None if cost is None else cost[0] / US


def _gap_closed(waits: dict[str, Any], policy: str) -> float | None:
    """None too where the bound is less than one percent better than the reference."""
    costs = {name: cost for name, (cost, _) in waits.get("cost_ns", {}).items()}
    ends = [costs[name] for name in _ENDS if name in costs]
    if policy not in costs or len(ends) < len(_ENDS):
        return None
    gap = min(ends) - waits["L2_ns"]
    return (min(ends) - costs[policy]) / gap if gap > _GAP * min(ends) else None


def _ranked(rows: list[Row]) -> list[Row]:
    best = min(rows, key=lambda row: row.cost)
    return [row._replace(is_best=row.cost - row.noise <= best.cost + best.noise) for row in rows]


def _id(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]
