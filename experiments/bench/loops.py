"""The runs on which engines are timed, and a plain loop over a heap for comparison."""

import heapq
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import simulated

from shmsim.config import CoresConfig, DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.distribution import Curve, Distribution
from shmsim.profile import MachineProfile
from shmsim.units import MS, US

_STEPS_OF_A_REQUEST: Final = 1000


class Loop(NamedTuple):
    """A run, and on which costs.

    Parameters
    ----------
    name
        For tables.
    config, profile
        What to run; its length is set by `steps`.
    """

    name: str
    config: RunConfig
    profile: MachineProfile

    def steps(self, n_steps: int) -> RunConfig:
        """The same run, so many steps long, a thousand at least."""
        batch = self.config.workload.concurrency
        n_requests = max(n_steps // _STEPS_OF_A_REQUEST, 1) * batch
        lengths = {"output_p50": _STEPS_OF_A_REQUEST, "output_p95": _STEPS_OF_A_REQUEST}
        workload = replace(self.config.workload, requests=n_requests, **lengths)
        return replace(self.config, workload=workload)


def loops() -> dict[str, Loop]:
    """What is timed: everything on, a core for each thread, and as lean as it gets."""
    shipped = MachineProfile.shipped("vm-2cpu")
    claimed = simulated.shape()
    lean = RunConfig(
        EngineConfig(workers=1, calls_per_step=1, max_sequences=1),
        workload=WorkloadConfig(
            "closed", concurrency=1, prompt_p50=8, prompt_p95=8, output_p50=8, output_p95=8
        ),
        device=DeviceConfig(step_ns=2 * MS, per_sequence_ns=0, per_prefill_token_ns=0, jitter=0.0),
    )
    return {
        loop.name: loop
        for loop in (
            Loop("everything on", claimed, shipped),
            Loop("a core for each thread", replace(claimed, cores=CoresConfig()), shipped),
            Loop("lean", lean, constants_of(shipped)),
        )
    }


def default_loop() -> Loop:
    """What somebody runs who sets nothing: one worker, two calls, steps that jitter."""
    return Loop("default", RunConfig(), MachineProfile.shipped("vm-2cpu"))


def constants_of(profile: MachineProfile) -> MachineProfile:
    """The same machine, if every cost always were its median, whatever it depends on."""
    return replace(
        profile,
        costs={name: _constant(curve) for name, curve in profile.costs.items()},
        policy_costs={
            policy: {name: _constant(curve) for name, curve in both.items()}
            for policy, both in profile.policy_costs.items()
        },
    )


def _constant(curve: Curve) -> Curve:
    return Curve(curve.by, (0.0,), (_median(curve.points[0]),))


def _median(law: Distribution) -> Distribution:
    return Distribution.of([[law.all_at(np.array([0.5]))[0]]])


def heap_loop(n_steps: int) -> int:
    """The lean loop by hand: a heap of events and nothing else; returns how many steps it took.

    No policies, no records, no random numbers: what a program in Python could at most be.
    """
    heap: list[tuple[int, int, int]] = []
    push, pop = heapq.heappush, heapq.heappop
    push(heap, (0, 0, 0))
    serial = done = 0
    publish, see, launched, step, reply = 20 * US, 5 * US, 15 * US, 2 * MS, 20 * US
    while done < n_steps:
        now_ns, _, kind = pop(heap)
        serial += 1
        if kind == 0:  # the scheduler has formed a batch
            push(heap, (now_ns + publish, serial, 1))
        elif kind == 1:  # it is published
            push(heap, (now_ns + see, serial, 2))
        elif kind == 2:  # the worker has seen it
            push(heap, (now_ns + launched, serial, 3))
        elif kind == 3:  # the device has it
            push(heap, (now_ns + step, serial, 4))
        elif kind == 4:  # the step is over
            push(heap, (now_ns + reply, serial, 5))
        else:  # the scheduler has seen the reply
            done += 1
            push(heap, (now_ns + see, serial, 0))
    return done
