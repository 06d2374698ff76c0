"""What ways to wait cost, by the model: each on the same tapes, with intervals."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from shmsim.config import RunConfig
from shmsim.metrics import Summary, summarize
from shmsim.policies import BusySpin
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from shmsim.stats.estimate import Estimate, mean_of_replications
from shmsim.theory import run_cost
from shmsim.wait import WaitPolicy

#: Told how many runs are done, of how many.
Progress = Callable[[int, int], None]


class Verdict(NamedTuple):
    """What one way to wait costs.

    Parameters
    ----------
    prices
        CPU and delay as one number, in cores, of each replication; see `shmsim.theory.run_cost`.
    price, cores
        Means over the replications; cores of scheduler and workers together.
    tpot_ns
        Mean time per output token.
    """

    prices: tuple[float, ...]
    price: Estimate
    cores: Estimate
    tpot_ns: Estimate

    def gain_over(self, other: "Verdict") -> Estimate:
        """By how much this is cheaper, in cores, replication by replication."""
        pairs = zip(other.prices, self.prices, strict=True)
        return mean_of_replications([theirs - ours for theirs, ours in pairs])


def judge(
    config: RunConfig,
    profile: MachineProfile,
    runs: list[tuple[WaitPolicy, bool]],
    replications: int,
    progress: Progress,
) -> list[Verdict]:
    """Run policies in the model.

    Parameters
    ----------
    config, profile
        The workload, and what waiting costs.
    runs
        What is judged: policies, and whether their spinners give way once they were preempted
        (`shmsim.config.CoresConfig.guarded`).
    replications
        Runs of each, at least 2, number i of all on one tape.
    progress
        Told after each run.

    Returns
    -------
    list of Verdict
        In the same order.
    """
    n_runs = replications * (1 + len(runs))
    done = 0

    def run(policy: WaitPolicy, is_guarded: bool, replication: int) -> Summary:
        nonlocal done
        cores = replace(config.cores, guarded=is_guarded)
        records = simulate(replace(config, cores=cores), policy, profile, replication)
        done += 1
        progress(done, n_runs)
        return summarize(records)

    reference = [run(BusySpin(), config.cores.guarded, i) for i in range(replications)]
    found = []
    for policy, is_guarded in runs:
        summaries = [run(policy, is_guarded, i) for i in range(replications)]
        workers = config.engine.workers
        prices = tuple(
            run_cost(summary, spin, workers, config.delay_price)
            for summary, spin in zip(summaries, reference, strict=True)
        )
        found.append(
            Verdict(
                prices,
                mean_of_replications(prices),
                mean_of_replications(
                    [s.scheduler_cores + workers * s.worker_cores for s in summaries]
                ),
                mean_of_replications([s.tpot.mean for s in summaries]),
            )
        )
    return found
