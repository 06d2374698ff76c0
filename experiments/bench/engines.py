"""How fast the compiled engines are beside SimPy, whether they give its bits, and how sure we are.

Usage: python experiments/bench/engines.py [--quick] [--json FILE]
           [--parts {alike,speed,sweep,race,growth,statistics} ...]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import alike
import numpy as np
import simulated
import stats
from loops import Loop, default_loop, heap_loop, loops
from parts import Part, finish, measured, options, told

from shmsim.claims import Claim
from shmsim.policies import WakeAhead
from shmsim.routing import MIB
from shmsim.sim.events import simulate_arrays
from shmsim.sim.recurrence import luck, refuses, run_many
from shmsim.sim.run import simulate
from shmsim.units import US

PARTS: Final = ("alike", "speed", "sweep", "race", "growth", "statistics")
SEED: Final = 20261130
_POLICY: Final = WakeAhead()
_N_POLICIES: Final = 64
EVENTS_PER_S: Final = 500_000
RECURRENCE_PER_S: Final = 20_000_000
SWEEP_S: Final = 10
SLIDER_MS: Final = 50
#: What a hand that moves a slider does not notice.
RACE_MS: Final = 100
#: As for SimPy (model.py): each worker, request and policy is the same work again.
EXPONENT: Final = 1.15
#: Of tokens, which the caller gets; see model.py.
BYTES_PER_STEP: Final = 120
#: What the recurrence may keep of a tape: numbers for the loop, and as many for deciding.
KEPT_BYTES: Final = 2 * 192 * MIB


class Effort(NamedTuple):
    """How much is measured."""

    cases: int
    least_alike: int
    rounds: int
    steps: dict[str, int]
    sweep_steps: int
    workers: tuple[int, ...]
    requests: tuple[int, ...]
    policies: tuple[int, ...]
    memory_steps: tuple[int, int]
    moves: int


FULL: Final = Effort(
    cases=300,
    least_alike=200,
    rounds=7,
    steps={"simpy": 1_000, "heap": 20_000, "events": 40_000, "recurrence": 1_000_000},
    sweep_steps=1_000_000,
    workers=(1, 4, 16, 64),
    requests=(1_000, 10_000, 100_000),
    policies=(1, 4, 16, 64),
    memory_steps=(200_000, 2_000_000),
    moves=32,
)
QUICK: Final = Effort(
    cases=20,
    least_alike=20,
    rounds=2,
    steps={"simpy": 1_000, "heap": 5_000, "events": 5_000, "recurrence": 50_000},
    sweep_steps=20_000,
    workers=(1, 4),
    requests=(100, 1_000),
    policies=(1, 8),
    memory_steps=(20_000, 100_000),
    moves=4,
)


def _cpu_s(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s


def _steps_per_s(run: Callable[[int], int], n_steps: int) -> float:
    started_s = time.process_time()
    n = run(n_steps)
    return n / (time.process_time() - started_s)


def _spread(name: str, found: list[float], unit: str, bound: float, direction: str) -> Claim:
    median = float(np.median(found))
    return Claim(name, median, min(found), max(found), unit, bound, direction, len(found), SEED)


# The same bits.


def measure_alike(effort: Effort) -> Part:
    """Compare records with SimPy's, row by row."""
    drawn, found = alike.compare(SEED, effort.cases)
    print(
        f"  {drawn.n} configs drawn, {drawn.compared} compared, {drawn.bulk} of them with bulk, "
        f"{drawn.arena} with an arena{drawn.refused and '; refused: '}{drawn.refused}"
    )
    for name, compared in found.items():
        print(f"  {name}: {compared.n} configs, {compared.difference or 'no difference'}")
    n_same = sum(c.n for c in found.values() if not c.difference)
    n = sum(c.n for c in found.values())
    # All of them, and enough: what is refused, or never drawn, is not alike.
    least = max(n + drawn.n - drawn.compared, effort.least_alike)
    claim = Claim(
        "engines/bit_identical_configs", *(n_same, n_same, n_same, "runs", least, ">=", n, SEED)
    )
    engines = {name: compared._asdict() for name, compared in found.items()}
    return [claim], {"cases": drawn._asdict(), **engines}


# Speed.


def _engines(loop: Loop) -> dict[str, Callable[[int], int]]:
    """What can run a loop: each takes a number of steps, and returns how many they were."""
    found: dict[str, Callable[[int], int]] = {
        "simpy": lambda n: len(simulate(loop.steps(n), _POLICY, loop.profile).steps),
        "events": lambda n: simulate_arrays(loop.steps(n), _POLICY, loop.profile).summary().n_steps,
    }
    if refuses(loop.config, loop.profile) is None:
        found["recurrence"] = lambda n: (
            run_many(loop.steps(n), [_POLICY], loop.profile, threads=1)[0].n_steps
        )
    if loop.name == "lean":
        found["heap"] = heap_loop
    return found


