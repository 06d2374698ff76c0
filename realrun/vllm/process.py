"""What the ends of all queues of one process share: policies, counters, trace, calls in order."""

import os
import resource
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from realrun.vllm.arms import Arm
from realrun.vllm.calls import NOTHING_YET, OTHER, Call, describe
from realrun.vllm.control import ARM, MUTE, Control, Counters
from realrun.vllm.trace import SAMPLE, Row, Trace
from shmsim.units import MS
from shmsim.wait import WaitCosts

_TICK_NS: Final = 50 * MS


class Process:
    """State of one process of an engine.

    Parameters
    ----------
    arms
        The ways to wait; the first is vLLM's.
    costs
        What policies are told.
    control, control_path
        Which arm is in force; the path is None where nobody else can look.
    trace
        Where rows go; None keeps none.
    """

    def __init__(
        self,
        arms: tuple[Arm, ...],
        costs: WaitCosts,
        control: Control,
        control_path: Path | None,
        trace: Trace | None,
    ) -> None:
        """Start with nothing awaited."""
        self.arms = arms
        self.costs = costs
        self.trace = trace
        self.control = control
        self._words = control.words
        self.last = NOTHING_YET
        self._control_path = control_path
        self._line = 0
        self._identity = Counters(os.getpid(), 0, 0)
        self._tallies: list[Tally] = []
        self._ticked_ns = 0
        self._owed: defaultdict[int, deque[Call]] = defaultdict(deque)

    def becomes(self, is_worker: bool, rank: int) -> None:
        """Say what this process turned out to be."""
        self._line = self.control.claim(self._control_path)
        self._identity = Counters(os.getpid(), int(is_worker), rank)
        self.control.write(self._line, self._identity)

    @property
    def arm(self) -> int:
        """The arm in force; vLLM's own where there are no others."""
        arm = self._words[ARM]
        return arm if arm < len(self.arms) else 0

    @property
    def has_policies(self) -> bool:
        """Whether there is anything but vLLM's own waiting."""
        return len(self.arms) > 1

    @property
    def keeps(self) -> bool:
        """Whether rows are kept of what begins now."""
        return self.trace is not None and not self._words[MUTE]

    def tally(self) -> "Tally":
        """Counters of one more end, which is used by one thread at a time."""
        tally = Tally()
        self._tallies.append(tally)
        return tally

    def counters(self) -> Counters:
        """What all ends have counted."""
        sums = (sum(getattr(t, name) for t in self._tallies) for name in Tally.__slots__)
        return Counters(*self._identity[:3], *sums)

    # Who is owed which replies: they come in the order of the calls.

    def called(self, message: Any, ranks: Sequence[int]) -> Call:
        """Note a call that was sent or read here, and who of these ranks owes a reply."""
        self.last = call = describe(message, self.last)
        output_rank = message[3]
        if output_rank is None:
            for rank in ranks:
                self._owed[rank].append(call)
        elif output_rank in ranks:
            self._owed[output_rank].append(call)
        return call

    def owed(self, rank: int) -> Call:
        """The call that the next reply of a worker answers."""
        calls = self._owed[rank]
        return calls[0] if calls else self.last._replace(kind=OTHER)

    def paid(self, rank: int) -> Call:
        """The call that is answered by a reply which was read, or is being sent."""
        calls = self._owed[rank]
        return calls.popleft() if calls else self.last._replace(kind=OTHER)

    def tick(self, now_ns: int) -> None:
        """Show the counters and write down what the process has used so far, now and then."""
        if now_ns - self._ticked_ns < _TICK_NS:
            return
        self._ticked_ns = now_ns
        self.control.write(self._line, self.counters())
        if self.trace is None:
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        row = Row(
            started_ns=now_ns,
            work_cpu_ns=time.process_time_ns(),
            n_decode=usage.ru_nvcsw,
            n_prefill_tokens=usage.ru_nivcsw,
            kind=SAMPLE,
        )
        self.trace.write(row)


class Tally:
    """Counters of one end: the fields of `Counters` behind its identity."""

    __slots__ = Counters._fields[3:]

    def __init__(self) -> None:
        """Start at nothing."""
        self.waits = self.at_once = self.vllm_waits = self.slot_waits = 0
        self.sent = self.rung = self.pinged = 0
        self.spurious = self.rescued = self.overtaken = 0
