"""The devices of all workers of an engine (`shmsim.sim.device`), on words."""

from shmsim.sim.events import words as w
from shmsim.sim.events.agenda import schedule
from shmsim.sim.events.compiling import compiled, inlined
from shmsim.sim.events.laws import draw_ns
from shmsim.sim.events.memory import Numbers, Words
from shmsim.sim.events.sources import announce


@inlined
def step_of(s: Words, device: int, step: int) -> int:
    """What is known of a step."""
    slot = s[device + w.DE_STEPS] + s[device + w.DE_STRIDE] * (step & (w.STEPS_ROOM - 1))
    if s[slot + w.SS_STEP] == step:
        return slot
    if s[slot + w.SS_STEP] >= 0:
        s[w.STATUS] = w.REFUSED
    n_devices = s[device + w.DE_N_DEVICES]
    s[slot + w.SS_STEP] = step
    s[slot + w.SS_N_LAUNCHED] = 0
    s[slot + w.SS_N_ASKING] = n_devices + 1
    s[slot + w.SS_LANDED] = 0
    s[slot + w.SS_N_AWAITING] = 0
    s[slot + w.SS_N_COPIES] = 0
    for rank in range(n_devices):
        end = s[slot + w.SS_ENDS] + w.SOURCE * rank
        for k in range(w.SOURCE):
            s[end + k] = 0
        s[end + w.W_TYPE] = w.STEP_END
        s[end + w.W_ARMED_SINCE] = -1
        s[end + w.W_SINCE] = -1
    return slot


@compiled
def is_drawn(s: Words, x: Numbers, device: int, message: int) -> bool:
    """Whether the time of a step is known, or can be drawn here; else Python is asked."""
    step = s[message + w.M_STEP]
    slot = step_of(s, device, step)
    if s[slot + w.SS_N_LAUNCHED] != 0 or s[device + w.DE_ASKED] == step:
        return True
    s[device + w.DE_ASKED] = step
    s[device + w.DE_ANSWER] = draw_ns(s, x, device, message)
    if s[device + w.DE_ANSWER] > 0:
        return True
    s[w.STATUS] = w.WANTS_STEP
    s[w.DETAIL] = message
    return False


@compiled
def launch(s: Words, x: Numbers, device: int, message: int) -> None:
    """One worker has launched a step whose time `is_drawn`."""
    step, now_ns = s[message + w.M_STEP], s[w.NOW]
    slot = step_of(s, device, step)
    n_launched = s[slot + w.SS_N_LAUNCHED] + 1
    s[slot + w.SS_N_LAUNCHED] = n_launched
    if n_launched == 1:
        drawn_ns = s[device + w.DE_ANSWER]
        s[slot + w.SS_DRAWN] = drawn_ns
        s[slot + w.SS_SOONEST] = max(now_ns, s[device + w.DE_LAST_DONE]) + drawn_ns
        # Luck for the steps to come is there before it is needed.
        is_short = step + 1 - s[device + w.DE_LUCK_FROM] >= s[device + w.DE_LUCK_ROOM]
        if is_short and s[w.STATUS] != w.REFUSED:
            s[w.STATUS] = w.WANTS_LUCK
            s[w.DETAIL] = device
    if n_launched < s[device + w.DE_N_DEVICES]:
        return
    s[slot + w.SS_LAUNCHED] = now_ns
    n_busy = s[s[w.HOST] + w.H_N_RUNNING] if s[w.HOST] != 0 else 0
    slowdown = 1.0 + x[s[device + w.DE_SLOWDOWN]] * n_busy
    duration_ns = int(s[slot + w.SS_DRAWN] * slowdown)
    begun_ns = max(now_ns, s[device + w.DE_LAST_DONE], s[slot + w.SS_LANDED])
    done_ns = begun_ns + duration_ns
    s[device + w.DE_LAST_DONE] = done_ns
    s[slot + w.SS_DONE] = done_ns
    s[slot + w.SS_SOONEST] = done_ns
    schedule(s, done_ns - now_ns, w.STEP_DONE, device)
    s[device + w.DE_N_BEGUN] = step + 1
    following = _slot_if_known(s, device, step + 1)
    if following != 0:
        _start_copies(s, device, following)


@compiled
def _slot_if_known(s: Words, device: int, step: int) -> int:
    slot = s[device + w.DE_STEPS] + s[device + w.DE_STRIDE] * (step & (w.STEPS_ROOM - 1))
    return slot if s[slot + w.SS_STEP] == step else 0


@compiled
def copy(
    s: Words, device: int, step: int, after_ns: int, engine: int, rank: int, sent: int
) -> None:
    """One worker has called for a copy to its device, before it launches a step."""
    slot = step_of(s, device, step)
    n = s[slot + w.SS_N_COPIES]
    s[slot + w.SS_N_COPIES] = n + 1
    record = s[slot + w.SS_COPIES] + w.COPY * n
    # A copy that was started waits for its landing where it lies: the next ones follow behind it.
    s[record + w.CP_CALLED] = s[w.NOW]
    s[record + w.CP_AFTER] = after_ns
    s[record + w.CP_ENGINE] = engine
    s[record + w.CP_RANK] = rank
    s[record + w.CP_SENT] = sent
    _start_copies(s, device, slot)


@compiled
def _start_copies(s: Words, device: int, slot: int) -> None:
    """Say when copies land, once everything before them has an end."""
    if s[slot + w.SS_STEP] != s[device + w.DE_N_BEGUN]:
        return
    for n in range(s[slot + w.SS_N_COPIES]):
        record = s[slot + w.SS_COPIES] + w.COPY * n
        if s[record + w.CP_CALLED] < 0:
            continue
        called_ns = s[record + w.CP_CALLED]
        s[record + w.CP_CALLED] = -1
        landed_ns = max(called_ns, s[device + w.DE_LAST_DONE]) + s[record + w.CP_AFTER]
        s[slot + w.SS_LANDED] = max(landed_ns, s[slot + w.SS_LANDED])
        schedule(s, max(landed_ns - s[w.NOW], 0), w.LANDED, record)


@compiled
def await_stream(s: Words, device: int, step: int, process: int) -> bool:
    """Note who waits for the end of what was launched before a step; False: it has ended."""
    if step <= s[device + w.DE_N_ENDED]:
        return False
    slot = step_of(s, device, step - 1)
    n = s[slot + w.SS_N_AWAITING]
    s[slot + w.SS_N_AWAITING] = n + 1
    s[s[slot + w.SS_AWAITING] + n] = process
    return True


@compiled
def finish(s: Words, x: Numbers, device: int) -> None:
    """The oldest step on the device ends now; a device rings whether somebody is armed or not."""
    step = s[device + w.DE_N_ENDED]
    slot = step_of(s, device, step)
    for rank in range(s[device + w.DE_N_DEVICES]):
        end = s[slot + w.SS_ENDS] + w.SOURCE * rank
        s[end + w.W_SINCE] = s[w.NOW]
        announce(s, x, end, 0)
    s[device + w.DE_N_ENDED] = step + 1
    if s[slot + w.SS_N_AWAITING] != 0:
        schedule(s, 0, w.STREAM_FREE, slot)


@compiled
def leave(s: Words, device: int, step: int) -> None:
    """One of the workers, or the scheduler, will not ask about this step any more."""
    slot = step_of(s, device, step)
    s[slot + w.SS_N_ASKING] -= 1
    if s[slot + w.SS_N_ASKING] == 0:
        s[slot + w.SS_STEP] = -1
