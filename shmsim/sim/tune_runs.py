"""What a tuner runs: candidates on common tapes, by the sweep, which stores every run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from shmsim.config import NamedPolicy, PayloadConfig, RunConfig
from shmsim.figures import FIGURES
from shmsim.message import largest_bytes
from shmsim.profile import MachineProfile
from shmsim.sim.cluster import Cluster
from shmsim.sim.sweep import steps_of, sweep
from shmsim.stats.estimate import Float64Array
from shmsim.sweep.plan import SweepPlan, cells_of
from shmsim.tuner import written
from shmsim.tuner.goal import CORES, MEMORY
from shmsim.wait import WaitPolicy

#: Which tapes: those of one purpose have a seed of their own, so that no run serves two.
SEARCH, SELECT, HELD_OUT = "search", "select", "held out"
_SEED_OFFSETS: Final = {SEARCH: 0, SELECT: 1_000_003, HELD_OUT: 2_000_003}
_SEEDS: Final = 2**63

#: Told what is being done, and which share of it is.
Progress = Callable[[str, float], None]

#: Figures of the runs of one candidate, by name, each of shape ``(n_tapes,)``.
Runs = dict[str, Float64Array]


class Candidate(NamedTuple):
    """A policy, and the ways that bulk takes with it.

    Parameters
    ----------
    name
        Unique among the candidates.
    policy
        Of scheduler and workers.
    payload
        Routes and arena; of a config without bulk, the config's.
    """

    name: str
    policy: WaitPolicy
    payload: PayloadConfig


class Bench(NamedTuple):
    """Where candidates run.

    Parameters
    ----------
    config, profile
        What runs, on which costs; the policies of the config play no part.
    folder
        Keeps every run, so that a tuning which was interrupted goes on where it was.
    jobs
        Processes; 0 takes one for each core.
    progress
        Told about everything.
    cluster
        Whose workers run them instead.
    """

    config: RunConfig
    profile: MachineProfile
    folder: Path
    jobs: int
    progress: Progress
    cluster: Cluster | None = None

    def candidate(self, policy: WaitPolicy, payload: PayloadConfig | None = None) -> Candidate:
        """A policy with the config's payload, or another."""
        return Candidate(written(policy), policy, payload or self.config.payload)

    def run(
        self, candidates: Sequence[Candidate], tapes: str, n: int, label: str
    ) -> dict[str, Runs]:
        """Run candidates on the first ``n`` tapes of a purpose; by name."""
        return self.run_on({"profile": self.profile}, candidates, tapes, n, label)["profile"]

    def run_on(
        self,
        profiles: dict[str, MachineProfile],
        candidates: Sequence[Candidate],
        tapes: str,
        n: int,
        label: str,
    ) -> dict[str, dict[str, Runs]]:
        """The same on several profiles; by profile, then by candidate."""
        seed = (self.config.seed + _SEED_OFFSETS[tapes]) % _SEEDS
        found: dict[str, dict[str, Runs]] = {name: {} for name in profiles}
        for payload in dict.fromkeys(candidate.payload for candidate in candidates):
            config = replace(self.config, seed=seed, payload=payload)
            together = [c for c in candidates if c.payload == payload]
            policies = tuple(NamedPolicy(c.name, c.policy) for c in together)
            plan = SweepPlan(cells_of({"run": config}, profiles), policies, replications=n)
            points = sweep(
                plan,
                self.folder,
                jobs=self.jobs,
                cluster=self.cluster,
                progress=lambda done, total: self.progress(label, done / total),
            )
            rows = points.to_pylist()
            for candidate in together:
                for name, results in found.items():
                    own = [r for r in rows if (r["policy"], r["profile"]) == (candidate.name, name)]
                    results[candidate.name] = _runs(own, config)
        return found


def _runs(rows: list[dict[str, float]], config: RunConfig) -> Runs:
    found = {name: np.array([row[name] for row in rows]) for name in FIGURES}
    found[CORES] = found["scheduler_cores"] + config.engine.workers * found["worker_cores"]
    found[MEMORY] = np.full(len(rows), float(shared_bytes(config)))
    return found


def at(runs: Runs, tape: int) -> dict[str, float]:
    """The figures of one run."""
    return {name: float(values[tape]) for name, values in runs.items()}


def shared_bytes(config: RunConfig) -> int:
    """Shared memory of the slots of all rings, and of the arena."""
    handoff, n_workers = config.handoff, config.engine.workers
    n_rings = 1 + (n_workers if handoff.replies == "all" else 1)
    slot_bytes = handoff.slot_bytes or largest_bytes(config.engine.max_sequences)
    arena = sum(slot.slot_bytes * slot.n_slots for slot in config.payload.arena)
    return n_rings * handoff.slots * slot_bytes + arena


def shortened(config: RunConfig, n_steps: int) -> RunConfig:
    """The config with so few requests that a run has about that many steps at most.

    At least four requests are left, or as many as there are.
    """
    workload = config.workload
    share = n_steps / max(steps_of(config), 1)
    if share >= 1:
        return config
    n_requests = min(max(int(workload.requests * share), 4), workload.requests)
    return replace(config, workload=replace(workload, requests=n_requests))
