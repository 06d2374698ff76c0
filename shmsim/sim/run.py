"""Runs the model for a config: one policy, or a tuner's choice among many."""

from collections.abc import Callable

from shmsim.config import RunConfig
from shmsim.metrics import Summary, summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.sim.loop import StepLoop
from shmsim.tape import Tape
from shmsim.theory import run_cost
from shmsim.tuner import Tuner
from shmsim.wait import WaitPolicy


def simulate(
    config: RunConfig, policy: WaitPolicy, profile: MachineProfile, replication: int = 0
) -> RunRecords:
    """Run the model once; the same arguments give the same records, byte for byte."""
    profile.check_doorbell(config.handoff.doorbell)
    tape = Tape(config.seed, replication)
    loop = StepLoop(
        profile,
        config.engine,
        config.device.step_time,
        config.workload.build(tape),
        policy,
        tape,
        config.delay_price,
        n_replies=config.engine.workers if config.handoff.replies == "all" else 1,
    )
    records = loop.run()
    records.meta = {
        "world": "model",
        "policy": repr(policy),
        "seed": config.seed,
        "replication": replication,
    }
    return records


#: Told how many trials are done, of how many.
Progress = Callable[[int, int], None]


def tune(
    config: RunConfig,
    profile: MachineProfile,
    reference: WaitPolicy,
    progress: Progress | None = None,
) -> tuple[Tuner, list[Summary], Summary]:
    """Let the tuner try policies in the model, all on the tape of replication 0.

    Parameters
    ----------
    config, profile
        What to run, and on which costs.
    reference
        Delay is counted against this policy, usually busy spin.
    progress
        Told after each trial.

    Returns
    -------
    tuple
        The tuner with all its trials, the figures of each trial, and those of the reference.
    """
    reference_summary = summarize(simulate(config, reference, profile))
    tuner = Tuner()
    summaries: list[Summary] = []
    while (policy := tuner.ask()) is not None:
        summary = summarize(simulate(config, policy, profile))
        cost = run_cost(summary, reference_summary, config.engine.workers, config.delay_price)
        tuner = tuner.tell(policy, cost)
        summaries.append(summary)
        if progress is not None:
            progress(len(summaries), tuner.n_planned)
    return tuner, summaries, reference_summary
