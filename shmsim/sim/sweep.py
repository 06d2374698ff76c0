"""Runs sweeps of the model on all cores, or those of a cluster, by the engine that is done first.

All engines give the same bits. SimPy runs a point in each process of a pool; the recurrence runs
all policies of a tape in threads of this one, once there is so much to do that compiling pays.
Every point is stored before it counts as done: whatever kills a sweep loses the points in progress
and nothing else.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from shmsim.config import RunConfig
from shmsim.figures import figures_of
from shmsim.profile import MachineProfile
from shmsim.sim.cluster import Cluster
from shmsim.sim.engine import choose, compiles, summarize_with
from shmsim.sources import Sources
from shmsim.stats.estimate import mean_of_replications
from shmsim.sweep.key import check_engine, model_files, point_key
from shmsim.sweep.plan import Point, SweepPlan
from shmsim.sweep.store import Figures, PointStore, only_one
from shmsim.sweep.tables import points_table
from shmsim.tape import Tape
from shmsim.wait import WaitPolicy

# Compiling an engine for a class of policies takes 10 to 40 s, in which SimPy does so many steps.
_COMPILES_FROM_STEPS: Final = {"recurrence": 300_000, "events": 1_000_000}

#: Told how many points are done, of how many that are known to be needed.
Progress = Callable[[int, int], None]


def sweep(
    plan: SweepPlan,
    folder: Path | None = None,
    *,
    jobs: int = 0,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Run what a plan asks for and is not there yet.

    Parameters
    ----------
    plan
        What to run; `shmsim.sweep.plan.plan_of` makes one from values.
    folder
        Keeps every point, so that a further call runs only what is missing; None keeps nothing.
    jobs
        Processes; 0 takes one for each core, 1 none but this one, as policies need that are
        defined in a notebook.
    cluster
        Whose workers run the points instead; what they find comes back here and is kept here.
    progress
        Told before the first point and after each.

    Returns
    -------
    pyarrow.Table
        One row for each run, see `shmsim.sweep.tables.points_table`; `shmsim.sweep.tables.results`
        makes estimates and comparisons of it.

    Raises
    ------
    ValueError
        If a point cannot be run as asked.
    RuntimeError
        If another sweep uses the folder, a process of this one was killed, the cluster is gone, or
        the source of the model was changed before all of it was loaded.
    """
    with only_one(folder) if folder is not None else nullcontext() as store:
        found: dict[Point, Figures] = {}
        n_jobs = jobs or len(os.sched_getaffinity(0))
        with _Runner(plan, folder, store, n_jobs, cluster) as runner:
            have = [0] * len(plan.cells)
            want = [plan.replications] * len(plan.cells)
            while have != want:
                todo = [
                    point
                    for cell, (first, last) in enumerate(zip(have, want, strict=True))
                    for point in plan.points(cell, first, last)
                ]
                n_before = len(found)
                if progress is not None:
                    progress(n_before, n_before + len(todo))
                for point, figures in runner.run(todo):
                    found[point] = figures
                    if progress is not None:
                        progress(len(found), n_before + len(todo))
                have, want = want, [_next_n(plan, found, i, n) for i, n in enumerate(want)]
        return points_table(plan, found)


def _next_n(plan: SweepPlan, found: dict[Point, Figures], cell: int, n: int) -> int:
    """How many replications a cell needs: as many as its worst policy, so that all share tapes."""
    if plan.precision is None:
        return n
    most = n
    for policy in range(len(plan.policies)):
        values = [found[Point(cell, policy, i)][plan.stop_figure] for i in range(n)]
        estimate = mean_of_replications(values, confidence=plan.confidence)
        if estimate.n == n:  # else some runs lack the figure, and more would not help
            most = max(most, plan.precision.next_n(estimate))
    return most


def _run_point(plan: SweepPlan, point: Point, engine: str) -> Figures:
    cell, policy = plan.cells[point.cell], plan.policies[point.policy]
    try:
        summary = summarize_with(
            cell.config, policy.policy, cell.profile, point.replication, engine
        )
    except ValueError as error:
        raise ValueError(f"{cell.name} on {cell.profile_name}, {policy.name}: {error}") from None
    return figures_of(summary)


