"""StepAhead, spin and park by turns on this machine, each tape once with each, and in the model."""

from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from realrun.run import make_spec, run_once
from realrun.validate import predict
from shmsim.config import DeviceConfig, RunConfig, WorkloadConfig
from shmsim.metrics import cores_of, wait_delay_ns
from shmsim.policies import BusySpin, Park, StepAhead
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.units import MS
from shmsim.wait import SCHEDULER_RECV, WaitPolicy

_JITTER: Final = 0.05


def _config(step_ns: int, n_steps: int, delay_price: float = 10.0) -> RunConfig:
    lengths = {"prompt_p50": 16, "prompt_p95": 16, "output_p50": n_steps, "output_p95": n_steps}
    return replace(
        RunConfig(),
        workload=WorkloadConfig(requests=2, concurrency=2, **lengths),
        device=DeviceConfig(step_ns=step_ns, per_sequence_ns=0, jitter=_JITTER),
        delay_price=delay_price,
    )


#: One worker, two decoding requests, two calls a step. Five percent of 10 ms are more than the
#: block penalty at r = 10, at which to park is right; at r = 30 it is not.
CONFIGS: Final = {
    "2ms": _config(2 * MS, 800),
    "10ms": _config(10 * MS, 300),
    "10ms_r30": _config(10 * MS, 300, 30.0),
}


class Compared(NamedTuple):
    """StepAhead and park against spin on one tape in one world.

    Parameters
    ----------
    added_ns
        Median delay of the scheduler's waits for the end of a step, less spin's.
    cpu_share
        CPU of all processes, over spin's.
    park_share
        The same of parking: no way to wait takes much less, since the rest is work.
    """

    added_ns: float
    cpu_share: float
    park_share: float


class Pair(NamedTuple):
    """Both worlds on one tape, and the records of the spinner on the machine."""

    machine: Compared
    model: Compared
    records: RunRecords


def run(config: RunConfig, profile: MachineProfile, n_tapes: int, folder: Path) -> list[Pair]:
    """Run all three policies on each tape, in turns that begin with another one every time."""
    found = []
    for tape in range(n_tapes):
        policies: list[WaitPolicy] = [BusySpin(), StepAhead(), Park()]
        first = tape % len(policies)
        order = policies[first:] + policies[:first]
        real = {}
        for policy in order:
            name = type(policy).__name__
            real[name] = run_once(make_spec(config, policy, profile, tape))
            real[name].write(folder / f"{name}-{tape}")
        model = {type(p).__name__: predict(config, p, profile, tape) for p in policies}
        found.append(Pair(_compared(real), _compared(model), real["BusySpin"]))
    return found


def _compared(runs: dict[str, RunRecords]) -> Compared:
    delays = {name: _delay_ns(records) for name, records in runs.items()}
    cores = {name: sum(cores_of(records).values()) for name, records in runs.items()}
    return Compared(
        delays["StepAhead"] - delays["BusySpin"],
        cores["StepAhead"] / cores["BusySpin"],
        cores["Park"] / cores["BusySpin"],
    )


def _delay_ns(records: RunRecords) -> float:
    return float(np.median(wait_delay_ns(records, SCHEDULER_RECV, call=1)))
