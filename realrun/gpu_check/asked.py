"""What a check of a GPU runs, and the figures that it takes of a run in either world."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.config import DeviceConfig, EngineConfig, PayloadConfig, RunConfig, WorkloadConfig
from shmsim.metrics import cores_of, step_time_ns, summarize
from shmsim.records import RunRecords
from shmsim.routing import SlotClass
from shmsim.wait import DEVICE_DONE

MODEL: Final = "llama-3.2-1b"
PROMPT: Final = 64
OUTPUT: Final = 300
#: Held against each other in every kind of cell: spinning, and the policy with claims.
PAIR: Final = ("spin", "step-ahead-rehearsed")
OTHERS: Final = ("vllm-1s", "park", "wake-ahead", "forks-2ms")
BATCHES: Final = (32, 1, 8)  # beside 2, which has every policy and way
WAYS: Final = ("blocking", "query", "copy", "sync")
MEMORIES: Final = ("registered", "pinned", "pageable")
BULK_BYTES: Final = 16 << 20
READERS: Final = 8  # as many as tensor parallel over eight GPUs has


class Cell(NamedTuple):
    """One way to run the loop.

    Parameters
    ----------
    batch, scheduling, observe, policy
        As in the config.
    repeat
        0, or which run of the same.
    readers
        Workers that read what the scheduler sends. The first has the GPU; further ones only
        receive, so that their rows are emulated.
    awake
        Whether idle CPUs are kept from sleeping (`realrun.host.kept_awake`).
    kernels
        Of the decode step, as in the config.
    bulk
        What memory the bulk of each step is copied from, as ``payload.memory``; empty: there is
        none.
    """

    batch: int
    scheduling: str
    observe: str
    policy: str
    repeat: int = 0
    readers: int = 1
    awake: bool = False
    kernels: str = "eager"
    bulk: str = ""


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
    emulated
        Whether a worker had no GPU of its own.
    hop_ns
        From the worker's sight of the end of a step to the scheduler's, median: what a scheduler
        that watched the GPU's word itself would save of a step. None where the worker waits for no
        device, but makes the step up.
    watts
        Power of the CPUs; None where nobody says.
    """

    cell: Cell
    tpot_p50_ns: float
    step_p50_ns: float
    cores: float
    tokens_crc32: int
    device: dict[str, Any]
    emulated: bool = False
    hop_ns: float | None = None
    watts: float | None = None


def cells(n_cores: int) -> list[Cell]:
    """What is asked, most wanted first, for there is no time for all.

    Parameters
    ----------
    n_cores
        That can be used. Eight readers and a scheduler are asked for where each has its own:
        fewer would time the scheduler of the kernel.
    """
    plain = [Cell(2, "sync", "write", policy) for policy in (*PAIR, *OTHERS)]
    fan_out = [cell._replace(readers=READERS) for cell in plain] if n_cores > READERS else []
    wanted = plain[:2]
    wanted.append(plain[0]._replace(repeat=1))  # the noise of the box
    wanted += fan_out[:2]
    wanted += [Cell(2, "async", "write", policy) for policy in PAIR]
    wanted += [Cell(2, "sync", way, policy) for way in WAYS[:2] for policy in PAIR]
    wanted += [Cell(32, "sync", "write", policy) for policy in PAIR]
    wanted.append(plain[0]._replace(kernels="compiled"))  # which takes a minute to compile
    wanted += plain[2:4]
    wanted += [plain[0]._replace(bulk=memory) for memory in MEMORIES]
    wanted.append(plain[3]._replace(awake=True))
    wanted += [Cell(2, "async", way, policy) for way in WAYS[:2] for policy in PAIR]
    wanted += [Cell(2, "sync", way, policy) for way in WAYS[2:] for policy in PAIR]
    wanted += [Cell(b, "sync", "write", policy) for b in BATCHES[1:] for policy in PAIR]
    wanted += [*plain[4:], *fan_out[2:4]]
    wanted += [Cell(b, "async", "write", policy) for b in BATCHES for policy in PAIR]
    wanted += [Cell(2, "async", "write", policy) for policy in OTHERS]
    wanted += [Cell(b, "sync", "write", policy) for b in BATCHES for policy in OTHERS]
    wanted += [Cell(2, "sync", way, policy) for way in WAYS[:2] for policy in OTHERS]
    return wanted


def config_of(cell: Cell, device: DeviceConfig) -> RunConfig:
    """The run that a cell asks for."""
    asked = replace(device, kernels=cell.kernels)
    observed = replace(asked, observe=cell.observe) if device.kind == "cuda" else asked
    return RunConfig(
        engine=EngineConfig(
            workers=cell.readers,
            devices=1 if cell.readers > 1 else 0,
            scheduling=cell.scheduling,
            max_sequences=cell.batch,
            max_batched_tokens=2048,
        ),
        device=observed,
        payload=payload_of(cell),
        workload=WorkloadConfig(
            requests=cell.batch,
            concurrency=cell.batch,
            prompt_p50=PROMPT,
            prompt_p95=PROMPT,
            output_p50=OUTPUT,
            output_p95=OUTPUT,
        ),
    )


def payload_of(cell: Cell) -> PayloadConfig:
    """The bulk of each step of a cell."""
    if not cell.bulk:
        return PayloadConfig()
    arena = (SlotClass(BULK_BYTES, 4),)
    return PayloadConfig(0, BULK_BYTES, "all-shm", BULK_BYTES, arena, cell.bulk)


def figures_of(records: RunRecords) -> Figures:
    """The figures of one run."""
    return Figures(
        summarize(records).tpot.p50,
        float(np.median(step_time_ns(records.steps))),
        float(sum(cores_of(records).values())),
    )


def row_of(cell: Cell, records: RunRecords, watts: float | None = None) -> Row:
    """The figures of one run on the machine, and what only that has."""
    meta = records.meta
    device, emulated = meta["devices"][0], bool(meta["emulated"])
    figures = figures_of(records)
    return Row(cell, *figures, meta["tokens_crc32"], device, emulated, hop_ns_of(records), watts)


def hop_ns_of(records: RunRecords) -> float | None:
    """From the output rank's sight of the end of a step to the scheduler's sight of it, median.

    None where it has none, as an echo of a device.
    """
    seen_ns = {
        wait.step: wait.seen_ns
        for wait in records.waits
        if wait.site == DEVICE_DONE and wait.process == "worker0"
    }
    if not seen_ns:
        return None
    return float(np.median([step.seen_ns - seen_ns[step.step] for step in records.steps]))


def name_of(cell: Cell) -> str:
    """What a cell is called in lists."""
    again = f", run {cell.repeat + 1}" if cell.repeat else ""
    readers = f", {cell.readers} readers" if cell.readers > 1 else ""
    readers += ", CPUs kept awake" if cell.awake else ""
    readers += f", {BULK_BYTES >> 20} MiB from {cell.bulk} memory" if cell.bulk else ""
    readers += f", {cell.kernels}" if cell.kernels != "eager" else ""
    return f"batch {cell.batch}, {cell.scheduling}, {cell.observe}, {cell.policy}{readers}{again}"