def _run_tape(plan: SweepPlan, points: list[Point], threads: int) -> list[Figures]:
    """All policies of one cell at one replication, by the recurrence."""
    from shmsim.sim.recurrence import UndecidedError, run_many

    cell = plan.cells[points[0].cell]
    policies = [plan.policies[point.policy].policy for point in points]
    try:
        found = run_many(cell.config, policies, cell.profile, points[0].replication, threads)
    except UndecidedError:  # one of them; another engine can run it
        return [_run_point(plan, point, "auto") for point in points]
    except ValueError as error:
        raise ValueError(f"{cell.name} on {cell.profile_name}: {error}") from None
    return [figures_of(summary) for summary in found]


def steps_of(config: RunConfig) -> int:
    """How many steps a run has, at most: one for each token of its workload."""
    return config.cores.engines * config.workload.build(Tape(config.seed)).n_output_tokens


def engine_that_pays(
    config: RunConfig, profile: MachineProfile, policy: WaitPolicy, n_steps: int
) -> str:
    """Name the fastest engine; SimPy where compiling another would take longer than the runs.

    Parameters
    ----------
    config, profile, policy
        What runs.
    n_steps
        Steps of all runs together that policies of this class will have.
    """
    if n_steps < min(_COMPILES_FROM_STEPS.values()):
        return "simpy"
    engine = choose(config, profile)
    if n_steps < _COMPILES_FROM_STEPS.get(engine, 0) or not compiles(policy):
        return "simpy"
    return engine


def engines_for(plan: SweepPlan, points: Iterable[Point]) -> dict[Point, str]:
    """Which engine runs each point of a sweep."""
    todo = list(points)
    n_steps = {i: steps_of(plan.cells[i].config) for i in {point.cell for point in todo}}
    of_kind: Counter[type] = Counter()
    for point in todo:
        of_kind[type(plan.policies[point.policy].policy)] += n_steps[point.cell]
    found = {}
    for place in {(point.cell, point.policy) for point in todo}:
        cell, policy = plan.cells[place[0]], plan.policies[place[1]].policy
        n = of_kind[type(policy)]
        found[place] = engine_that_pays(cell.config, cell.profile, policy, n)
    return {point: found[point.cell, point.policy] for point in todo}


def _key(plan: SweepPlan, point: Point) -> str:
    cell = plan.cells[point.cell]
    return point_key(
        cell.config, plan.policies[point.policy].policy, cell.profile, point.replication
    )


def _check_files(plan: SweepPlan, point: Point, key: str) -> None:
    """Refuse a point that may have been run on other files than those its key was made of."""
    config = plan.cells[point.cell].config
    if (config.workload.trace or config.device.file) and _key(plan, point) != key:
        raise RuntimeError(
            "a file that the config names was changed while the sweep ran: "
            f"{config.workload.trace or config.device.file}; run the same command again"
        )


