"""What the model says of every way to wait from records of vLLM's own, held against what came.

Each start of an engine is predicted from what it recorded while vLLM waited by itself, and from
what sleeps cost the work behind them in the warm-ups of its policies, which are measured nowhere.
No generation that counts has a part in what is said about it, nothing is fitted, and what differs
between starts is in both.
"""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from realrun.equivalence import Estimate
from realrun.validate import predict
from realrun.vllm.ab import CONTROL_ARM, RECORDING, Block, Plan, blocks_that_count
from realrun.vllm.model import EngineFacts, engine_config, engine_facts, engine_profile
from realrun.vllm.stored import PREDICTIONS, TRACE_FOLDER, Stored, arm_policies, has_records
from realrun.vllm.traces import read_traces
from shmsim.config import RunConfig, parse_config
from shmsim.metrics import cores_of, summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.units import S
from shmsim.whole import write_whole

_REPLICATIONS: Final = 3  # of each arm and start, with random numbers of their own
Progress = Callable[[int, int, str], None]


class Outcome(NamedTuple):
    """One arm in one start, of either world.

    Parameters
    ----------
    tpot_s
        Mean time per output token.
    cores
        CPU time over wall time of each process.
    """

    tpot_s: float
    cores: dict[str, float]


class ArmPrediction(NamedTuple):
    """What was said of an arm, and what came.

    Parameters
    ----------
    arm
        Its name.
    predicted, measured
        By start, shape ``(n_starts,)``.
    tpot_error
        Predicted over measured, less 1, over the starts.
    """

    arm: str
    predicted: list[Outcome]
    measured: list[Outcome]
    tpot_error: Estimate


def predict_arms(
    folder: Path, stored: Stored, profile: MachineProfile, progress: Progress
) -> list[ArmPrediction]:
    """Predict every arm of a stored comparison, and hold it against what was measured.

    Parameters
    ----------
    folder, stored
        Where the comparison is, and its content.
    profile
        Costs of waiting on the box that it ran on.
    progress
        Told how many runs of the model are done, of how many, and which is next.

    Raises
    ------
    ValueError
        If nothing, or too little, was recorded.
    """
    if not has_records(folder):
        raise ValueError(
            f"{folder} has no records to predict from; run 'realrun vllm-ab' with --recorder"
        )
    counted = blocks_that_count(stored.blocks, stored.disturbed)
    blocks = [block for block in counted if block.arm not in (RECORDING, CONTROL_ARM)]
    policies = arm_policies(folder, dict.fromkeys(block.arm for block in blocks))
    n_cores = len(stored.machine["affinity"])
    starts = sorted({block.start for block in blocks})
    total = len(starts) * len(policies)
    predicted: dict[str, list[Outcome]] = {arm: [] for arm in policies}
    for n_done, start in enumerate(starts):
        facts = engine_facts(read_traces(folder / TRACE_FOLDER / f"start{start}"))
        costs = engine_profile(profile, facts)
        config = _config(facts, n_cores, stored.plan)
        for n, (arm, policy) in enumerate(policies.items()):
            progress(n_done * len(policies) + n, total, f"model: start {start + 1}, {arm}")
            tapes = range(start * _REPLICATIONS, (start + 1) * _REPLICATIONS)
            predicted[arm].append(
                mean_outcome(_outcome(predict(config, policy, costs, tape)) for tape in tapes)
            )
    return hold(predicted, blocks)


def _config(facts: EngineFacts, n_cores: int, plan: Plan) -> RunConfig:
    config = parse_config(tomllib.loads(engine_config(facts, n_cores)))
    workload = replace(
        config.workload,
        requests=2 * facts.sequences,
        output_p50=plan.tokens,
        output_p95=plan.tokens,
    )
    return replace(config, workload=workload, delay_price=plan.delay_price)


def _outcome(records: RunRecords) -> Outcome:
    return Outcome(summarize(records).tpot.mean / S, cores_of(records))


def hold(predicted: dict[str, list[Outcome]], blocks: Sequence[Block]) -> list[ArmPrediction]:
    """Hold what was said of each arm, by start in their order, against its generations."""
    starts = sorted({block.start for block in blocks})
    found = []
    for arm, said in predicted.items():
        came = [
            mean_outcome(
                Outcome(block.tpot_s, block.cores)
                for block in blocks
                if (block.arm, block.start) == (arm, start)
            )
            for start in starts
        ]
        errors = [a.tpot_s / b.tpot_s - 1 for a, b in zip(said, came, strict=True)]
        found.append(ArmPrediction(arm, said, came, Estimate.of(errors)))
    return found


def mean_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Mean of each figure."""
    rows = list(outcomes)
    return Outcome(
        math.fsum(row.tpot_s for row in rows) / len(rows),
        {name: math.fsum(row.cores[name] for row in rows) / len(rows) for name in rows[0].cores},
    )


def write_predictions(folder: Path, found: Sequence[ArmPrediction]) -> None:
    """Store every prediction beside its comparison."""
    arms = {
        arm.arm: {
            "predicted": [outcome._asdict() for outcome in arm.predicted],
            "measured": [outcome._asdict() for outcome in arm.measured],
            "tpot_error": arm.tpot_error._asdict(),
        }
        for arm in found
    }
    write_whole(folder / PREDICTIONS, json.dumps(arms, indent=1) + "\n")
