"""Ways to wait against each other in a live vLLM, switched while it runs.

Within one start of an engine the arms alternate, forwards and backwards (A B C C B A), so that
drift falls out; two arms are the same thing, vLLM as it is, so that noise shows. A start is the
unit of replication: within one, arms share what differs between starts, so that ratios are formed
there, and intervals come from the spread of starts.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.equivalence import Estimate, Verdict
from realrun.vllm.arms import WINDOW
from realrun.vllm.control import Counters
from realrun.vllm.engine import Engine, Setup
from realrun.vllm.generate import engine_arguments, write_tiny_model
from shmsim.wait import TYPICAL_COSTS

REFERENCE: Final = "vllm"
CONTROL_ARM: Final = "vllm again"
RECORDING: Final = "vllm recorded"  #: vLLM's own waiting, while the recorder writes
#: What the engine says, in the folder of a comparison.
LOG: Final = "vllm.log"
MARGIN: Final = 0.03
QUIET_CORES: Final = 0.1  #: more than this of others disturbs
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
        Engine starts, and rounds (each arm twice) within one.
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
    main_share
        Of the scheduler's CPU time, that of its main thread.
    foreign_cores
        What processes that are not of this engine used.
    stalls, longest_gap_s
        Gaps between tokens over 100 ms and first tokens later than a second, and the longest of
        both.
    tokens
        What was generated, by stream.
    moved
        How far the counters of each process went.
    """

    start: int
    arm: str
    tpot_s: float
    ttft_idle_s: float
    cores: dict[str, float]
    main_share: float
    foreign_cores: float
    stalls: int
    longest_gap_s: float
    tokens: list[list[int]]
    moved: dict[str, Counters]


class ArmResult(NamedTuple):
    """One arm against vLLM as it is.

    Parameters
    ----------
    arm
        Its name.
    tpot_ratio
        Of vLLM's, by start.
    cores
        Of each process.
    wait_cpu_ratio
        What the scheduler uses beyond what it uses when it parks, of what vLLM's does; None
        without a parking arm.
    verdict
        Whether it is slower than vLLM by less than `MARGIN`, as `no_slower` judges.
    """

    arm: str
    tpot_ms: float
    tpot_ratio: Estimate
    verdict: Verdict
    ttft_idle_ms: float
    cores: dict[str, float]
    wait_cpu_ratio: Estimate | None
    foreign_cores: float
    stalls: int
    longest_gap_s: float
    n_blocks: int


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
) -> tuple[Plan, list[Block]]:
    """Start engines and let the arms alternate.

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
    tuple of Plan and list of Block
        What was done, with the scheduling that the engine really had; and every generation.

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
    total = plan.starts * plan.rounds * 2 * len(order)
    for start in range(plan.starts):
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
                    engine.control.muted = arm != RECORDING
                    engine.control.arm = names.index(arm) if arm in names else 0
                    blocks.append(_block(engine, plan, start, arm))
    _check_tokens(blocks)
    for block in blocks:
        _check_in_force(block, dict(arms))
    return plan, blocks


def _block(engine: Engine, plan: Plan, start: int, arm: str) -> Block:
    """One generation; up to `_MOST_TRIES`, of which the one that others disturbed least counts."""
    tries: list[Block] = []
    while len(tries) < _MOST_TRIES:
        tries.append(_try(engine, plan, start, arm))
        if tries[-1].foreign_cores <= QUIET_CORES:
            break
    return min(tries, key=lambda block: block.foreign_cores)


def _try(engine: Engine, plan: Plan, start: int, arm: str) -> Block:
    engine.generate(plan.streams, WARM_TOKENS)  # the policy learns, caches are as it leaves them
    ttft_s = math.nan
    if plan.idle_s > 0:
        ttft_s = float(engine.generate(1, 2, plan.idle_s)["ttft_s"][0])
    counted, before = engine.counters(), engine.usage()
    answer = engine.generate(plan.streams, plan.tokens)
    after, counted_after = engine.usage(), engine.counters()
    wall_ns = 1e9 * answer["wall_s"]
    spent = after.spent_ns(before)
    main_ns = after.processes["scheduler"].main - before.processes["scheduler"].main
    return Block(
        start,
        arm,
        sum(answer["tpot_s"]) / len(answer["tpot_s"]),
        ttft_s,
        {name: ns / wall_ns for name, ns in spent.items()},
        main_ns / max(spent["scheduler"], 1),
        after.foreign_ns(before) / wall_ns,
        answer["stalls"],
        answer["longest_gap_s"],
        answer["tokens"],
        {name: moved(counted[name], went) for name, went in counted_after.items()},
    )


def moved(before: Counters, after: Counters) -> Counters:
    """How far the counters of a process went."""
    return Counters(*after[:3], *(b - a for a, b in zip(before[3:], after[3:], strict=True)))


def _check_tokens(blocks: Sequence[Block]) -> None:
    for block in blocks:
        if block.tokens != blocks[0].tokens:
            raise RuntimeError(
                f"arm {block.arm!r} of start {block.start} generated other tokens than "
                f"{blocks[0].arm!r}: how somebody waits must not show in what is said"
            )


def _check_in_force(block: Block, arms: dict[str, str]) -> None:
    by_policy = block.arm in arms and not arms[block.arm].startswith(WINDOW)
    name = f"arm {block.arm!r} of start {block.start}"
    check_in_force(name, block.moved["scheduler"], by_policy=by_policy)


def check_in_force(name: str, scheduler: Counters, *, by_policy: bool) -> None:
    """The counters that must move, move; and those that must not, do not.

    Parameters
    ----------
    name
        Of what was to be in force, for the error.
    scheduler
        How far the scheduler's counters went.
    by_policy
        Whether plans were to carry out the waits, not vLLM.

    Raises
    ------
    RuntimeError
        If it was not in force.
    """
    if scheduler.sent == 0:
        raise RuntimeError(f"{name}: no message was counted; is the plugin in force?")
    # One wait begins before the switch is seen, and one sleeper may still be on vLLM's socket.
    few = max(2, scheduler.sent // 20)
    wrong = scheduler.vllm_waits if by_policy else scheduler.waits
    pings = scheduler.pinged if by_policy else scheduler.sent - scheduler.pinged
    if wrong > few or pings > few:
        raise RuntimeError(f"{name} was not in force: {scheduler}")


def summarize(blocks: Sequence[Block], floor: str | None) -> list[ArmResult]:
    """Hold every arm against vLLM's own.

    Parameters
    ----------
    floor
        Name of the arm that parks at once; None if there is none.
    """
    by_start: dict[str, dict[int, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in blocks:
        by_start[block.arm][block.start].append(block)
    reference = by_start[REFERENCE]
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
                None if floor is None else _wait_cpu(starts, reference, by_start[floor]),
                _mean(b.foreign_cores for b in of_arm),
                sum(b.stalls for b in of_arm),
                max(b.longest_gap_s for b in of_arm),
                len(of_arm),
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


def _wait_cpu(
    starts: dict[int, list[Block]],
    reference: dict[int, list[Block]],
    floor: dict[int, list[Block]],
) -> Estimate:
    ratios = []
    for start, rows in starts.items():
        own, most, least = (
            _mean(_cpu_per_token_s(b) for b in r) for r in (rows, reference[start], floor[start])
        )
        ratios.append((own - least) / (most - least))
    return Estimate.of(ratios)


def _cpu_per_token_s(block: Block) -> float:
    return block.cores["scheduler"] * block.tpot_s


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