class _Runner:
    """Runs points here or in a pool, which is started when it is first needed."""

    def __init__(
        self,
        plan: SweepPlan,
        folder: Path | None,
        store: PointStore | None,
        jobs: int,
        cluster: Cluster | None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._store = store
        self._jobs = jobs
        self._cluster = cluster
        self._executor: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None

    def __enter__(self) -> "_Runner":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._executor is None or self._lifeline is None:
            return
        if kind is not None:
            self._lifeline.close()  # nobody waits for points that are no longer wanted
        self._executor.shutdown(wait=True, cancel_futures=kind is not None)
        self._lifeline.close()

    def run(self, points: Iterable[Point]) -> Iterator[tuple[Point, Figures]]:
        """Give each point with its figures, first those that are stored."""
        missing: dict[Point, str] = {}
        has_keys = self._store is not None or self._cluster is not None
        for point in points:
            key = _key(self._plan, point) if has_keys else ""
            stored = self._store.get(key) if self._store is not None else None
            if stored is None:
                missing[point] = key
            else:
                yield point, stored
        engines = engines_for(self._plan, missing)
        by_tape: dict[tuple[int, int], list[Point]] = {}
        for point, engine in engines.items():
            if engine == "recurrence":
                by_tape.setdefault((point.cell, point.replication), []).append(point)
        if self._cluster is not None:
            yield from self._run_on(self._cluster, missing, engines, by_tape.values())
            return
        for together in by_tape.values():
            done = _run_tape(self._plan, together, self._jobs)
            for point, figures in zip(together, done, strict=True):
                self._kept(point, missing[point], figures)
            yield from zip(together, done, strict=True)
        others = [point for point in missing if engines[point] != "recurrence"]
        if self._jobs == 1 or len(others) < 2:
            for point in others:
                figures = _run_point(self._plan, point, engines[point])
                yield point, self._kept(point, missing[point], figures)
        else:
            yield from self._run_in_pool([(p, missing[p], engines[p]) for p in others])

    def _kept(self, point: Point, key: str, figures: Figures) -> Figures:
        if self._store is not None:
            check_engine()
            _check_files(self._plan, point, key)
            self._store.put(key, figures)
        return figures

    def _run_on(
        self,
        cluster: Cluster,
        keys: dict[Point, str],
        engines: dict[Point, str],
        together: Iterable[list[Point]],
    ) -> Iterator[tuple[Point, Figures]]:
        singly = ([point] for point in keys if engines[point] != "recurrence")
        tasks = [
            Task(tuple(points), tuple(keys[point] for point in points), engines[points[0]])
            for points in (*together, *singly)
        ]
        for task, found in cluster.map(_run_task, _findable(self._plan), tasks):
            for point, key, figures in zip(task.points, task.keys, found, strict=True):
                yield point, self._kept(point, key, figures)

    def _run_in_pool(self, work: list[tuple[Point, str, str]]) -> Iterator[tuple[Point, Figures]]:
        executor = self._executor or self._start(min(self._jobs, len(work)))
        futures = {executor.submit(_work, *task): task[0] for task in work}
        try:
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        except BrokenProcessPool:
            raise RuntimeError(
                "a process of the sweep was killed, perhaps for want of memory; its point is "
                "lost, all finished ones are kept: run the sweep again, with fewer jobs"
            ) from None

    def _start(self, n_processes: int) -> ProcessPoolExecutor:
        # A fork of this process would copy the locks of threads that it may run. The fork server
        # has none, and loads the model once for all.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        theirs, self._lifeline = context.Pipe(duplex=False)
        # They import the model later than this process did, and it must be the same.
        sources = Sources(model_files())
        self._executor = ProcessPoolExecutor(
            n_processes, context, _enter, (self._plan, self._folder, sources, theirs)
        )
        return self._executor


# In the processes of the pool.

_PLAN: SweepPlan | None = None
_STORE: PointStore | None = None
_SOURCES: Sources | None = None


def _enter(plan: SweepPlan, folder: Path | None, sources: Sources, lifeline: Connection) -> None:
    """Take the plan once, and end with whoever asked for it."""
    global _PLAN, _SOURCES, _STORE
    _PLAN, _SOURCES = plan, sources
    _STORE = PointStore(folder) if folder is not None else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    """Leave when the other end of the pipe is closed, by whatever ended its process."""
    lifeline.poll(None)
    os._exit(1)


def _work(point: Point, key: str, engine: str) -> Figures:
    assert _PLAN is not None, "the pool starts with the plan"
    assert _SOURCES is not None, "and with its sources"
    figures = _run_point(_PLAN, point, engine)
    _SOURCES.check()
    if _STORE is not None:
        _check_files(_PLAN, point, key)
        _STORE.put(key, figures)
    return figures


# On the workers of a cluster.


class Task(NamedTuple):
    """What one task of a cluster runs: points of one tape, each with its key, by one engine."""

    points: tuple[Point, ...]
    keys: tuple[str, ...]
    engine: str


def _findable(plan: SweepPlan) -> SweepPlan:
    """The plan with whole paths, for processes that were started elsewhere; keys hold no path."""
    cells = []
    for cell in plan.cells:
        workload, device = cell.config.workload, cell.config.device
        config = replace(
            cell.config,
            workload=replace(workload, trace=_whole(workload.trace)),
            device=replace(device, file=_whole(device.file)),
        )
        cells.append(cell._replace(config=config))
    return replace(plan, cells=tuple(cells))


def _whole(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _run_task(plan: SweepPlan, task: Task) -> list[Figures]:
    """Run points, unless what they depend on is not here what it is where the sweep was started."""
    for point, key in zip(task.points, task.keys, strict=True):
        if _key(plan, point) != key:
            cell = plan.cells[point.cell]
            raise ValueError(
                f"{cell.name} on {cell.profile_name}, {plan.policies[point.policy].name}: the "
                "files that the config names, or the source of the policy, differ from those where "
                "the sweep was started; all machines need the same ones in the same places"
            )
    if task.engine == "recurrence":
        return _run_tape(plan, list(task.points), 1)
    return [_run_point(plan, point, task.engine) for point in task.points]
