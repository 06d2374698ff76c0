"""Rows of `shmsim.records` out of the memory of a run that has ended."""

from typing import cast

import numpy as np

from shmsim.records import CoreRow, ProcessRow, RequestRow, RunRecords, StepRow, WaitRow
from shmsim.sim.events import words as w
from shmsim.sim.events.build import Engine, Run
from shmsim.sim.events.machine import Finished
from shmsim.sim.events.memory import Int64Array

#: Columns behind the process that hold 0 or 1.
_PENDING, _BELLED = (WaitRow._fields.index(name) - 1 for name in ("pending", "belled"))


def records_of(finished: Finished) -> list[RunRecords]:
    """Records of each engine."""
    run = finished.run
    cores = core_rows(run)
    return [
        RunRecords(
            step_rows(finished, number),
            wait_rows(finished, engine),
            request_rows(run.s, engine),
            process_rows(run, engine),
            cores=list(cores),
        )
        for number, engine in enumerate(run.engines)
    ]


def records_without_steps(finished: Finished) -> list[RunRecords]:
    """Records of each engine without steps and waits, and with views for lists of tokens.

    So nothing is made for each step or token.
    """
    run = finished.run
    cores = core_rows(run)
    return [
        RunRecords(
            requests=requests_with_views(run.s, engine),
            processes=process_rows(run, engine),
            cores=list(cores),
        )
        for engine in run.engines
    ]


def step_rows(finished: Finished, number: int) -> list[StepRow]:
    """Steps of one engine."""
    rows = finished.steps
    return [StepRow(*row) for row in rows[rows[:, 0] == number, 1:].tolist()]


def wait_rows(finished: Finished, engine: Engine) -> list[WaitRow]:
    """Waits of one engine: those of the scheduler first, then worker by worker."""
    rows, s = finished.waits, finished.run.s
    found: list[WaitRow] = []
    for actor in engine.actors:
        number = int(s[actor + w.A_NUMBER])
        name = finished.run.process_names[number]
        for row in rows[rows[:, 0] == number, 1:].tolist():
            row[_PENDING], row[_BELLED] = bool(row[_PENDING]), bool(row[_BELLED])
            found.append(WaitRow(name, *row))
    return found


def request_rows(s: Int64Array, engine: Engine) -> list[RequestRow]:
    """What became of each request."""
    return [row._replace(token_ns=list(row.token_ns)) for row in requests_with_views(s, engine)]


def requests_with_views(s: Int64Array, engine: Engine) -> list[RequestRow]:
    """The same, with tokens as views of the run's memory, whose items are plain numbers too."""
    n = engine.n_requests
    view = s.data
    words = s[engine.requests : engine.requests + w.REQUEST * n].reshape(n, w.REQUEST).tolist()
    return [
        RequestRow(
            number,
            row[w.RQ_ARRIVAL],
            bool(row[w.RQ_AFTER_IDLE]),
            row[w.RQ_PROMPT],
            row[w.RQ_OUTPUT],
            cast("list[int]", view[row[w.RQ_TOKENS] : row[w.RQ_TOKENS] + row[w.RQ_N_TOKENS]]),
        )
        for number, row in enumerate(words)
    ]


def process_rows(run: Run, engine: Engine) -> list[ProcessRow]:
    """What each process of an engine consumed."""
    rows = [_process_row(run, actor) for actor in engine.actors]
    s, bulk = run.s, engine.bulk
    if not s[bulk + w.BU_PER_STEP] and not s[bulk + w.BU_PER_TOKEN]:
        return rows
    tallies = s[bulk + w.BU_TALLIES] + w.TALLY * np.arange(len(rows))
    for number, tally in enumerate(tallies.tolist()):
        n_payloads, n_let_go, inline, arena, socket = s[tally : tally + w.TALLY].tolist()
        if number == 0:
            n_let_go = int(s[bulk + w.BU_N_RELEASED])
        rows[number] = rows[number]._replace(
            payloads=n_payloads,
            inline=inline,
            arena=arena,
            socket=socket,
            arena_released=n_let_go,
        )
    rows[0] = rows[0]._replace(
        fallbacks=int(s[bulk + w.BU_N_FALLBACKS]),
        arena_most=int(s[bulk + w.BU_N_MOST]),
        arena_slots=int(s[bulk + w.BU_N_SLOTS]),
    )
    return rows


def _process_row(run: Run, actor: int) -> ProcessRow:
    """As `shmsim.sim.actor.Actor.row`."""
    s = run.s
    lanes = [int(s[actor + w.A_LANE]), int(s[actor + w.A_REPLY_LANE])]
    lanes = [lane for lane in lanes if lane]
    threads = [int(s[lane + w.L_THREAD]) for lane in lanes if s[lane + w.L_THREAD]]
    emulation_ns = sum(int(s[lane + w.L_EMULATION]) for lane in lanes)
    unplaced_ns = sum(int(s[lane + w.L_UNPLACED]) for lane in lanes)
    cpu_ns = sum(int(s[t + w.T_CPU]) for t in threads) + unplaced_ns
    if threads:
        cpu_ns -= emulation_ns
    courier = int(s[actor + w.A_COURIER])
    if courier:
        carrier = int(s[courier + w.Q_THREAD])
        cpu_ns += int(s[carrier + w.T_CPU] if carrier else s[courier + w.Q_CPU])
    return ProcessRow(
        run.process_names[s[actor + w.A_NUMBER]],
        wall_ns(run),
        int(s[actor + w.A_CPU]) + cpu_ns,
        emulation_ns,
        sum(int(s[t + w.T_RUN_QUEUE]) for t in threads),
        0,
        sum(int(s[t + w.T_N_PREEMPTED]) for t in threads),
        int(s[actor + w.A_NOTIFIED]),
        int(s[actor + w.A_ELIDED]),
        unplaced_ns=unplaced_ns,
    )


def wall_ns(run: Run) -> int:
    """Length of a run."""
    return max(int(run.s[w.NOW]), 1)


def core_rows(run: Run) -> list[CoreRow]:
    """What became of the time of each core; at the end all threads are asleep."""
    s, host, wall = run.s, int(run.s[w.HOST]), wall_ns(run)
    if not host:
        return []
    rows = []
    for number in range(int(s[host + w.H_N_CORES])):
        core = int(s[host + w.H_CORES] + number * s[host + w.H_STRIDE])
        busy_ns, stolen_ns = int(s[core + w.K_BUSY]), int(s[core + w.K_STOLEN])
        if s[core + w.K_IS_STOLEN]:
            stolen_ns += int(s[w.NOW] - s[core + w.K_STOLEN_SINCE])
        rows.append(CoreRow(number, wall, busy_ns, stolen_ns, wall - busy_ns - stolen_ns))
    return rows
