"""Runs the model on the event engine, with the records of `shmsim.sim.run.simulate`."""

import numpy as np
from numpy.typing import NDArray

from shmsim.config import RunConfig
from shmsim.metrics import Summary, summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords, StepRow, WaitRow
from shmsim.run_costs import costs_of_run
from shmsim.sim.events import words as w
from shmsim.sim.events.machine import Finished, RefusedError, carry_out
from shmsim.sim.events.records import records_of, records_without_steps
from shmsim.sim.run import sign_and_check, simulate_box, together
from shmsim.wait import WaitPolicy

#: Processes that the order of events can tell apart.
_MOST_PROCESSES = 1 << 14


def supports(config: RunConfig, profile: MachineProfile) -> str | None:
    """Why the event engine cannot run a config; None if it can.

    Parameters
    ----------
    config, profile
        As of `shmsim.sim.run.simulate`.
    """
    n_engines, engine = config.cores.engines, config.engine
    n_threads = 2 if engine.scheduling == "async" else 1
    # On each core there may be one that steals it, and one that looks for work elsewhere.
    n_cores = config.cores.n or 3 * n_engines * (1 + engine.workers)
    n = n_engines * (1 + engine.workers * n_threads) + 1 + 2 * n_cores
    if n > _MOST_PROCESSES:
        return (
            f"{n} processes are on the box, and the event engine tells {_MOST_PROCESSES} apart; "
            "lower cores.engines or engine.workers, or use shmsim.sim.run.simulate"
        )
    return None


def simulate_events(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    *,
    traces: bool = False,
) -> RunRecords:
    """Run the model once on the event engine: `shmsim.sim.run.simulate`, a hundred times as fast.

    Parameters
    ----------
    config, policy, profile, replication
        What to run, on which costs, with which luck.
    traces
        Not here: who ran on which core and when is recorded by SimPy only.

    Returns
    -------
    RunRecords
        Equal to those of SimPy row by row; in ``meta`` only ``"engine": "events"`` is added.

    Raises
    ------
    ValueError
        If ``traces`` are asked for, `supports` gives a reason, or SimPy refuses the run: with its
        words.
    TypeError
        If the policy does not compile, see `shmsim.sim.compiled.compile_policy`.

    Notes
    -----
    The first call on a machine compiles the engine, which takes half a minute, and keeps it in the
    user's cache; each class of policies takes a second or two once per session.
    """
    return together(simulate_events_box(config, policy, profile, replication, traces=traces))


def simulate_events_box(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    *,
    traces: bool = False,
) -> list[RunRecords]:
    """Run as many engines as the config says on one box, as `shmsim.sim.run.simulate_box`.

    Parameters, result and errors are those of `simulate_events`, but with records of each engine.
    """
    if traces:
        raise ValueError(
            "the event engine records no slices, who ran on which core and when; use "
            "shmsim.sim.run.simulate(..., traces=True)"
        )
    finished = _carry_out(config, policy, profile, replication, keeps_rows=True)
    found = records_of(finished)
    sign_and_check(found, config, policy, profile, replication)
    for records in found:
        records.meta["engine"] = "events"
    return found


def _carry_out(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int,
    *,
    keeps_rows: bool,
) -> Finished:
    profile = costs_of_run(config, profile)
    reason = supports(config, profile)
    if reason is not None:
        raise ValueError(reason)
    try:
        return carry_out(config, policy, profile, replication, keeps_rows=keeps_rows)
    except RefusedError as refused:
        # SimPy says why, in the words of whoever found it.
        simulate_box(config, policy, profile, replication)
        raise ValueError(
            f"the event engine gave this run up {refused}, and SimPy did not: more was under way "
            "at once than it has room for; use shmsim.sim.run.simulate"
        ) from refused


class EventRun:
    """A run of the event engine as arrays, for sweeps: no row is made that nobody asks for.

    Attributes
    ----------
    steps
        Structured array, a row per step: ``engine`` (its number on the box) and the fields of
        `shmsim.records.StepRow`. Empty if rows were not kept.
    waits
        Structured array, a row per wait in the order of their ends: the fields of
        `shmsim.records.WaitRow`, with ``process`` an index of `process_names`. Empty if rows were
        not kept.
    process_names
        Of all engines.
    n_steps
        How many steps there were.
    """

    def __init__(self, finished: Finished, found: list[RunRecords]) -> None:
        """Look at a finished run, and at what was made of it for each engine."""
        self._found = found
        self.process_names = finished.run.process_names
        self.steps = _structured(finished.steps, ("engine", *StepRow._fields))
        self.waits = _structured(finished.waits, WaitRow._fields)
        engines = finished.run.engines
        self.n_steps = sum(int(finished.run.s[e.address + w.EN_N_STEPS]) for e in engines)

    def summary(self) -> Summary:
        """The figures of the run, equal to `shmsim.metrics.summarize` of its records."""
        return summarize(together(self._found))._replace(n_steps=self.n_steps)


def _structured(rows: NDArray[np.int64], names: tuple[str, ...]) -> NDArray[np.void]:
    """The same memory, with a name for each column."""
    return rows.view([(name, np.int64) for name in names]).reshape(-1)


def simulate_arrays(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    *,
    keeps_rows: bool = False,
) -> EventRun:
    """Run the model once and keep arrays instead of rows.

    The laws of requests, CPU, cores and payloads are checked, those of steps and waits are not.

    Parameters
    ----------
    config, policy, profile, replication
        As of `simulate_events`.
    keeps_rows
        Whether to keep steps and waits. Without them memory grows with the requests and their
        tokens only.

    Raises
    ------
    ValueError, TypeError
        As `simulate_events`.
    shmsim.laws.BrokenLawError
        If the figures cannot be true.
    """
    finished = _carry_out(config, policy, profile, replication, keeps_rows=keeps_rows)
    found = records_without_steps(finished)
    sign_and_check(found, config, policy, profile, replication, has_steps=False)
    return EventRun(finished, found)
