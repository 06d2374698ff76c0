"""Runs the engine, and gives it what it asks Python for between two events."""

from typing import Any

import numpy as np

from shmsim.config import RunConfig
from shmsim.message import decode_batch, decode_request, encode_reply, encode_request
from shmsim.profile import MachineProfile
from shmsim.sim.events import words as w
from shmsim.sim.events.build import Engine, Run, build, draw_thefts
from shmsim.sim.events.compiling import is_plain
from shmsim.sim.events.engine import run_events
from shmsim.sim.events.memory import Int64Array
from shmsim.sim.events.store import compiled_engine
from shmsim.wait import WaitPolicy


class RefusedError(RuntimeError):
    """The engine met something that SimPy raises an error for."""


class Finished:
    """A run that has ended, as arrays.

    Attributes
    ----------
    run
        Its memory.
    waits, steps
        Rows without names, shape ``(n, WAIT_ROW)`` and ``(n, STEP_ROW)``; none if they were not
        kept.
    """

    def __init__(self, run: Run, waits: Int64Array, steps: Int64Array) -> None:
        """Keep them."""
        self.run = run
        self.waits = waits
        self.steps = steps


def carry_out(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int,
    *,
    keeps_rows: bool,
) -> Finished:
    """Run the engine to the end.

    Raises
    ------
    RefusedError
        If it met something that SimPy has an error for.
    """
    return go_on(build(config, policy, profile, replication, keeps_rows=keeps_rows))


def go_on(run: Run) -> Finished:
    """Carry a run that was laid out to its end."""
    s: Any = run.s
    x: Any = run.x
    step_forward: Any = run_events
    if is_plain():  # plain Python is quicker with its own numbers
        s, x = s.tolist(), x.tolist()
    else:
        step_forward = compiled_engine()
    waits: list[Int64Array] = []
    steps: list[Int64Array] = []
    while True:
        status = step_forward(s, x)
        waits.append(_take_rows(s, w.WAIT_ROWS, w.N_WAIT_ROWS, w.WAIT_ROW))
        steps.append(_take_rows(s, w.STEP_ROWS, w.N_STEP_ROWS, w.STEP_ROW))
        if status == w.FINISHED:
            break
        if status == w.REFUSED:
            raise RefusedError(f"at {s[w.NOW]} ns")
        _answer(run, s, x, status)
        s[w.STATUS] = w.RUNNING
    if is_plain():
        run = run._replace(s=np.array(s, np.int64), x=np.array(x))
    return Finished(run, np.concatenate(waits), np.concatenate(steps))


def _take_rows(s: Any, where: int, count: int, n_words: int) -> Int64Array:
    first, n = s[where], s[count]
    s[count] = 0
    return np.array(s[first : first + n * n_words], np.int64).reshape(-1, n_words)


def _answer(run: Run, s: Any, x: Any, status: int) -> None:
    about = int(s[w.DETAIL])
    if status == w.WANTS_LUCK:
        engine = next(e for e in run.engines if e.device == about)
        room = int(s[about + w.DE_LUCK_ROOM])
        first = int(s[about + w.DE_LUCK])
        drawn = engine.luck.next(room)
        x[first : first + room] = drawn.tolist() if is_plain() else drawn
        s[about + w.DE_LUCK_FROM] += room
    elif status == w.WANTS_THEFTS:
        thief = next(t for t in run.thieves if t.process == about)
        thefts = draw_thefts(thief.rng)
        x[thief.buffer : thief.buffer + len(thefts)] = thefts
        s[about + w.P_VALUE] = 0
    elif status == w.WANTS_BYTES:
        for engine in run.engines:
            request = encode_request(decode_batch(about))
            s[s[engine.address + w.EN_REQUEST_BYTES] + about] = len(request)
            reply = encode_reply(decode_request(request))
            s[s[engine.address + w.EN_REPLY_BYTES] + about] = len(reply)
    elif status == w.WANTS_STEP:
        _draw_step(run, s, about)


def _draw_step(run: Run, s: Any, message: int) -> None:
    """Ask the law itself about the batch of a message."""
    process = int(s[w.ACTIVE])
    address = s[process + w.P_ENGINE]
    engine: Engine = next(e for e in run.engines if e.address == address)
    s[engine.device + w.DE_ANSWER] = engine.luck.law.draw_ns(
        int(s[message + w.M_N_DECODE]),
        int(s[message + w.M_N_PREFILL]),
        int(s[message + w.M_N_KV]),
        engine.luck.normal.at(int(s[message + w.M_STEP])),
    )
