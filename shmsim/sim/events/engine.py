"""The loop of events: takes one after the other and lets processes and timers go on."""

from shmsim.sim.events import words as w
from shmsim.sim.events.acting import (
    BALANCER,
    FINISH,
    PUBLISH,
    READ,
    RECEIVE,
    REPLIES,
    SCHEDULER,
    TAKE,
    THIEF,
    WAIT,
    WORKER,
    WRITE,
    publishing,
    reading,
)
from shmsim.sim.events.agenda import go_on_now, schedule, take_next
from shmsim.sim.events.bulk import NOTHING, let_go, taking, writing
from shmsim.sim.events.compiling import compiled
from shmsim.sim.events.cores import balance, core_timer, give_back, poke, refill, steal, throttle
from shmsim.sim.events.device import finish
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.events.scheduling import receiving, scheduling
from shmsim.sim.events.sources import arrive
from shmsim.sim.events.waiting import serve_next, waiting
from shmsim.sim.events.working import finishing, hand_over, replying, working


@compiled
def _thieving(s: Words, x: Numbers, p: int) -> None:
    """The hypervisor takes a core now and then, for a while."""
    core, host = s[p + w.P_OTHER], s[w.HOST]
    state = s[p + w.P_STATE]
    if state == 1:
        steal(s, core)
        s[p + w.P_STATE] = 2
        schedule(s, s[host + w.H_STEAL], w.RESUME, p)
        return
    if state == 2:
        give_back(s, core)
    n = s[p + w.P_VALUE]
    interval_ns = max(1, int(x[s[p + w.P_UNIFORM] + n] * s[host + w.H_STEAL_EVERY]))
    s[p + w.P_VALUE] = n + 1
    if n + 1 == s[p + w.P_RANK] and s[w.STATUS] != w.REFUSED:
        s[w.STATUS] = w.WANTS_THEFTS
        s[w.DETAIL] = p
    s[p + w.P_STATE] = 1
    schedule(s, interval_ns, w.RESUME, p)


@compiled
def _balancing(s: Words, p: int) -> None:
    """A core looks at every so many of its ticks whether another has more to do."""
    core = s[p + w.P_OTHER]
    state = s[p + w.P_STATE]
    if state == 0:
        s[p + w.P_STATE] = 1
        schedule(s, s[core + w.K_PHASE], w.RESUME, p)
        return
    if state == 2:
        s[p + w.P_VALUE] = balance(s, core, s[p + w.P_VALUE])
    s[p + w.P_STATE] = 2
    schedule(s, s[p + w.P_RANK], w.RESUME, p)


@compiled
def _resume(s: Words, x: Numbers, p: int) -> None:
    """Let a process go on until it has to wait."""
    s[w.ACTIVE] = p
    goes_on = True
    while goes_on:
        routine = s[p + w.P_ROUTINE]
        if routine == WAIT:
            goes_on = waiting(s, x, p)
        elif routine == READ:
            goes_on = reading(s, x, p)
        elif routine == PUBLISH:
            goes_on = publishing(s, x, p)
        elif routine == WORKER:
            goes_on = working(s, x, p)
        elif routine == FINISH:
            goes_on = finishing(s, x, p)
        elif routine == SCHEDULER:
            goes_on = scheduling(s, x, p)
        elif routine == RECEIVE:
            goes_on = receiving(s, p)
        elif routine == REPLIES:
            goes_on = replying(s, p)
        elif routine == WRITE:
            goes_on = writing(s, x, p, SCHEDULER)
        elif routine == TAKE:
            goes_on = taking(s, x, p)
        elif routine == THIEF:
            _thieving(s, x, p)
            goes_on = False
        elif routine == BALANCER:
            _balancing(s, p)
            goes_on = False
        else:
            if s[p + w.P_STATE] == 1:
                refill(s, s[w.HOST])
            s[p + w.P_STATE] = 1
            schedule(s, s[s[w.HOST] + w.H_PERIOD], w.RESUME, p)
            goes_on = False
    # Who asks Python for something stays active, and goes on with the answer.
    if s[w.STATUS] != w.WANTS_STEP and s[w.STATUS] != w.WANTS_BYTES:
        s[w.ACTIVE] = 0


@compiled
def _end(s: Words, p: int) -> None:
    """A process has ended."""
    if s[p + w.P_IS_ENDED] != 0:
        s[w.N_UNENDED] -= 1
        if s[w.N_UNENDED] == 0:
            schedule(s, 0, w.STOP, 0)


@compiled
def _stream_free(s: Words, x: Numbers, step: int) -> None:
    """What was launched before a copy has ended: whoever spins in the driver goes on."""
    s[w.IS_HELD] = 1
    for n in range(s[step + w.SS_N_AWAITING]):
        process = s[s[step + w.SS_AWAITING] + n]
        thread = s[s[process + w.P_LANE] + w.L_THREAD]
        if thread == 0:
            _resume(s, x, process)
        else:
            poke(s, thread)
    s[w.IS_HELD] = 0


def run_events(s: Words, x: Numbers) -> int:
    """Run until the end, or until Python is needed; returns the status.

    Parameters
    ----------
    s, x
        The memory of the run.
    """
    process = s[w.ACTIVE]
    while True:
        if process != 0:
            _resume(s, x, process)
        if s[w.STATUS] != w.RUNNING:
            return s[w.STATUS]
        entry = take_next(s)
        event, about = s[entry + 2], s[entry + 3]
        s[w.N_EVENTS] += 1
        process = 0
        if event == w.RESUME:
            process = about
        elif event == w.CORE_TIMER:
            process = core_timer(s, about)
        elif event == w.STEP_DONE:
            finish(s, x, about)
        elif event == w.GIVE_UP:
            process = go_on_now(s, arrive(s, about, 0))
        elif event == w.METER:
            throttle(s, about)
        elif event == w.STORED:
            hand_over(s, about)
        elif event == w.RELEASED:
            serve_next(s, about)
        elif event == w.LANDED:
            engine = s[about + w.CP_ENGINE]
            if s[about + w.CP_SENT] != NOTHING:
                let_go(s, s[engine + w.EN_BULK], s[about + w.CP_RANK], s[about + w.CP_SENT])
        elif event == w.STREAM_FREE:
            _stream_free(s, x, about)
        elif event == w.ENDED:
            _end(s, about)
            if s[about + w.P_ROUTINE] == REPLIES:
                process = s[about + w.P_OTHER]
        else:
            s[w.STATUS] = w.FINISHED
