"""Ways to wait against each other in a live vLLM, switched while it runs.

Within one start of an engine the arms alternate, forwards and backwards (A B C C B A), so that
drift falls out; two arms are the same thing, vLLM as it is, so that noise shows. A start is the
unit of replication: within one, arms share what differs between starts, so that ratios are formed
there, and intervals come from the spread of starts. One that others disturbed is made once more
(`realrun.vllm.quiet`).
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.equivalence import Estimate, Verdict
from realrun.vllm.arms import WINDOW
from realrun.vllm.control import Counters
from realrun.vllm.engine import Engine, Setup
from realrun.vllm.generate import engine_arguments, write_tiny_model
from realrun.vllm.in_force import check_in_force, moved
from realrun.vllm.quiet import (
    MARGIN,
    QUIET_CORES,
    disturbance,
    most_starts,
    starts_that_count,
)
from shmsim.wait import TYPICAL_COSTS

REFERENCE: Final = "vllm"
CONTROL_ARM: Final = "vllm again"
RECORDING: Final = "vllm recorded"  #: vLLM's own waiting, while the recorder writes
#: What the engine says, in the folder of a comparison.
LOG: Final = "vllm.log"
_MOST_TRIES: Final = 3
WARM_TOKENS: Final = 40  #: generated before what counts
Progress = Callable[[int, int, str], None]


class Plan(NamedTuple):
    """What is compared.

    Parameters
    ----------
    workers, asynchronous, streams, tokens
        Tensor-parallel workers, scheduling, requests at once, and tokens of each generation.
    starts, rounds
        Engine starts that are to count, and rounds (each arm twice) within one.
    idle_s
        Idle time before the request whose first token is timed; 0 leaves it out.
    delay_price
        What policies are told that a second of delay is worth, in core-seconds.
    """

    workers: int
    asynchronous: bool
    streams: int
    tokens: int
    starts: int
    rounds: int
    idle_s: float
    delay_price: float = TYPICAL_COSTS.delay_price

    @property
    def cell(self) -> str:
        """Name in tables and claims; of a price only if it is not the usual one."""
        how = "async" if self.asynchronous else "sync"
        priced = self.delay_price != TYPICAL_COSTS.delay_price
        return f"tp{self.workers}-{how}-{self.streams}" + priced * f"-r{self.delay_price:g}"


class Block(NamedTuple):
    """One generation of one arm.

    Parameters
    ----------
    start, arm
        Which engine start, and the name of the arm.
    tpot_s
        Mean over the streams, by EngineCore's own stamps.
    ttft_idle_s
        First token after the idle time; NaN where there was none.
    cores
        CPU time over wall time, by process.
    threads
        The same by process and thread (`realrun.vllm.engine.CpuTime`).
    foreign_cores, stolen_cores
        What processes that are not of this engine used, and what the hypervisor took; the latter
        NaN in records from before it was looked at.
    stalls, longest_gap_s
        Gaps between tokens over 100 ms and first tokens later than a second, and the longest of
        both.
    tokens_sha256
        Of what was generated, so that the record shows it; empty where it was not stored.
    moved
        How far the counters of each process went.
    """

    start: int
    arm: str
    tpot_s: float
    ttft_idle_s: float
    cores: dict[str, float]
    threads: dict[str, dict[str, float]]
    foreign_cores: float
    stolen_cores: float
    stalls: int
    longest_gap_s: float
    tokens_sha256: str
    moved: dict[str, Counters]


class Comparison(NamedTuple):
    """What was done.

    Parameters
    ----------
    plan
        With the scheduling that the engine really had.
    blocks
        Every generation.
    disturbed
        Starts that others disturbed, and how.
    """

    plan: Plan
    blocks: list[Block]
    disturbed: dict[int, str]


class ArmResult(NamedTuple):
    """One arm against vLLM as it is.

    Parameters
    ----------
    arm
        Its name.
    tpot_ratio
        Of vLLM's, by start.
    cores, threads
        Of each process, and of each of its threads.
    parking_saves_s
        CPU time of the scheduler for each token that vLLM's waiting takes and parking does not:
        all that can be saved. None without a parking arm.
    wait_cpu_ratio
        Of that, what this arm takes; None without a parking arm, and where parking saves nothing
        for sure, so that there is nothing to be a share of.
    verdict
        Whether it is slower than vLLM by less than `MARGIN`, as `no_slower` judges.
    says_the_same
        Whether each of its generations brought the tokens of vLLM's first.
    """

    arm: str
    tpot_ms: float
    tpot_ratio: Estimate
    verdict: Verdict
    ttft_idle_ms: float
    cores: dict[str, float]
    threads: dict[str, dict[str, float]]
    parking_saves_s: Estimate | None
    wait_cpu_ratio: Estimate | None
    foreign_cores: float
    stalls: int
    longest_gap_s: float
    n_blocks: int
    says_the_same: bool


def run(
    plan: Plan,
    python: Path,
    arms: Sequence[tuple[str, str]],
    out: Path,
    costs: Path,
    own_arguments: dict[str, Any],
    environment: dict[str, str],
    progress: Progress,
    trace: Path | None,
) -> Comparison:
    """Start engines and let the arms alternate; once more for each start that was disturbed.

    At most half as many more: on a loud box there are fewer starts that count in the end.

    Parameters
    ----------
    arms
        Name, and policy file or ``window=...``, of each arm beside vLLM's own.
    out
        Folder of the model's config and the log.
    costs
        JSON file of the costs that policies are told.
    own_arguments
        Of ``vllm.LLM``, before those of the tiny model.
    environment
        Further variables of the engine.
    trace
        Folder for records, one for each start, which only the arm `RECORDING` writes; None leaves
        that arm out.

    Returns
    -------
    Comparison
        What was done.

    Raises
    ------
    RuntimeError
        If an engine fails, tokens differ between arms, or an arm is not in force.
    """
    model = (out / "model").absolute()
    write_tiny_model(model)
    names = [REFERENCE, *(name for name, _ in arms)]
    order = [REFERENCE, *names[1:], *([RECORDING] if trace else []), CONTROL_ARM]
    tiny = engine_arguments(model, plan.workers, asynchronous=plan.asynchronous)
    blocks: list[Block] = []
    disturbed: dict[int, str] = {}
    of_start = plan.rounds * 2 * len(order)
    for start in range(most_starts(plan.starts)):
        if start - len(disturbed) == plan.starts:
            break
        total = (plan.starts + len(disturbed)) * of_start
        folder = None if trace is None else trace / f"start{start}"
        setup = Setup(
            python,
            {**tiny, **own_arguments},
            ":".join(text for _, text in arms),
            folder,
            costs,
            environment,
        )
        progress(len(blocks), total, f"start {start + 1}: vLLM loads")
        with Engine(setup, out / LOG) as engine:
            plan = plan._replace(asynchronous=engine.asynchronous)
            engine.generate(plan.streams, WARM_TOKENS)
            for _ in range(plan.rounds):
                for arm in (*order, *reversed(order)):
                    progress(len(blocks), total, f"start {start + 1}: {arm}")
                    engine.control.arm = names.index(arm) if arm in names else 0
                    blocks.append(_block(engine, plan, start, arm))
        made = blocks[-of_start:]
        _check_tokens(blocks)
        for block in made:
            _check_in_force(block, dict(arms), plan.workers)
        if reason := disturbance(made, REFERENCE, CONTROL_ARM):
            disturbed[start] = reason
    return Comparison(plan, blocks, disturbed)


def _block(engine: Engine, plan: Plan, start: int, arm: str) -> Block:
    """One generation; up to `_MOST_TRIES`, of which the one that others disturbed least counts."""
    tries: list[Block] = []
    while len(tries) < _MOST_TRIES:
        tries.append(_try(engine, plan, start, arm))
        if tries[-1].foreign_cores <= QUIET_CORES:
            break
    return min(tries, key=lambda block: block.foreign_cores)


def _try(engine: Engine, plan: Plan, start: int, arm: str) -> Block:
    # Of what a sleep costs the work behind it the model is told by these, which do not count.
    engine.control.muted = arm in (REFERENCE, CONTROL_ARM)
    engine.generate(plan.streams, WARM_TOKENS)  # the policy learns, caches are as it leaves them
    engine.control.muted = arm != RECORDING
    ttft_s = math.nan
    if plan.idle_s > 0:
        ttft_s = float(engine.generate(1, 2, plan.idle_s)["ttft_s"][0])
    counted, before = engine.counters(), engine.usage()
    answer = engine.generate(plan.streams, plan.tokens)
    after, counted_after = engine.usage(), engine.counters()
    wall_ns = 1e9 * answer["wall_s"]
    threads = {
        process: {name: ns / wall_ns for name, ns in spent.items()}
        for process, spent in after.spent_ns(before).items()
    }
    return Block(
        start,
        arm,
        sum(answer["tpot_s"]) / len(answer["tpot_s"]),
        ttft_s,
        {process: math.fsum(cores.values()) for process, cores in threads.items()},
        threads,
        after.foreign_ns(before) / wall_ns,
        (after.stolen_ns - before.stolen_ns) / wall_ns,
        answer["stalls"],
        answer["longest_gap_s"],
        hashlib.sha256(json.dumps(answer["tokens"]).encode()).hexdigest(),
        {name: moved(counted[name], went) for name, went in counted_after.items()},
    )


def _check_tokens(blocks: Sequence[Block]) -> None:
    for block in blocks:
        if block.tokens_sha256 != blocks[0].tokens_sha256:
            raise RuntimeError(
                f"arm {block.arm!r} of start {block.start} generated other tokens than "
                f"{blocks[0].arm!r}: how somebody waits must not show in what is said"
            )


def _check_in_force(block: Block, arms: dict[str, str], workers: int) -> None:
    by_policy = block.arm in arms and not arms[block.arm].startswith(WINDOW)
    name = f"arm {block.arm!r} of start {block.start}"
    check_in_force(name, block.moved, workers, by_policy=by_policy)


def blocks_that_count(blocks: Sequence[Block], disturbed: Mapping[int, str]) -> list[Block]:
    """Those of the starts that count."""
    starts = starts_that_count({block.start for block in blocks}, disturbed)
    return [block for block in blocks if block.start in starts]


def summarize(blocks: Sequence[Block], floor: str | None) -> list[ArmResult]:
    """Hold every arm against vLLM's own.

    Parameters
    ----------
    blocks
        Generations of the starts that count.
    floor
        Name of the arm that parks at once; None if there is none.
    """
    by_start: dict[str, dict[int, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in blocks:
        by_start[block.arm][block.start].append(block)
    reference = by_start[REFERENCE]
    said = reference[0][0].tokens_sha256
    parked = None if floor is None else by_start[floor]
    savings = None if parked is None else _savings(reference, parked)
    results = []
    for arm, starts in by_start.items():
        of_arm = [block for rows in starts.values() for block in rows]
        ratios = [
            _mean(b.tpot_s for b in rows) / _mean(b.tpot_s for b in reference[start])
            for start, rows in starts.items()
        ]
        estimate = Estimate.of(ratios)
        idle = [b.ttft_idle_s for b in of_arm if not math.isnan(b.ttft_idle_s)]
        results.append(
            ArmResult(
                arm,
                1e3 * _mean(b.tpot_s for b in of_arm),
                estimate,
                no_slower(estimate),
                1e3 * _mean(idle) if idle else math.nan,
                {n: _mean(b.cores[n] for b in of_arm) for n in of_arm[0].cores},
                _mean_threads(of_arm),
                None if savings is None else Estimate.of(list(savings.values())),
                None if savings is None or parked is None else _wait_cpu(starts, parked, savings),
                _mean(b.foreign_cores for b in of_arm),
                sum(b.stalls for b in of_arm),
                max(b.longest_gap_s for b in of_arm),
                len(of_arm),
                bool(said) and all(block.tokens_sha256 == said for block in of_arm),
            )
        )
    return results


def no_slower(ratio: Estimate) -> Verdict:
    """Hold a ratio of times against ``1 + MARGIN``; to be faster is no fault.

    It holds if all of the 90 % interval lies below, which an arm that is a margin slower passes in
    at most 5 of 100 cases, and misses if all of it lies above.
    """
    if ratio.high <= 1 + MARGIN:
        return Verdict.HOLDS
    return Verdict.MISSES if ratio.low > 1 + MARGIN else Verdict.CANNOT_TELL


def _savings(reference: dict[int, list[Block]], floor: dict[int, list[Block]]) -> dict[int, float]:
    """CPU time for each token by which parking is below vLLM's waiting, by start."""
    return {
        start: _cpu_per_token_s(reference[start]) - _cpu_per_token_s(floor[start])
        for start in floor
    }


def _wait_cpu(
    starts: dict[int, list[Block]], floor: dict[int, list[Block]], savings: dict[int, float]
) -> Estimate | None:
    """Shares of what can be saved; of something that may be nothing they would say nothing."""
    if min(savings.values()) <= 0 or Estimate.of(list(savings.values())).low <= 0:
        return None
    return Estimate.of(
        [
            (_cpu_per_token_s(rows) - _cpu_per_token_s(floor[start])) / savings[start]
            for start, rows in starts.items()
        ]
    )


def _cpu_per_token_s(blocks: Iterable[Block]) -> float:
    return _mean(block.cores["scheduler"] * block.tpot_s for block in blocks)


def _mean_threads(blocks: Sequence[Block]) -> dict[str, dict[str, float]]:
    """Cores of each thread; one that a generation did not have used nothing in it."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for process in blocks[0].threads:
        for name in sorted({name for block in blocks for name in block.threads[process]}):
            used = (block.threads[process].get(name, 0.0) for block in blocks)
            found[process][name] = _mean(used)
    return dict(found)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
