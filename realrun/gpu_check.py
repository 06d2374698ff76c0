"""One command for a machine with a GPU: tests, copies, and the loop by every policy that matters.

Cells come in the order of what they answer, and run until the time is over; what was left out is
said. Nothing here loads torch: whatever needs a GPU is a process of its own, so that this one has
no context on it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from realrun.run import make_spec, run_once
from shmsim.claims import Claim
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig, parse_policy
from shmsim.inputs.catalog import gpu_names, load_gpu, load_model
from shmsim.metrics import cores_of, step_time_ns, summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.roofline import RooflineStepTime

#: How long the whole may take.
LIMIT_S: Final = 480.0
_TESTS_LIMIT_S: Final = 200.0
_COPIES_LIMIT_S: Final = 60.0
_MODEL: Final = "llama-3.2-1b"
_PROMPT: Final = 64
_OUTPUT: Final = 300
_BATCHES: Final = (2, 32, 1, 8)
_POLICIES: Final = ("spin", "step-ahead-rehearsed", "vllm-1s", "forks-2ms", "park", "wake-ahead")
_TESTS: Final = Path(__file__).parents[1] / "tests" / "gpu"
_MOST_ADDED: Final = 1.005
_MOST_CORES: Final = 0.3
_MOST_OVER_FLOOR: Final = 1.3
_LEAST_OF_PINNED: Final = 0.9

#: Told what is being done.
Progress = Callable[[str], None]


class Cell(NamedTuple):
    """One way to run the loop."""

    batch: int
    scheduling: str
    observe: str
    policy: str
    repeat: int = 0


class Row(NamedTuple):
    """What came out of a cell.

    Parameters
    ----------
    cell
        Which.
    tpot_p50_ns, step_p50_ns
        Time per output token as a client sees it, and the device's time for a step.
    cores
        CPU of scheduler and workers together.
    tokens_crc32
        Of all tokens.
    device
        Facts of the device of the first worker.
    """

    cell: Cell
    tpot_p50_ns: float
    step_p50_ns: float
    cores: float
    tokens_crc32: int
    device: dict[str, Any]


class Found(NamedTuple):
    """All that a check found out.

    Parameters
    ----------
    tests
        Exit code of the tests that need a GPU; -1 if they are not here, or did not end in time.
    copies
        What `realrun.cuda.measure` says; empty if it failed.
    rows, not_run
        Cells that ran, and those that there was no time for.
    failures
        What went wrong elsewhere.
    """

    tests: int
    copies: dict[str, Any]
    rows: list[Row]
    not_run: list[Cell]
    failures: list[str]


def cells() -> list[Cell]:
    """What is asked, most wanted first."""
    ways = ("query", "blocking", "copy", "sync")
    wanted = [Cell(2, "sync", "write", policy) for policy in _POLICIES]
    wanted.append(Cell(2, "sync", "write", "spin", 1))  # the noise of the box
    wanted += [Cell(2, "sync", way, "spin") for way in ways]
    wanted += [Cell(2, "async", "write", policy) for policy in _POLICIES[:3]]
    wanted += [Cell(b, "sync", "write", p) for b in _BATCHES[1:] for p in _POLICIES[:3]]
    wanted += [Cell(2, "sync", way, p) for way in ways[:2] for p in _POLICIES[1:]]
    wanted += [Cell(b, "async", "write", p) for b in _BATCHES[1:] for p in _POLICIES[:2]]
    return wanted


def config_of(cell: Cell, device: DeviceConfig) -> RunConfig:
    """The run that a cell asks for."""
    observed = replace(device, observe=cell.observe) if device.kind == "cuda" else device
    return RunConfig(
        engine=EngineConfig(
            scheduling=cell.scheduling, max_sequences=cell.batch, max_batched_tokens=2048
        ),
        device=observed,
        workload=WorkloadConfig(
            requests=cell.batch,
            concurrency=cell.batch,
            prompt_p50=_PROMPT,
            prompt_p95=_PROMPT,
            output_p50=_OUTPUT,
            output_p95=_OUTPUT,
        ),
    )


def run_cells(
    wanted: Sequence[Cell],
    device: DeviceConfig,
    profile: MachineProfile,
    deadline_s: float,
    progress: Progress,
) -> tuple[list[Row], list[Cell], list[str]]:
    """Run cells until an instant of the monotonic clock; what ran, what did not, what failed."""
    rows: list[Row] = []
    failures: list[str] = []
    longest_s = 0.0
    for index, cell in enumerate(wanted):
        begun_s = time.monotonic()
        if begun_s + longest_s > deadline_s:
            return rows, list(wanted[index:]), failures
        progress(f"{index + 1}/{len(wanted)} {_name(cell)}")
        policy = parse_policy(cell.policy).policy
        try:
            records = run_once(make_spec(config_of(cell, device), policy, profile, 0))
        except RuntimeError as error:
            failures.append(f"{_name(cell)}: {error}")
        else:
            rows.append(row_of(cell, records))
        longest_s = max(longest_s, time.monotonic() - begun_s)
    return rows, [], failures


def row_of(cell: Cell, records: RunRecords) -> Row:
    """The figures of one run."""
    return Row(
        cell,
        summarize(records).tpot.p50,
        float(np.median(step_time_ns(records.steps))),
        float(sum(cores_of(records).values())),
        records.meta["tokens_crc32"],
        records.meta["devices"][0],
    )


def claims_of(found: Found) -> list[Claim]:
    """Pass or fail, claim by claim, of what was measured."""
    claims = []
    if found.tests >= 0:
        claims.append(_claim("gpu/tests_exit_code", float(found.tests), "code", 0.0, "<=", 1))
    by_cell = {row.cell: row for row in found.rows}
    # With other batches a product has another shape, another kernel and other roundings, and in
    # bf16 the two likeliest tokens are often equal; with the same batches everything is the same.
    batches = sorted({(row.cell.batch, row.cell.scheduling) for row in found.rows})
    for batch in batches:
        crcs = [r.tokens_crc32 for r in found.rows if (r.cell.batch, r.cell.scheduling) == batch]
        name = f"gpu/batch{batch[0]}_{batch[1]}_token_streams"
        claims.append(_claim(name, float(len(set(crcs))), "streams", 1.0, "<=", len(crcs)))
    for row in found.rows:
        cell = row.cell
        reference = by_cell.get(cell._replace(policy="spin"))
        if cell.policy != "step-ahead-rehearsed" or reference is None:
            continue
        name = f"gpu/batch{cell.batch}_{cell.scheduling}_{cell.observe}_step_ahead"
        ratio = row.tpot_p50_ns / reference.tpot_p50_ns
        claims.append(_claim(f"{name}_tpot_ratio", ratio, "ratio", _MOST_ADDED, "<=", _OUTPUT))
        claims.append(_claim(f"{name}_cores", row.cores, "cores", _MOST_CORES, "<=", _OUTPUT))
    claims += _claims_about_ways(by_cell)
    claims += _claims_about_the_step(found.rows)
    claims += _claims_about_copies(found.copies)
    return claims


def _claims_about_ways(by_cell: dict[Cell, Row]) -> list[Claim]:
    """The word that the GPU writes is seen no later than by asking the driver."""
    written = by_cell.get(Cell(2, "sync", "write", "spin"))
    asked = by_cell.get(Cell(2, "sync", "query", "spin"))
    if written is None or asked is None or written.device.get("observe") != "write":
        return []
    ratio = written.tpot_p50_ns / asked.tpot_p50_ns
    return [_claim("gpu/write_to_query_tpot_ratio", ratio, "ratio", _MOST_ADDED, "<=", _OUTPUT)]


def _claims_about_the_step(rows: list[Row]) -> list[Claim]:
    """The step against its roofline, where the datasheet of the GPU is known."""
    for row in rows:
        name = str(row.device.get("name", "")).lower()
        known = [gpu for gpu in gpu_names() if gpu.partition("-")[0] in name]
        if row.cell.batch == 2 and known:
            law = RooflineStepTime(load_model(_MODEL), load_gpu(known[0]))
            floor_ns = law.mean_ns(2, 0, 2 * (_PROMPT + _OUTPUT // 2))
            ratio = row.step_p50_ns / floor_ns
            return [_claim("gpu/step_over_floor", ratio, "ratio", _MOST_OVER_FLOOR, "<=", _OUTPUT)]
    return []


def _claims_about_copies(copies: dict[str, Any]) -> list[Claim]:
    """Registered memory is as fast as pinned memory."""
    end_ns = {(memory, n_bytes): end for memory, n_bytes, _, end in copies.get("copies", [])}
    if not end_ns:
        return []
    largest = max(n_bytes for _, n_bytes in end_ns)
    ratio = end_ns["pinned", largest] / end_ns["registered", largest]
    name = "gpu/h2d_registered_of_pinned_speed"
    return [_claim(name, ratio, "ratio", _LEAST_OF_PINNED, ">=", 1)]


def _claim(name: str, value: float, unit: str, bound: float, direction: str, n: int) -> Claim:
    return Claim(name, value, value, value, unit, bound, direction, n, 1)


def measure_copies() -> dict[str, Any]:
    """What `realrun.cuda.measure` says; takes half a minute.

    Raises
    ------
    RuntimeError
        If there is no GPU that works; says why.
    """
    measured = _run([sys.executable, "-m", "realrun.cuda.measure"], _COPIES_LIMIT_S)
    if measured.returncode:
        said = measured.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"the GPU cannot be used: {said[-1]}")
    copies: dict[str, Any] = json.loads(measured.stdout)
    return copies


def check(
    copies: dict[str, Any], profile: MachineProfile, began_s: float, progress: Progress
) -> Found:
    """Run the loop and the tests, within `LIMIT_S` of when the whole began."""
    device = DeviceConfig(kind="cuda", model=_MODEL)
    # Tests last: what they leave no time for, 'pytest -m gpu' runs by itself.
    deadline_s = began_s + LIMIT_S - (_TESTS_LIMIT_S if _TESTS.is_dir() else 0.0)
    rows, not_run, failures = run_cells(cells(), device, profile, deadline_s, progress)
    tests = -1
    if _TESTS.is_dir():
        progress("tests that need a GPU")
        left_s = max(began_s + LIMIT_S - time.monotonic(), 10.0)
        done = _run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(_TESTS)], left_s)
        tests = done.returncode
        if tests:
            failures.append("tests: " + (done.stdout.strip().splitlines() or ["no output"])[-1])
    return Found(tests, copies, rows, not_run, failures)


def write_found(path: Path, found: Found) -> None:
    """Store everything as JSON."""
    content = {
        "copies": found.copies,
        "tests": found.tests,
        "rows": [
            {**row.cell._asdict(), **dict(zip(row._fields[1:], row[1:], strict=True))}
            for row in found.rows
        ],
        "not_run": [_name(cell) for cell in found.not_run],
        "failures": found.failures,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _name(cell: Cell) -> str:
    return f"batch {cell.batch}, {cell.scheduling}, {cell.observe}, {cell.policy}"


def _run(command: list[str], limit_s: float) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        what = " ".join(command[1:4])
        return subprocess.CompletedProcess(command, -1, "", f"{what}: no end after {limit_s:.0f} s")
