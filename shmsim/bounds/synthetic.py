"""Made-up waits with shapes that step loops have, and some that nobody can predict.

The first four are those of waits.md, section 5, where their laws are stated in words; the numbers
that it leaves open are ours. They are assumptions: recorded waits replace them.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmsim.bounds.trace import WaitTrace, trace_of
from shmsim.distribution import Curve, Distribution
from shmsim.profile import COSTS, MachineProfile
from shmsim.tape import Tape
from shmsim.units import MS, US, S


def steady_decode(tape: Tape, n_waits: int = 4000, cv: float = 0.03) -> WaitTrace:
    """A: steps of 1.5 ms with a coefficient of variation of 3 %; the batch tells nothing."""
    noise = tape.generator("trace", "noise").standard_normal(n_waits)
    return trace_of(_positive(1.5 * MS * (1.0 + cv * noise)), 4)


def mixed_prefill(tape: Tape, n_waits: int = 4000, cv: float = 0.02) -> WaitTrace:
    """B: decode steps among steps with prompts in them, mean 18.2 ms; linear in the batch."""
    rng = tape.generator("trace", "batches")
    n_decode = 16 + np.cumsum(rng.integers(-1, 2, n_waits)) % 48
    tokens = np.minimum(np.exp(rng.normal(np.log(600.0), 0.8, n_waits)), 4096.0).astype(np.int64)
    n_prefill = np.where(rng.random(n_waits) < 0.5, tokens, 0)
    n_kv = n_decode * 700 + rng.integers(0, 400, n_waits) * n_decode
    mean_ns = 1.2 * MS + 12 * US * n_decode + 39 * US * n_prefill + 0.02 * US * n_kv
    noise = tape.generator("trace", "noise").standard_normal(n_waits)
    return trace_of(_positive(mean_ns * (1.0 + cv * noise)), n_decode, n_prefill, n_kv)


def with_idle(tape: Tape, n_waits: int = 4000) -> WaitTrace:
    """C: trace B, where 1 % of the waits last until an arrival, 1.5 s on average."""
    trace = mixed_prefill(tape, n_waits)
    rng = tape.generator("trace", "idle")
    pending = rng.random(n_waits) >= 0.01
    idle_ns = rng.exponential(1.5 * S, n_waits)
    gap_ns = np.where(pending, trace.gap_ns, idle_ns.astype(np.int64))
    return trace._replace(gap_ns=gap_ns, pending=pending)


def asynchronous(tape: Tape, n_waits: int = 4000) -> WaitTrace:
    """D: gaps of 80 us, hardly longer than a timer is late; one in thirty lasts a whole step."""
    rng = tape.generator("trace", "noise")
    gap_ns = 80 * US * np.exp(rng.normal(0.0, 0.5, n_waits))
    whole = rng.random(n_waits) < 1 / 30
    step_ns = 1.5 * MS * (1.0 + 0.2 * rng.standard_normal(n_waits))
    return trace_of(_positive(np.where(whole, step_ns, gap_ns)), 4)


def level_shifts(tape: Tape, n_waits: int = 4000) -> WaitTrace:
    """Steps of 1.5, 0.9, then 2.5 ms, 3 % jitter, with nothing that announces the change."""
    noise = tape.generator("trace", "noise").standard_normal(n_waits)
    level_ns = np.repeat([1.5 * MS, 0.9 * MS, 2.5 * MS], -(-n_waits // 3))[:n_waits]
    return trace_of(_positive(level_ns * (1.0 + 0.03 * noise)), 4)


def memoryless(tape: Tape, n_waits: int = 4000, mean_ns: float = 2 * MS) -> WaitTrace:
    """Exponential gaps: how long it has lasted says nothing about how long it will."""
    return trace_of(_positive(tape.generator("trace", "noise").exponential(mean_ns, n_waits)), 4)


def heavy_tailed(tape: Tape, n_waits: int = 4000) -> WaitTrace:
    """Pareto gaps from 0.2 ms with index 1.5: the longer it has lasted, the longer it will."""
    drawn = tape.generator("trace", "noise").pareto(1.5, n_waits)
    return trace_of(_positive(np.minimum(0.2 * MS * (1.0 + drawn), 10.0 * S)), 4)


def uniform_gaps(tape: Tape, n_waits: int = 4000) -> WaitTrace:
    """Gaps uniform between 0 and 4 ms."""
    return trace_of(_positive(tape.generator("trace", "noise").uniform(0, 4 * MS, n_waits)), 4)


#: The traces of waits.md, section 5.
PREDICTABLE: Final[dict[str, Callable[[Tape], WaitTrace]]] = {
    "A decode": steady_decode,
    "B mixed": mixed_prefill,
    "C idle": with_idle,
    "D async": asynchronous,
}

#: Traces that no prediction helps with.
UNPREDICTABLE: Final[dict[str, Callable[[Tape], WaitTrace]]] = {
    "memoryless": memoryless,
    "heavy-tailed": heavy_tailed,
    "uniform": uniform_gaps,
    "jitter 30 %": lambda tape: mixed_prefill(tape, cv=0.3),
}


def assumed_profile() -> MachineProfile:
    """The noise of waits.md, section 5: every cost of waiting that it names, and no other.

    Wake latency log-normal with median 40 us and sigma 0.35, timer overshoot the same with 30 us,
    10 us of CPU for a doze that its timer ended, 12 us for one park, 0.5 us of detection.
    """
    scores = np.linspace(-3.0, 3.0, 2001)
    weights = np.exp(-0.5 * scores * scores)
    normal = np.interp((np.arange(4000) + 0.5) / 4000, np.cumsum(weights) / weights.sum(), scores)
    known = {
        "wake_latency": Distribution.of([40 * US * np.exp(0.35 * normal)]),
        "timer_overshoot": Distribution.of([30 * US * np.exp(0.35 * normal)]),
        "doze_cpu": Distribution.of([[10 * US]]),
        "park_cpu": Distribution.of([[12 * US]]),
        "spin_detection": Distribution.of([[500]]),
        "yield_detection": Distribution.of([[500]]),
    }
    nothing = Distribution.of([[0]])
    curves = {
        name: Curve(by, (0.0,), (known.get(name, nothing),))
        for name, (by, _) in COSTS.items()
        if by != "policy"
    }
    free = dict.fromkeys(("plan", "after"), Curve("", (0.0,), (nothing,)))
    return MachineProfile(curves, {"StepAhead": free}, {"cpu": "assumed"}, "")


def _positive(gap_ns: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.maximum(gap_ns, 1.0).astype(np.int64)
