"""Runs model and machine on the same workload and policies, and says how far apart they are.

The only module that may import both worlds. Repeats alternate in order (A B C, C B A, ...), so that
a drift of the machine falls on all policies; its spread over repeats is the noise floor that any
error has to be read against.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from realrun.host import machine_facts, quota_cores, usable_cores
from realrun.placement import assign_cores
from realrun.run import make_spec, run_once
from realrun.spec import policy_to_json
from shmsim.config import NamedPolicy, RunConfig
from shmsim.metrics import Summary, summarize, wait_delay_ns
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.sim.run import simulate
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV, WaitPolicy
from shmsim.whole import whole, write_whole

#: The figures of one run that are compared, by column name; nanoseconds or cores.
FIGURES = (
    "tpot_p50_ns", "tpot_p99_ns", "itl_p50_ns", "itl_p99_ns", "ttft_after_idle_p50_ns",
    "scheduler_cores", "worker_cores", "worker_delay_p50_ns", "scheduler_delay_p50_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One run of either world, in figures.

    Parameters
    ----------
    world
        ``"model"`` or ``"machine"``.
    policy, repeat
        Which run.
    summary
        The figures of a serving benchmark.
    worker_delay_p50_ns, scheduler_delay_p50_ns
        Publication to seen, median: of the first call at the workers, of the reply with the tokens
        at the scheduler.
    """

    world: str
    policy: str
    repeat: int
    summary: Summary
    worker_delay_p50_ns: float
    scheduler_delay_p50_ns: float

    def figures(self) -> dict[str, float]:
        """What is compared, by the names in `FIGURES`."""
        s = self.summary
        values = (
            s.tpot.p50, s.tpot.p99, s.itl.p50, s.itl.p99, s.ttft_after_idle.p50,
            s.scheduler_cores, s.worker_cores,
            self.worker_delay_p50_ns, self.scheduler_delay_p50_ns,
        )  # fmt: skip
        return dict(zip(FIGURES, values, strict=True))


@dataclass(frozen=True)
class Comparison:
    """One figure of one policy in both worlds.

    Parameters
    ----------
    simulated, measured
        Mean over the repeats of each world.
    spread
        Half the range of the machine's repeats: its own run-to-run noise.
    """

    simulated: float
    measured: float
    spread: float

    @property
    def error(self) -> float:
        """Simulated minus measured."""
        return self.simulated - self.measured

    @property
    def relative_error(self) -> float:
        """Error as a share of what was measured."""
        return self.error / self.measured


@dataclass(frozen=True)
class Validation:
    """All runs of a validation.

    Parameters
    ----------
    config, profile, outcomes
        What was compared, with which costs, and what came out.
    """

    config: RunConfig
    profile: MachineProfile
    outcomes: tuple[Outcome, ...]

    def of(self, world: str, policy: str) -> list[Outcome]:
        """The repeats of one policy in one world."""
        return [o for o in self.outcomes if (o.world, o.policy) == (world, policy)]

    def compare(self, policy: str, figure: str) -> Comparison:
        """Compare the worlds on one figure of one policy."""
        simulated, measured = (
            np.array([o.figures()[figure] for o in self.of(world, policy)])
            for world in ("model", "machine")
        )
        spread = (measured.max() - measured.min()) / 2
        return Comparison(float(simulated.mean()), float(measured.mean()), float(spread))

    def cores(self, policy: str, world: str) -> float:
        """CPU of scheduler and workers together; world is ``"simulated"`` or ``"measured"``."""
        scheduler, worker = (self.compare(policy, f"{p}_cores") for p in ("scheduler", "worker"))
        workers = self.config.engine.workers
        total: float = getattr(scheduler, world) + workers * getattr(worker, world)
        return total

    @property
    def policy_names(self) -> list[str]:
        """In the order of the config; those with at least one run in each world."""
        names = [p.name for p in self.config.policies]
        return [n for n in names if self.of("model", n) and self.of("machine", n)]

    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """Every comparison as data: policy, figure, then simulated, measured and spread."""
        return {
            name: {figure: asdict(self.compare(name, figure)) for figure in FIGURES}
            for name in self.policy_names
        }

    def write(self, folder: Path) -> None:
        """Store every outcome as ``outcomes.parquet`` and the context as ``validation.json``."""
        rows = [
            {
                "world": o.world,
                "policy": o.policy,
                "repeat": o.repeat,
                **o.figures(),
                "ttft_p50_ns": o.summary.ttft.p50,
                "n_requests": o.summary.ttft.n,
                "n_steps": o.summary.n_steps,
                "duration_s": o.summary.duration_s,
                "output_tokens_per_s": o.summary.output_tokens_per_s,
            }
            for o in self.outcomes
        ]
        with whole(folder / "outcomes.parquet") as unfinished:
            pq.write_table(pa.Table.from_pylist(rows), unfinished)
        content = {
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_facts(),
            "profile_measured_at": self.profile.measured_at,
            "config": config_to_json(self.config),
            "table": self.table(),
        }
        write_whole(folder / "validation.json", json.dumps(content, indent=1) + "\n")


