"""What a check of a GPU runs, and the figures that it takes of a run in either world."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.metrics import cores_of, step_time_ns, summarize
from shmsim.records import RunRecords

MODEL: Final = "llama-3.2-1b"
PROMPT: Final = 64
OUTPUT: Final = 300
BATCHES: Final = (2, 32, 1, 8)
POLICIES: Final = ("spin", "step-ahead-rehearsed", "vllm-1s", "forks-2ms", "park", "wake-ahead")
WAYS: Final = ("query", "blocking", "copy", "sync")


class Cell(NamedTuple):
    """One way to run the loop."""

    batch: int
    scheduling: str
    observe: str
    policy: str
    repeat: int = 0


class Figures(NamedTuple):
    """What is compared of a run.

    Parameters
    ----------
    tpot_p50_ns, step_p50_ns
        Time per output token as a client sees it, and the device's time for a step.
    cores
        CPU of scheduler and workers together.
    """

    tpot_p50_ns: float
    step_p50_ns: float
    cores: float


class Row(NamedTuple):
    """What came out of a cell.

    Parameters
    ----------
    cell
        Which.
    tpot_p50_ns, step_p50_ns, cores
        See `Figures`.
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


def cells() -> list[Cell]:
    """What is asked, most wanted first."""
    wanted = [Cell(2, "sync", "write", policy) for policy in POLICIES]
    wanted.append(Cell(2, "sync", "write", "spin", 1))  # the noise of the box
    wanted += [Cell(2, "sync", way, "spin") for way in WAYS]
    wanted += [Cell(2, "async", "write", policy) for policy in POLICIES[:3]]
    wanted += [Cell(b, "sync", "write", p) for b in BATCHES[1:] for p in POLICIES[:3]]
    wanted += [Cell(2, "sync", way, p) for way in WAYS[:2] for p in POLICIES[1:]]
    wanted += [Cell(b, "async", "write", p) for b in BATCHES[1:] for p in POLICIES[:2]]
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
            prompt_p50=PROMPT,
            prompt_p95=PROMPT,
            output_p50=OUTPUT,
            output_p95=OUTPUT,
        ),
    )


def figures_of(records: RunRecords) -> Figures:
    """The figures of one run."""
    return Figures(
        summarize(records).tpot.p50,
        float(np.median(step_time_ns(records.steps))),
        float(sum(cores_of(records).values())),
    )


def row_of(cell: Cell, records: RunRecords) -> Row:
    """The figures of one run on the machine, and what only that has."""
    meta = records.meta
    return Row(cell, *figures_of(records), meta["tokens_crc32"], meta["devices"][0])


def name_of(cell: Cell) -> str:
    """What a cell is called in lists."""
    again = f", run {cell.repeat + 1}" if cell.repeat else ""
    return f"batch {cell.batch}, {cell.scheduling}, {cell.observe}, {cell.policy}{again}"