def measure_speed(effort: Effort) -> Part:
    """Steps per second and core, all engines on the same loops, in turns."""
    runners = {
        (loop.name, engine): run
        for loop in loops().values()
        for engine, run in _engines(loop).items()
    }
    first_run_s = {}
    for (loop_name, engine), run in runners.items():
        first_run_s[f"{loop_name}, {engine}"] = _cpu_s(partial(run, 1))
    speeds: dict[tuple[str, str], list[float]] = {key: [] for key in runners}
    for _ in range(effort.rounds):
        for key, run in runners.items():
            speeds[key].append(_steps_per_s(run, effort.steps[key[1]]))
    for (loop_name, engine), found in speeds.items():
        print(
            f"  {loop_name:<24} {engine:<12} {np.median(found):12,.0f} steps/s "
            f"({min(found):,.0f} to {max(found):,.0f})"
        )
    events, lean = "everything on", "lean"
    claims = [
        _spread("engines/steps_per_s/events", speeds[events, "events"], "1/s", EVENTS_PER_S, ">="),
        _spread(
            "engines/steps_per_s/recurrence",
            speeds[lean, "recurrence"],
            *("1/s", RECURRENCE_PER_S, ">="),
        ),
    ]
    for loop_name, engine, least in ((events, "events", 100.0), (lean, "recurrence", 1000.0)):
        pairs = zip(speeds[loop_name, engine], speeds[loop_name, "simpy"], strict=True)
        ratios = [fast / slow for fast, slow in pairs]
        claims.append(_spread(f"engines/ratio_to_simpy/{engine}", ratios, "ratio", least, ">="))
    table = {f"{loop_name}, {engine}": found for (loop_name, engine), found in speeds.items()}
    return claims, {"steps_per_s": table, "first_run_s": first_run_s}


# Many policies on one tape.


def _policies(n: int) -> list[WakeAhead]:
    return [WakeAhead(guard_ns=20 * US + 3 * US * i) for i in range(n)]