def config_to_json(config: RunConfig) -> dict[str, Any]:
    """The resolved config as data."""
    return {
        **asdict(config),
        "policies": [{"called": p.name, **policy_to_json(p.policy)} for p in config.policies],
    }


#: Told how many runs are done, of how many, and what runs now.
Progress = Callable[[int, int, str], None]


def validate(
    config: RunConfig, profile: MachineProfile, folder: Path, progress: Progress | None = None
) -> Validation:
    """Run every policy in both worlds.

    Parameters
    ----------
    config, profile
        What to run, and on which costs.
    folder
        Where records and results are stored, run by run: what is finished is kept if a later run
        fails or is interrupted.
    progress
        Told about each run.

    Raises
    ------
    realrun.run.RunFailed
        If a run on the machine did not finish.
    """
    report = progress or (lambda _done, _total, _label: None)
    outcomes: list[Outcome] = []
    folder.mkdir(parents=True, exist_ok=True)
    profile.write(folder / "profile.json")
    n_policies = len(config.policies)
    n_runs = 2 * config.repeats * n_policies
    try:
        for repeat, policy in _alternating(config):
            done = len(outcomes)
            report(done, n_runs, f"model: {policy.name}, repeat {repeat + 1}")
            records = predict(config, policy.policy, profile, repeat)
            outcomes.append(_outcome(records, "model", policy, repeat, config, folder))
            report(done + 1, n_runs, f"machine: {policy.name}, repeat {repeat + 1}")
            spec = make_spec(config, policy.policy, profile, repeat)
            records = run_once(spec, logs=folder / "logs")
            outcomes.append(_outcome(records, "machine", policy, repeat, config, folder))
    finally:
        validation = Validation(config, profile, tuple(outcomes))
        if outcomes:
            validation.write(folder)
    report(n_runs, n_runs, "done")
    return validation


def predict(
    config: RunConfig, policy: WaitPolicy, profile: MachineProfile, replication: int
) -> RunRecords:
    """What the model says of one run here; for whoever in this package may not import it.

    Raises
    ------
    ValueError
        As of `shmsim.run_costs.costs_of_run`.
    """
    return simulate(on_this_box(config), policy, profile, replication)


def on_this_box(config: RunConfig) -> RunConfig:
    """The config with this box's cores and quota, where it names no others.

    Where every thread has a core they are left out: it makes no difference, and the model is
    twice as fast. Where cores are shared, ``pin`` says whether the threads of a process share one,
    which is what it means in the model.
    """
    engine, n_cores = config.engine, len(usable_cores())
    is_async = engine.scheduling == "async"
    pinned = assign_cores(config)
    share_one = is_async and any(worker.main == worker.replies for worker in pinned[1:])
    n_threads = 1 + engine.workers * (2 if is_async else 1)
    quota = config.cores.quota or quota_cores() or 0.0
    n_shared = n_cores if n_threads > n_cores or share_one or quota else 0
    cores = replace(config.cores, n=config.cores.n or n_shared, quota=quota)
    if config.cores.n:  # of another box
        return replace(config, cores=cores)
    return replace(config, cores=cores, pin=bool(pinned) and (share_one or not is_async))


def _alternating(config: RunConfig) -> Iterator[tuple[int, NamedPolicy]]:
    for repeat in range(config.repeats):
        policies = config.policies if repeat % 2 == 0 else config.policies[::-1]
        for policy in policies:
            yield repeat, policy


def _outcome(
    records: RunRecords,
    world: str,
    policy: NamedPolicy,
    repeat: int,
    config: RunConfig,
    folder: Path,
) -> Outcome:
    records.write(folder / "records" / f"{_file_name(policy.name)}-{repeat}-{world}")
    call = config.engine.calls_per_step - 1
    return Outcome(
        world,
        policy.name,
        repeat,
        summarize(records),
        _median(wait_delay_ns(records, WORKER_RECV)),
        _median(wait_delay_ns(records, SCHEDULER_RECV, call=call)),
    )


def _median(values: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
