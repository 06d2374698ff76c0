"""The leaderboard as a page of Markdown; what comes from a bundle stands in code spans only."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from board import Board, Row

from shmsim.units import US, format_ns

_HEAD: Final = """# Leaderboard

Made by `python experiments/leaderboard/build.py` from the bundles of
[experiment 10](../10_model_against_machine/README.md)'s record and from those in `bundles/`. What
the columns mean, and how to add a machine: [README.md](README.md).
"""
_COLUMNS: Final = (
    "policy", "cost", "TPOT p50, ms", "to spin, %", "ITL p99, ms", "TTFT after idle, ms", "cores",
    "model: TPOT", "model: cores", "a wait, µs", "gap closed",
)  # fmt: skip


def page(board: Board) -> str:
    """The page."""
    return "\n".join([_HEAD, *_machines(board), *_workloads(board), *_tuned(board), *_runs(board)])


def _machines(board: Board) -> Iterator[str]:
    yield "## Machines\n"
    columns = ("id", "CPU", "usable cores", "virtual", "kernel", "wake latency", "timer late by")
    yield from _head(columns)
    for name, machine in board.machines.items():
        facts, costs = machine["facts"], machine["costs"]
        told = [f"`{facts.get(key)}`" for key in ("cpu", "usable_cores", "virtual", "kernel")]
        late = [
            f"{costs[key] / US:.0f} µs" if key in costs else "unknown"
            for key in ("wake_latency", "timer_overshoot")
        ]
        yield _line(f"`{name}`", *told, *late)
    yield ""


def _workloads(board: Board) -> Iterator[str]:
    yield "## Workloads\n"
    rows = groupby(board.rows, key=lambda row: row.workload)
    for workload, of_workload in rows:
        settings = board.workloads[workload]
        yield f"### {_title(settings)}\n"
        price = settings.get("run.delay_price", 10)
        yield f"Workload `{workload}`, price of delay r = {price:g}.\n"
        for (machine, day), group in groupby(of_workload, key=lambda r: (r.machine, r.measured_on)):
            bound = board.bounds[f"{workload} {machine} {day}"]
            n_cores = board.machines[machine]["facts"].get("usable_cores")
            crowd = f"{1 + settings['engine.workers']} processes on {n_cores} cores"
            yield f"Machine `{machine}`, `{day}`, {crowd}. {_bound(bound)}\n"
            yield from _head(_COLUMNS)
            yield from map(_row, group)
            yield ""


def _title(settings: dict[str, Any]) -> str:
    """A workload in a line: figures, and words that this project defines."""
    engine, load, device = (
        {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(section)}
        for section in ("engine.", "workload.", "device.")
    )
    if device["kind"] in ("echo", "affine"):
        step = f"steps of {format_ns(device['step_ns'])}, jitter {100 * device['jitter']:g} %"
    else:
        step = f"device `{device['kind']}`"
    asked = {
        "closed": f"{load['concurrency']} at a time",
        "open": f"{load['rate_per_s']:.3g} requests/s, burstiness {load['burstiness']:g}",
    }.get(load["kind"], "a trace")
    tokens = (
        f"{load['requests']} requests, output p50/p95 {load['output_p50']}/{load['output_p95']}"
        if load["kind"] != "trace"
        else f"{load['requests']} requests"
    )
    return (
        f"TP{engine['workers']}, {engine['calls_per_step']} calls a step, "
        f"`{engine['scheduling']}`; {step}; {asked}, {tokens}"
    )


def _bound(bound: dict[str, Any]) -> str:
    if "L2_ns" not in bound:
        return f"No bound: `{bound.get('why_not')}`."
    return (
        f"Bound: on the {bound['n_waits']} gaps of the first run of `{bound['gaps_of']}` no policy "
        f"costs less than {bound['L2_ns'] / US:.0f} µs a wait."
    )


def _row(row: Row) -> str:
    name = f"`{row.policy}`"
    return _line(
        f"**{name}**" if row.is_best else name,
        f"{row.cost:.3f} ± {row.noise:.3f}",
        f"{row.tpot_ms:.3f}",
        f"{100 * row.more:+.1f}",
        f"{row.itl_p99_ms:.3f}",
        "" if row.ttft_idle_ms is None else f"{row.ttft_idle_ms:.2f}",
        f"{row.cores:.3f}",
        f"{row.model_tpot_ms:.3f}",
        f"{row.model_cores:.3f}",
        "" if row.wait_us is None else f"{row.wait_us:.0f}",
        "" if row.gap_closed is None else _closed(row.gap_closed),
    )


def _closed(share: float) -> str:
    return f"{share:.2f}" if share > -1.0 else "below -1"


def _tuned(board: Board) -> Iterator[str]:
    if not board.tuned:
        return
    yield "## What the tuner chose\n"
    yield from _head(("machine", "goal", "chosen", "cores, held out", "TPOT p99, ms"))
    for found in board.tuned:
        held = found["held_out"]
        tpot = held.get("tpot_p99_ns", [None])[0]
        yield _line(
            f"`{found['machine']}`",
            f"`{found['goal']}`",
            f"`{found['policy']}`" + (", the default, kept" if found["kept_default"] else ""),
            "" if "cores" not in held else f"{held['cores'][0]:.3f}",
            "" if tpot is None else f"{tpot / 1e6:.3f}",
        )
    yield ""


def _runs(board: Board) -> Iterator[str]:
    if not board.runs:
        return
    yield "## Single runs, which compare nothing\n"
    yield from _head(("machine", "policy", "TPOT p50, ms", "ITL p99, ms", "cores"))
    for run in board.runs:
        figures = run["figures"]
        cores = figures["scheduler_cores"] + run["n_workers"] * figures["worker_cores"]
        times = [figures[name] for name in ("tpot_p50_ns", "itl_p99_ns")]
        yield _line(
            f"`{run['machine']}`",
            f"`{run['policy']}`",
            *("" if t is None else f"{t / 1e6:.3f}" for t in times),
            f"{cores:.3f}",
        )
    yield ""


def _head(columns: tuple[str, ...]) -> Iterator[str]:
    yield _line(*columns)
    yield _line(*("---" for _ in columns))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