def measure_sweep(effort: Effort) -> Part:
    """64 policies on one tape, and the points of a slider."""
    claims, table = [], {}
    for name, loop in loops().items():
        if refuses(loop.config, loop.profile) is not None:
            continue
        config = loop.steps(effort.sweep_steps)
        run_many(loop.steps(1), _policies(1), loop.profile)
        started_s = time.perf_counter()
        run_many(config, _policies(_N_POLICIES), loop.profile)
        table[name] = time.perf_counter() - started_s
        print(
            f"  {_N_POLICIES} policies, {effort.sweep_steps:,} steps, {name}: {table[name]:.1f} s"
        )
    sweep_s = table["lean"]
    claims.append(
        Claim(
            "engines/sweep_64x1M_s",
            *(sweep_s, min(table.values()), max(table.values()), "s", SWEEP_S, "<=", 1, SEED),
        )
    )
    sliders = {"default": default_loop(), "two_workers": loops()["a core for each thread"]}
    moves: dict[str, list[float]] = {}
    for name, loop in sliders.items():
        config = loop.steps(effort.sweep_steps // 10)
        run_many(loop.steps(1), _policies(1), loop.profile)
        points_ms = moves[name] = []
        for policy in _policies(1 + effort.rounds):
            started_s = time.perf_counter()
            run_many(config, [policy], loop.profile)
            points_ms.append(1e3 * (time.perf_counter() - started_s))
        # The first point draws the tape, the others find it drawn.
        first_ms, *moved_ms = points_ms
        print(f"  slider, {name}: first point {first_ms:.0f} ms, then {np.median(moved_ms):.0f} ms")
        for what, found in (("first_point", [first_ms]), ("point", moved_ms)):
            claims.append(_spread(f"engines/slider_{what}_ms/{name}", found, "ms", SLIDER_MS, "<="))
    return claims, {"sweep_s": table, "slider_ms": moves}


def measure_race(effort: Effort) -> Part:
    """A slider of notebook 3 moves: all policies run anew on common tapes, and drawn."""
    from slider import moves_ms  # of the extra for notebooks, which the other parts do not need

    found = moves_ms(effort.moves)
    claims = [
        _spread(f"engines/race_ms/{moved}", took_ms, "ms", RACE_MS, "<=")
        for moved, took_ms in found.items()
    ]
    for claim in claims:
        print(f"  {told(claim)}")
    return claims, found


# Growth.


def measure_growth(effort: Effort) -> Part:
    """How time grows with workers, requests and policies, and memory with the length of a run."""
    loop = loops()["a core for each thread"]
    n_steps = effort.steps["events"]
    claims, table = [], {}

    def grows(name: str, sizes: dict[int, Callable[[], object]]) -> None:
        times = {}
        for size, work in sizes.items():
            work()
            times[size] = min(_cpu_s(work) for _ in range(3))
        power = simulated.exponent(list(times)[-3:], list(times.values())[-3:])
        shown = ", ".join(f"{size:,}: {1e3 * cpu_s:,.1f} ms" for size, cpu_s in times.items())
        print(f"  {name}: to the power of {power:.2f} ({shown})")
        table[name] = times
        claims.append(
            Claim(
                f"engines/growth_exponent/{name.replace(', ', '/')}",
                *(power, power, power, "power", EXPONENT, "<=", len(times), SEED),
            )
        )

    for engine, run in _engines(loop).items():
        if engine == "simpy":
            continue
        crowds = {
            n: _engines(loop._replace(config=_with_workers(loop, n)))[engine]
            for n in effort.workers
        }
        grows(f"workers, {engine}", {n: partial(crowd, n_steps) for n, crowd in crowds.items()})
        grows(
            f"steps, {engine}",
            {n: partial(run, n) for n in (n_steps, 4 * n_steps, 16 * n_steps)},
        )
        tokens = {n: simulated.with_requests(n) for n in effort.requests}
        if engine == "events":
            grows(
                "requests, events",
                {n: partial(simulate_arrays, c, _POLICY, loop.profile) for n, c in tokens.items()},
            )
    config = loop.steps(n_steps)
    grows(
        "policies, recurrence",
        {
            n: partial(run_many, config, _policies(n), loop.profile, threads=1)
            for n in effort.policies
        },
    )
    memory_claims, table["memory"] = _memory(*effort.memory_steps)
    return claims + memory_claims, table


def _memory(few: int, many: int) -> Part:
    """What a longer run takes, and what the recurrence keeps of a tape for the next run on it."""
    claims, table = [], {}

    def claimed(name: str, value: float, bound: float) -> None:
        claims.append(Claim(name, *(value, value, value, "bytes", bound, "<=", 1, SEED)))

    for engine in ("events", "recurrence"):
        _peak(engine, 1, "drop")  # compiling takes memory too, and is read from disk from now on
        peaks = {n: _peak(engine, n, "drop") for n in (few, many)}
        grown = (peaks[many] - peaks[few]) / (many - few)
        print(f"  {engine}: {grown:.0f} bytes more for each step")
        table[engine] = peaks
        claimed(f"engines/bytes_per_step/{engine}", grown, BYTES_PER_STEP)
    kept = _peak("recurrence", many, "keep") - table["recurrence"][many]
    print(f"  recurrence: {kept / MIB:.0f} MiB kept for the next run on the same tape")
    table["kept by the recurrence"] = {many: kept}
    claimed("engines/kept_bytes/recurrence", kept, KEPT_BYTES)
    return claims, table


def _with_workers(loop: Loop, n: int) -> Any:
    return replace(loop.config, engine=replace(loop.config.engine, workers=n))


def _peak(engine: str, n_steps: int, numbers: str) -> int:
    command = [sys.executable, __file__, "--peak-of", engine, str(n_steps), numbers]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def _tell_peak(engine: str, n_steps: int, numbers: str) -> None:
    """In a process of its own: run once, print the greatest memory in bytes.

    With ``drop`` the recurrence keeps no drawn numbers: what grows then is the run's.
    """
    if numbers == "drop":
        vars(luck)["_MOST_BYTES_EACH"] = 0
    run = _engines(loops()["a core for each thread"])[engine]
    run(n_steps)
    print(simulated.peak_bytes())


# Statistics.


def measure_statistics(effort: Effort) -> Part:
    """Coverage of the intervals, and what common tapes buy."""
    claims = stats.claims(SEED, quick=effort is QUICK)
    for claim in claims:
        print(f"  {told(claim)}")
    short = stats.short_of_it(SEED)
    for found in short:
        print(f"  {found.name}: {found.share:.3f} ({found.low:.3f} to {found.high:.3f})")
    return claims, {"too short or too rare": [found._asdict() for found in short]}


def main() -> None:
    """Measure, tell, store."""
    assert __doc__ is not None, "it says what this is"
    parser = options(__doc__, "few and small runs: 2 minutes", PARTS)
    parser.add_argument("--peak-of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        engine, n_steps, numbers = arguments.peak_of
        _tell_peak(engine, int(n_steps), numbers)
        return
    effort = QUICK if arguments.quick else FULL
    measure = {
        "alike": measure_alike,
        "speed": measure_speed,
        "sweep": measure_sweep,
        "race": measure_race,
        "growth": measure_growth,
        "statistics": measure_statistics,
    }
    started_s = time.monotonic()
    found, records = measured(arguments.parts, lambda part: measure[part](effort))
    for claim in found:
        print(told(claim))
    finish(started_s, arguments.json, found, records)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
