"""Speed, memory and growth of the model, which is a program in Python and SimPy.

``python simulated.py PROFILE N_STEPS keep|drop`` runs the model once in a process of its own and
prints the greatest memory that took, as JSON. With ``drop`` the rows that the caller gets, one for
each step and wait, are thrown away as they come: what then still grows is the model's own.
"""

import json
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.config import CoresConfig, EngineConfig, RunConfig, WorkloadConfig, parse_config
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.sim.box import Box
from shmsim.sim.cores import Schedule
from shmsim.sim.loop import StepLoop
from shmsim.sim.run import simulate
from shmsim.tape import Tape

_SHAPE: Final = Path(__file__).with_name("model.toml")
_POLICY: Final = PRESETS["wake-ahead"]
_BATCH: Final = 256  # requests in the engine at once, where many are wanted


def shape() -> RunConfig:
    """The run of model.toml."""
    return parse_config(tomllib.loads(_SHAPE.read_text()))


class Timed(NamedTuple):
    """One run of the model.

    Parameters
    ----------
    n_steps, n_requests
        Its size.
    cpu_s
        CPU time from the config to the records.
    """

    n_steps: int
    n_requests: int
    cpu_s: float


def timed(config: RunConfig, profile: MachineProfile, policy: str = "wake-ahead") -> Timed:
    """Run the model once and take its time."""
    started_s = time.process_time()
    records = simulate(config, PRESETS[policy], profile)
    cpu_s = time.process_time() - started_s
    return Timed(len(records.steps), len(records.requests), cpu_s)


def with_workers(n_workers: int, n_steps: int) -> RunConfig:
    """The shape at another number of workers, with a core for each process."""
    return replace(
        _with_steps(n_steps),
        engine=replace(shape().engine, workers=n_workers),
        cores=CoresConfig(n=1 + n_workers),
    )


def with_requests(n_requests: int) -> RunConfig:
    """One worker that serves many short requests, a full batch at a time."""
    return RunConfig(
        EngineConfig(max_sequences=_BATCH, max_batched_tokens=32 * _BATCH),
        cores=CoresConfig(n=2),
        workload=WorkloadConfig(
            requests=n_requests,
            concurrency=_BATCH,
            prompt_p50=16,
            prompt_p95=16,
            output_p50=4,
            output_p95=4,
        ),
    )


def _with_steps(n_steps: int) -> RunConfig:
    config = shape()
    workload = config.workload
    tokens = n_steps * workload.concurrency // workload.requests
    return replace(config, workload=replace(workload, output_p50=tokens, output_p95=tokens))


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The power of the size with which the time grows, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


class _Dropped(list[Any]):
    """A list that counts and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._n = 0

    def append(self, _row: object) -> None:
        self._n += 1

    def __len__(self) -> int:
        return self._n


def peak_bytes() -> int:
    """Greatest memory of this process so far; of its parent before the exec nothing counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmHWM: the kernel does not count memory")


def main() -> None:
    """Run once, tell the greatest memory."""
    profile, n_steps, rows = MachineProfile.read(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    config = _with_steps(n_steps)
    tape = Tape(config.seed)
    workload = config.workload.build(tape)
    loop = StepLoop(
        *(profile, config.engine, config.device.step_time, workload, _POLICY, tape),
        config.delay_price,
        box=Box(Schedule(config.cores.n), 1 + config.engine.workers, pins=config.pin, tape=tape),
    )
    if rows == "drop":
        loop.steps = _Dropped()
        for actor in (loop.scheduler, *loop.workers):
            actor.rows = _Dropped()
    loop.run()
    json.dump({"n_steps": len(loop.steps), "peak_bytes": peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
