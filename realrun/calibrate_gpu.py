"""Adds what a GPU costs to the profile of a box.

The measuring is a process of its own (`realrun.cuda.calibrate`), so that this one has no context on
a GPU. What it reports part by part becomes costs of the profile here; a part that failed or for
which there was no time leaves its costs out, and the profile says why.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from realrun.causes import reason_in
from realrun.cores import spread_cores
from realrun.cuda.facts import place_notes, visible_as
from realrun.cuda.parts import Reported, Reports
from realrun.host import usable_cores
from shmsim.distribution import Curve, Distribution
from shmsim.profile import AT_DEVICE, COSTS, FIRST_WAYS, OPTIONAL_COSTS, WAY, MachineProfile
from shmsim.whole import write_whole

#: For all parts together; on one H200 they are expected to take less than half.
LIMIT_S: Final = 120.0
_START_S: Final = 60.0  # to load torch and make a context
_EARLIEST: Final = 0.05  # the share of sightings that count as immediate
_FELL: Final = 0.95  # of its clock: less is a GPU that slowed down

#: A wait as `realrun.cuda.rests` reports it.
Wait = Sequence[int]
Samples = dict[tuple[str, float], list[int]]


def measure_gpu(
    index: int,
    progress: Callable[[str, float], None],
    limit_s: float = LIMIT_S,
    log: Path | None = None,
) -> list[Reported]:
    """Measure a GPU in a process of its own.

    Parameters
    ----------
    index
        Which of the GPUs that are visible, from 0.
    progress
        Told what is being measured, and the share that is done.
    limit_s
        What there is no time for is left out, and told.
    log
        See `run_measuring`.

    Raises
    ------
    RuntimeError
        If there is no such GPU, or it cannot be used: says why, and what to do.
    """
    try:
        visible = visible_as(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except ValueError as error:
        raise RuntimeError(str(error)) from None
    cores = spread_cores()
    # On the core of a worker; the partner of `realrun.calibrate` has that of the scheduler.
    core = cores[1] if len(cores) > 1 else -1
    command = [sys.executable, "-m", "realrun.cuda.calibrate", f"{limit_s:g}", str(core)]
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    return run_measuring(command, environment, progress, limit_s + _START_S, log)


def run_measuring(
    command: list[str],
    environment: dict[str, str],
    progress: Callable[[str, float], None],
    limit_s: float,
    log: Path | None = None,
) -> list[Reported]:
    """Start a program that reports parts, and gather what it reports until it ends.

    Parameters
    ----------
    environment
        Added to that of this process.
    limit_s
        After which it is killed; what it had reported by then is kept.
    log
        File for all that it said on stderr, if it fails: the reason quotes one line of that.

    Raises
    ------
    RuntimeError
        If it fails before anything was measured; says what ended it.
    """
    reports = Reports(progress)
    late = threading.Event()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        # Ctrl-C is for us alone: leaving this block ends the process.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )

        def end() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(limit_s, end)
        watch.daemon = True
        watch.start()
        try:
            assert process.stdout is not None, "it is a pipe"
            for line in process.stdout:
                reports.take(line)
            code = process.wait()
        finally:
            watch.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        said.seek(0)
        words = said.read()
    if code or late.is_set():
        reason = reason_in(words)
        kept = ""
        if log is not None and words.strip():
            write_whole(log, words)
            kept = f"; all that was said is in {log}"
        if late.is_set():
            why = f"no end after {limit_s:.0f} s" + (f": {reason}" if reason else "")
        else:
            why = f"it ended with {code}: {reason or 'it said nothing'}"
        if not any(each.measured for each in reports.reported):
            plain = reason if reason and not late.is_set() else why
            raise RuntimeError(f"the GPU cannot be used: {plain}{kept}")
        reports.give_up(why + kept)
    return reports.reported


def with_gpu(profile: MachineProfile, reported: Iterable[Reported]) -> MachineProfile:
    """A profile with what a GPU costs.

    Parameters
    ----------
    profile
        Of the box.
    reported
        What was measured.

    Returns
    -------
    MachineProfile
        With copies, steps, launches and waits for the device among its costs, and under ``"gpu"``
        of its machine all else that was found, by part, and what was left out.
    """
    parts = list(reported)
    gpu: dict[str, Any] = {
        "seconds": {part.name: part.seconds for part in parts},
        "left_out": {part.name: part.reason for part in parts if part.measured is None},
    }
    machine = profile.machine | {"gpu": gpu}
    samples: Samples = {}
    for part in parts:
        if part.measured is None:
            continue
        facts = dict(part.measured.facts)
        samples |= {(cost, x): values for cost, x, values in part.measured.samples if values}
        rests = facts.pop("rests", [])
        samples |= wait_samples(rests)
        if rests:
            machine["observe"] = first_way(rests)
            facts["ways"] = seen_by_ways(rests)
        gpu[part.name] = facts
    return replace(profile, costs=profile.costs | curves_of(samples), machine=machine)


def first_way(rests: Sequence[tuple[str, str, int, Sequence[Wait]]]) -> str:
    """The way whose costs have plain names: the first that the device offers.

    Parameters
    ----------
    rests
        Rows of `realrun.cuda.rests.rests`, one at least.
    """
    offered = {way for way, *_ in rests}
    return next(way for way in (*FIRST_WAYS, *sorted(offered)) if way in offered)


def wait_samples(rests: Sequence[tuple[str, str, int, Sequence[Wait]]]) -> Samples:
    """Costs of waiting for a device, of waits for kernels whose length the device tells.

    The host knows when it asked for a kernel, and the device how long that took. What is left of a
    wait is the way to the device and back, and being late. Of the first two the least that was seen
    is taken off: so the end of a kernel is here when a spinner can first know of it.

    Parameters
    ----------
    rests
        Rows of `realrun.cuda.rests.rests`.

    Returns
    -------
    dict
        Nanoseconds by cost and what it runs along. The first way that a device offers has plain
        names, such as ``device_wake_latency``; others end in ``@`` and the way.
    """
    if not rests:
        return {}
    origin_ns = origin_of([waits for _, mode, _, waits in rests if mode == "spin"])
    first = first_way(rests)
    found: defaultdict[tuple[str, float], list[int]] = defaultdict(list)
    for way, mode, rest_ns, waits in rests:
        ending = "" if way == first else WAY + way

        def add(cost: str, x: float, values: Iterable[int], ending: str = ending) -> None:
            found[f"{AT_DEVICE}{cost}{ending}", x] += values

        late_ns = [max(0, round(wall - device - origin_ns)) for wall, device, *_ in waits]
        if mode in ("spin", "yield"):
            add(f"{mode}_detection", 0.0, late_ns)
        elif mode == "park":
            add("wake_latency", float(rest_ns), late_ns)
            add("park_cpu", float(rest_ns), (cpu_ns for _, _, cpu_ns, *_ in waits))
        else:
            timed = [wait for wait in waits if wait[3] > 0]  # those that the timer ended
            add("timer_overshoot", float(rest_ns), (wait[3] for wait in timed))
            add("doze_cpu", float(rest_ns), (wait[4] for wait in timed))
    return {key: values for key, values in found.items() if values}


def seen_by_ways(rests: Sequence[tuple[str, str, int, Sequence[Wait]]]) -> list[dict[str, Any]]:
    """How late the end of a kernel is seen in each way, and the CPU it takes to wait for it.

    Parameters
    ----------
    rests
        Rows of `realrun.cuda.rests.rests`, one at least.

    Returns
    -------
    list
        For each row ``way``, ``mode``, ``rest_ns`` and ``n``, and medians of ``late_ns``, which
        counts from when a spinner can see an end at the earliest, and ``cpu_ns``.
    """
    origin_ns = origin_of([waits for _, mode, _, waits in rests if mode == "spin"])
    return [
        {
            "way": way,
            "mode": mode,
            "rest_ns": rest_ns,
            "n": len(waits),
            "late_ns": round(float(np.median([wall - ran for wall, ran, *_ in waits])) - origin_ns),
            "cpu_ns": round(float(np.median([cpu_ns for _, _, cpu_ns, *_ in waits]))),
        }
        for way, mode, rest_ns, waits in rests
        if waits
    ]


def origin_of(spins: Sequence[Sequence[Wait]]) -> float:
    """How long a spinner is behind the device at least, by the way that sees ends first.

    Parameters
    ----------
    spins
        Waits of several ways.

    Raises
    ------
    ValueError
        If there is none.
    """
    firsts = [
        float(np.quantile([wall - device for wall, device, *_ in waits], _EARLIEST))
        for waits in spins
        if waits
    ]
    if not firsts:
        raise ValueError("no wait for a kernel was spun, so nothing says when a kernel ends")
    return min(firsts)


def curves_of(samples: Samples) -> dict[str, Curve]:
    """Costs along what they run along.

    Raises
    ------
    ValueError
        If a cost is none that a profile may have.
    """
    along: defaultdict[str, list[float]] = defaultdict(list)
    for cost, x in sorted(samples):
        along[cost].append(x)
    return {
        cost: Curve(_by(cost), tuple(xs), tuple(Distribution.of([samples[cost, x]]) for x in xs))
        for cost, xs in along.items()
    }


def _by(cost: str) -> str:
    plain = cost.partition(WAY)[0].removeprefix(AT_DEVICE)
    known = OPTIONAL_COSTS.get(cost) or COSTS.get(plain)
    if known is None:
        raise ValueError(f"a profile has no cost {cost!r}; see shmsim.profile.COSTS")
    return known[0]


def per_prefill_token_ns(profile: MachineProfile, n_tokens: int) -> int:
    """What a prompt token adds to a step whose prompts come in chunks of so many tokens.

    Raises
    ------
    ValueError
        If nobody measured it.
    """
    curve = profile.costs.get("device_prefill")
    if curve is None:
        raise ValueError(
            "the profile says nothing about prompts on a GPU; measure with realrun calibrate --gpu"
        )
    return round(curve.at(0.5, n_tokens) / n_tokens)


def gpu_notes(profile: MachineProfile) -> list[str]:
    """What a reader of the figures must know about this GPU and its calibration."""
    gpu = profile.machine.get("gpu", {})
    notes = [f"not measured: {name}: {why}" for name, why in gpu.get("left_out", {}).items()]
    place = gpu.get("facts", {})
    if "utilization.gpu" not in place.get("nvidia_smi", {"utilization.gpu": ""}):
        notes.append(
            "nvidia-smi does not tell how busy this GPU is, as on a part of one (MIG, vGPU): see "
            "that nobody else computes on it, for nothing here could"
        )
    notes += place_notes(place, profile.machine.get("affinity", usable_cores()))
    for way, why in gpu.get("rests", {}).get("not_observed", {}).items():
        notes.append(f"ends of steps cannot be observed by {way!r}: {why}")
    if why := gpu.get("copies", {}).get("not_registered"):
        notes.append(f"shared memory cannot be registered with the GPU: {why}")
    before, after = (gpu.get(name, {}).get("clocks", {}) for name in ("facts", "clocks_after"))
    steps = gpu.get("steps", {}).get("gaps", [])
    for row in steps:
        fell = clock_fell(row["clocks_before"], row["clocks_after"])
        if fell:
            notes.append(f"after pauses of {row['gap_ns'] / 1e6:g} ms its clock fell: {fell}")
    if fell := clock_fell(before, after):
        notes.append(f"its clock fell during the calibration: {fell}; is it hot, or capped?")
    return notes


def clock_fell(before: dict[str, str], after: dict[str, str]) -> str:
    """How the clock of a GPU fell between two looks at it; empty if it did not, or nobody says."""
    try:
        was, now = (float(clocks["clocks.sm"]) for clocks in (before, after))
    except (KeyError, ValueError):
        return ""
    return f"from {was:g} to {now:g} MHz" if now < _FELL * was else ""
