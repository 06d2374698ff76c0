"""One tape of one engine: requests, costs, random numbers and sizes that all policies share."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.config import RunConfig
from shmsim.profile import AT_DEVICE, AT_REST, MachineProfile
from shmsim.sim.contended import CARRYING
from shmsim.sim.deciding import can_rest
from shmsim.sim.loop import _reply_bytes, _request_bytes
from shmsim.sim.recurrence import device
from shmsim.sim.recurrence.luck import (
    COMPLETE,
    DECODE_REPLY,
    DECODE_REQUEST,
    ENCODE_REPLY,
    ENCODE_REQUEST,
    ENTER,
    EXIT,
    LAUNCH,
    MARGIN,
    PUBLISH,
    READ,
    SCHEDULE,
    Costs,
    Passage,
    luck_of,
)
from shmsim.sim.recurrence.state import REQUEST
from shmsim.tape import Tape

# A window is small enough for the caches, and long enough that its start costs nothing.
_LEAST_STEPS: Final = 256
_MOST_STEPS: Final = 1 << 13
_MOST_NUMBERS: Final = 1 << 20
_FIRST_SIZED: Final = 256

_THREAD_COSTS: Final = ("ring_publish", "notify_unarmed", "notify_armed", "notify_further")
_SITE_COSTS: Final = (
    "wait_enter", "spin_detection", "yield_detection", "wake_latency", "park_cpu",
    "timer_overshoot", "doze_cpu",
)  # fmt: skip
_RESTS: Final = ("spin", "park", "doze", "rehearsal")


class SharedTape:
    """What every policy on one tape meets, window by window.

    Parameters
    ----------
    config, profile
        What to run, on which costs.
    tape
        Of this engine.
    name
        Before the names of its processes, as of `shmsim.sim.loop.StepLoop`.
    policy_types
        Classes of policies, each of which costs what it costs.
    device_policy_type
        Of those who wait for the device; None: nobody does by policy.

    Attributes
    ----------
    requests
        As at the start, shape ``(n_requests,)``.
    law, factors
        For the compiled loop; the latter hold the luck of steps on the device, by step modulo their
        number.
    sizes
        Bytes of the first call and of the reply by sequences in the batch, shape ``(2, n)``.
    wait_costs
        What policies are told.
    window_steps, margin
        How many steps a window goes on by, and how many beyond it at either end it holds as well.
    """

    def __init__(
        self,
        config: RunConfig,
        profile: MachineProfile,
        tape: Tape,
        name: str,
        policy_types: Iterable[type],
        device_policy_type: type | None,
    ) -> None:
        """Draw the requests and the first window."""
        self.config = config
        self.profile = profile
        self.name = name
        self.wait_costs = profile.wait_costs(config.delay_price)
        workload = config.workload.build(tape)
        self.is_closed = workload.concurrency > 0
        self.n_at_start = min(workload.concurrency, len(workload.requests))
        self.requests = np.zeros(len(workload.requests), REQUEST)
        for field, column in zip(
            ("arrival_ns", "prompt", "output"), zip(*workload.requests, strict=True), strict=True
        ):
            self.requests[field] = column
        if self.is_closed:
            self.requests["arrival_ns"] = 0
            self.requests["after_idle"][0] = 1
        step_time = config.device.step_time
        self.law = device.pack(step_time)
        self._step_time = step_time
        self.window_steps = self._fitting_steps()
        self.margin = MARGIN + config.engine.depth
        self._tape = tape
        self._costs = Costs()
        self._add_costs(self._costs)
        self.passage = self._passage(self._costs)
        #: Of each class of policies, and of those who wait for the device.
        self.deciding = {kind: self._deciding(kind, self._sites) for kind in policy_types}
        self.device_deciding: Deciding | None = None
        if device_policy_type is not None:
            self.device_deciding = self._deciding(device_policy_type, self._device_sites)
        self._noise = tape.generator("device", "step") if device.varies(step_time) else None
        self._n_windows = 0
        self.factors = np.ones(1)
        if self._noise is not None:
            self.factors = self._draw_factors(2 * self.window_steps)
        scheduler, *workers = self.actor_costs
        of_scheduler = ((SCHEDULE, ENCODE_REQUEST, PUBLISH), (EXIT, READ, DECODE_REPLY, COMPLETE))
        of_worker = ((ENCODE_REPLY, PUBLISH), (EXIT, READ, DECODE_REQUEST, LAUNCH))
        #: What each thread does before a publication and after a wait, see `ACTOR`.
        self.actor_sums_ns = [
            [self._costs.sum_ns(first + cost for cost in costs) for costs in sums]
            for first, sums in [(scheduler, of_scheduler), *((w, of_worker) for w in workers)]
        ]
        self.sizes: Any = None
        self.size_up(min(config.engine.max_sequences + 1, _FIRST_SIZED))

    @property
    def stop_step(self) -> int:
        """The step at which the window ends."""
        return (1 + self._n_windows) * self.window_steps + self.margin

    def move_on(self) -> None:
        """Go on to the next window."""
        self._n_windows += 1
        self.passage.move_on()
        for deciding in self.deciding.values():
            deciding.passage.move_on()
        if self.device_deciding is not None:
            self.device_deciding.passage.move_on()
        if self._noise is not None:
            # A ring of two windows: the newer half takes the place of the older one.
            at = (1 + self._n_windows) % 2 * self.window_steps
            self.factors[at : at + self.window_steps] = self._draw_factors(self.window_steps)

    def begin_sums_ns(self, site_costs: list[int], deciding: "Deciding") -> list[int]:
        """What it takes to begin a wait at each site, where it is always the same; else -1."""
        enter_ns = [self._costs.constant_ns(site + ENTER) for site in site_costs]
        return [
            -1 if enter is None or plan is None else enter + plan
            for enter, plan in zip(enter_ns, deciding.plan_ns, strict=True)
        ]

    def size_up(self, n: int) -> None:
        """Know the sizes of messages about fewer than ``n`` sequences."""
        n = min(n, self.config.engine.max_sequences + 1)
        self.sizes = np.array(
            [[size(i) for i in range(n)] for size in (_request_bytes, _reply_bytes)], np.int64
        )

    def _draw_factors(self, n: int) -> Any:
        assert self._noise is not None, "a law without luck draws nothing"
        return device.factors(self._step_time, self._noise.random(n))

    def _fitting_steps(self) -> int:
        """A power of two: not much longer than the run, and not too long to be held."""
        engine = self.config.engine
        at_once = min(engine.max_sequences, self.n_at_start or 1)
        n_steps = int(self.requests["output"].sum()) // at_once + len(self.requests)
        most = _MOST_NUMBERS // (40 * engine.workers)
        most = max(_LEAST_STEPS, min(n_steps, most, _MOST_STEPS))
        return 1 << (most - 1).bit_length()

    # Costs, in the order of `shmsim.sim.recurrence.luck`.

    def _passage(self, costs: Costs) -> Passage:
        return Passage(luck_of(self._tape, self.window_steps, self.margin, costs.all()))

    def _add_costs(self, known: Costs) -> None:
        engine, handoff, costs = self.config.engine, self.config.handoff, self.profile.costs
        n_calls, is_async = engine.calls_per_step, engine.scheduling == "async"
        n_rounds = 1 if is_async else n_calls
        self.n_replies = n_replies = engine.workers if handoff.replies == "all" else 1
        scheduler = f"{self.name}scheduler"

        def add(entity: str, names: Iterable[str], rate: int, fixed: int = 0) -> list[int]:
            return [
                known.add(costs[name], entity, name, rate, fixed)
                if name in costs and (rate or fixed)
                else known.constant()
                for name in names
            ]

        self.actor_costs = [add(scheduler, _THREAD_COSTS, n_calls)[0]]
        add(scheduler, ("wait_exit", "ring_read"), n_replies * n_rounds)
        add(scheduler, ("schedule",), 1)
        add(scheduler, ("encode_request",), n_calls)
        add(scheduler, ("decode_reply",), n_rounds)
        add(scheduler, ("complete",), 1)
        # An arrival ends each idle period, so there are no more of them than requests.
        n_idles = 0 if self.is_closed else len(self.requests)
        add(f"{scheduler} idle", ("timer_overshoot", "doze_cpu", "slow_after_park"), 0, n_idles)
        workers = [f"{self.name}worker{rank}" for rank in range(engine.workers)]
        for rank, worker in enumerate(workers):
            rate = 0 if rank >= n_replies else n_rounds
            self.actor_costs.append(add(worker, _THREAD_COSTS, rate)[0])
            add(worker, ("wait_exit", "ring_read", "decode_request"), n_calls)
            add(worker, ("launch",), 1)
            add(worker, ("encode_reply",), rate)
            add(worker, ("device_return",), 1)
            add(f"{worker} end", ("worker_slow_after_doze",), 1)
            add(worker, ("d2h",), 1 if self.config.payload.output_bytes else 0)

        # Sites, and how many waits each has in a step.
        self._sites = [(f"{scheduler}{i or ''}", n_rounds) for i in range(n_replies)]
        self._sites += [(worker, n_calls) for worker in workers]
        self._device_sites = [(f"{worker} device", 1) for worker in workers]
        kinds = [("", "")] * n_replies + [("worker_", "")] * engine.workers
        sites = list(zip(self._sites, kinds, strict=True))
        if engine.device_wait:
            sites += [(site, ("worker_", AT_DEVICE)) for site in self._device_sites]
        self.site_costs: list[int] = []
        for (entity, rate), (worker, prefix) in sites:
            rest = (f"{worker}rehearsal", CARRYING, *(f"{worker}slow_after_{x}" for x in _RESTS))
            ids = []
            for name in (*_SITE_COSTS, *rest):
                curve = costs.get(prefix + name) or costs.get(name)
                ids.append(known.add(curve, entity, name, rate) if curve else known.constant())
            known.add(None, entity, "policy", rate)
            self.site_costs.append(ids[0])

    def _deciding(self, kind: type, sites: list[tuple[str, int]]) -> "Deciding":
        rests = can_rest(kind)
        whose = (kind.__name__, AT_REST) if rests else (kind.__name__,)
        made = [self.profile.costs_of_policy(name) for name in whose]
        costs = Costs()
        plans = []
        for entity, rate in sites:
            numbers = [
                costs.add(curves[what], entity, what, rate)
                for curves in made
                for what in ("plan", "after")
            ]
            plans.append(numbers[0])
        plan_ns = [None if rests else costs.constant_ns(plan) for plan in plans]
        return Deciding(plans, plan_ns, self._passage(costs))


class Deciding(NamedTuple):
    """What a class of policies takes to decide.

    Parameters
    ----------
    plans
        Number of the cost of a plan at each site; that of learning follows it, and then, of a
        policy that can rest, both of a wait that is left undecided.
    plan_ns
        The former, where it is constant.
    passage
        Its luck.
    """

    plans: list[int]
    plan_ns: list[int | None]
    passage: Passage
