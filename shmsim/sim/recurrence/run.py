"""Runs of the recurrence: one with all its records, or many policies for their figures."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from shmsim.config import RunConfig, parse_policy
from shmsim.metrics import Summary
from shmsim.profile import MachineProfile
from shmsim.records import ProcessRow, RequestRow, RunRecords, StepRow, WaitRow
from shmsim.run_costs import costs_of_run
from shmsim.sim.recurrence.engine_run import Compiled, EngineRun
from shmsim.sim.recurrence.figures import Figures
from shmsim.sim.recurrence.scope import refuses
from shmsim.sim.recurrence.tapes import SharedTape
from shmsim.sim.run import sign_and_check, together
from shmsim.tape import Tape
from shmsim.wait import DEVICE_DONE, WaitPolicy


def simulate_recurrence(
    config: RunConfig, policy: WaitPolicy, profile: MachineProfile, replication: int = 0
) -> RunRecords:
    """Run the model once; the records of `shmsim.sim.run.simulate`, bit for bit.

    Parameters
    ----------
    config, policy, profile, replication
        As of `simulate`.

    Raises
    ------
    ValueError
        If `refuses` names a reason, or where `simulate` raises one.
    TypeError
        If the policy does not compile, see `shmsim.sim.compiled.compile_policy`.
    """
    profile = _checked(config, profile)
    compiled = Compiled.of(policy, _device_policy(config), config.engine.workers)
    found: list[RunRecords] = []
    ends_ns = []
    for shared in _tapes(config, [policy], profile, replication):
        run = EngineRun(shared, compiled, keeps_rows=True)
        found.append(_records(run, policy))
        ends_ns.append(run.end_ns)
    wall_ns = max(*ends_ns, 1)
    for records in found:
        records.processes = [row._replace(wall_ns=wall_ns) for row in records.processes]
    sign_and_check(found, config, policy, profile, replication)
    return together(found)


def run_many(
    config: RunConfig,
    policies: Sequence[WaitPolicy],
    profile: MachineProfile,
    replication: int = 0,
    threads: int | None = None,
) -> list[Summary]:
    """Run many policies on one tape, in threads; nothing is kept of a step but when it was seen.

    Parameters
    ----------
    config, profile, replication
        As of `shmsim.sim.run.simulate`.
    policies
        Of any classes.
    threads
        How many run at once; None: one on each core this process may use.

    Returns
    -------
    list of Summary
        ``summarize(simulate(config, policy, profile, replication))`` of each policy, bit for bit.

    Raises
    ------
    ValueError, TypeError
        As of `simulate_recurrence`.
    """
    (found,) = run_tapes(config, policies, profile, (replication,), threads)
    return found


def run_tapes(
    config: RunConfig,
    policies: Sequence[WaitPolicy],
    profile: MachineProfile,
    replications: Iterable[int],
    threads: int | None = None,
) -> Iterator[list[Summary]]:
    """`run_many` on one tape after the other.

    Parameters and errors are those of `run_many`; what a tape gives is handed out when it is done.
    """
    profile = _checked(config, profile)
    device_policy = _device_policy(config)
    n_workers = config.engine.workers
    compiled = [Compiled.of(policy, device_policy, n_workers) for policy in policies]
    n_threads = min(threads or len(os.sched_getaffinity(0)), len(policies) or 1)
    with ThreadPoolExecutor(n_threads) as pool:
        carry_out = pool.map if n_threads > 1 else map
        for replication in replications:
            figures = [Figures() for _ in policies]
            for shared in _tapes(config, policies, profile, replication):
                runs = [EngineRun(shared, each, keeps_rows=False) for each in compiled]
                pairs = list(zip(runs, figures, strict=True))
                while pairs:
                    # No run goes on to the next window before the others.
                    list(carry_out(_advance, pairs))
                    pairs = [pair for pair in pairs if not pair[0].is_finished]
                    if pairs:
                        shared.move_on()
            yield [figure.summary() for figure in figures]


def _advance(pair: tuple[EngineRun, Figures]) -> None:
    run, figures = pair
    run.advance()
    figures.add_steps(run.tokens)
    if run.is_finished:
        figures.add_run(run)


def _checked(config: RunConfig, profile: MachineProfile) -> MachineProfile:
    """The costs of a run that the recurrence can carry out."""
    profile = costs_of_run(config, profile)
    reason = refuses(config, profile)
    if reason is not None:
        raise ValueError(
            f"the recurrence cannot run this config: {reason}; or use another engine "
            "(shmsim.sim.engine.simulate_with)"
        )
    return profile


def _tapes(
    config: RunConfig, policies: Sequence[WaitPolicy], profile: MachineProfile, replication: int
) -> Iterator[SharedTape]:
    device_policy = _device_policy(config)
    n_engines = config.cores.engines
    for number in range(n_engines):
        yield SharedTape(
            config,
            profile,
            Tape(config.seed, n_engines * replication + number),
            f"engine{number}/" if n_engines > 1 else "",
            [type(policy) for policy in policies],
            None if device_policy is None else type(device_policy),
        )


def _device_policy(config: RunConfig) -> WaitPolicy | None:
    device_wait = config.engine.device_wait
    return parse_policy(device_wait).policy if device_wait else None


# Rows.


def _records(run: EngineRun, policy: WaitPolicy) -> RunRecords:
    """Run to the end, and write everything down; the length of the run is not known yet."""
    name, n_workers = run.shared.name, run.shared.config.engine.workers
    processes = [f"{name}scheduler", *(f"{name}worker{rank}" for rank in range(n_workers))]
    steps: list[StepRow] = []
    waits: list[list[WaitRow]] = [[] for _ in processes]
    while not run.is_finished:
        run.advance()
        steps += map(StepRow._make, run.steps.tolist())
        for number, process in enumerate(processes):
            waits[number] += [_wait_row(process, row) for row in run.waits(number).tolist()]
        if not run.is_finished:
            run.shared.move_on()
    for rows in waits if run.shared.config.engine.scheduling == "async" else ():
        # As they ended: a reply thread waits for the device beside the main thread, which comes
        # first of what happens at the same instant.
        rows.sort(key=lambda row: (row.seen_ns, row.site == DEVICE_DONE))
    seen_ns = [step.seen_ns for step in steps]
    return RunRecords(
        steps,
        [row for rows in waits for row in rows],
        [
            RequestRow(
                number,
                arrival_ns,
                bool(after_idle),
                prompt,
                output,
                seen_ns[first_step : first_step + output],
            )
            for number, (prompt, output, arrival_ns, after_idle, first_step, *_) in enumerate(
                run.requests.tolist()
            )
        ],
        [
            ProcessRow(
                process,
                0,
                run.cpu_ns(number),
                run.process(number, "emulation_ns"),
                0,
                0,
                0,
                run.process(number, "notified"),
                run.process(number, "elided"),
            )
            for number, process in enumerate(processes)
        ],
    )


def _wait_row(process: str, row: tuple[int, ...]) -> WaitRow:
    site, call, step, pending, *instants_ns, stage, cpu_ns, overshoot_ns, belled, kind = row
    started_ns, published_ns, seen_ns = instants_ns
    return WaitRow(
        process,
        site,
        call,
        step,
        bool(pending),
        started_ns,
        published_ns,
        seen_ns,
        stage,
        cpu_ns,
        overshoot_ns,
        bool(belled),
        0,
        kind,
    )
