"""A live vLLM's arms in the model, and whether it puts them in the order that was measured."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import kendalltau

from runner import Content, Progress
from shmsim.claims import Claim
from shmsim.config import RunConfig, parse_config, parse_policy
from shmsim.distribution import Curve
from shmsim.fitting import log_normal_curve, solve, with_costs
from shmsim.metrics import summarize
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from shmsim.units import MS

TABLES: Final = ("tp1", "tp2")
QUANTITIES: Final = ("ms", "engine_cores")
#: A coin gets half of the pairs right; of 15 it gets 12 or more right once in fifty times.
ORDER_BOUND: Final = 0.8
#: Both numbers move both cells, so they are fitted in turn, each to one cell exactly, until the
#: other is met to this share; its generations lay 8 % to either side of their median.
_CLOSE: Final = 0.02
_MOST_TURNS: Final = 20


class Figures(NamedTuple):
    """One arm in the model: ms per token, cores of the scheduler and of a worker in the mean."""

    ms: float
    engine_cores: float
    worker_cores: float


class Fit(NamedTuple):
    """What the default arm tells.

    Parameters
    ----------
    engine_ms
        What EngineCore works for each step.
    step_ms
        Computation of one step, by number of workers.
    """

    engine_ms: float
    step_ms: dict[int, float]

    @classmethod
    def read(cls, content: Content) -> "Fit":
        """What `stored` made; JSON has no numbers for keys."""
        return cls(content["engine_ms"], {int(n): ms for n, ms in content["step_ms"].items()})

    def stored(self) -> Content:
        """As JSON has it."""
        return {
            "engine_ms": self.engine_ms,
            "step_ms": {str(n): x for n, x in self.step_ms.items()},
        }


class Order(NamedTuple):
    """How far the model orders the arms of a table as the machine does.

    Parameters
    ----------
    table, quantity
        Which, of `TABLES` and `QUANTITIES`.
    tau
        Kendall's tau-b over all arms.
    n_right, n_pairs
        Pairs that the machine tells apart, and how many the model puts right.
    wrong
        The others, each the smaller one first as measured.
    """

    table: str
    quantity: str
    tau: float
    n_right: int
    n_pairs: int
    wrong: tuple[tuple[str, str], ...]


class Live:
    """The box and the engine of the arms.

    Parameters
    ----------
    plan
        The content of ``config.toml``.
    profile
        Costs to start from; None: the one that the plan names.
    """

    def __init__(self, plan: dict[str, Any], profile: MachineProfile | None = None) -> None:
        """Read the plan; nothing runs yet."""
        self.plan = plan
        self.profile = profile or MachineProfile.shipped(plan["profile"])

    def config(self, workers: int, scheduling: str) -> RunConfig:
        """The engine with so many workers."""
        plan = self.plan
        sections = ("engine", "device", "workload", "cores")
        config = parse_config({name: plan[name] for name in sections})
        return replace(
            config,
            engine=replace(config.engine, workers=workers, scheduling=scheduling),
            workload=replace(
                config.workload,
                requests=plan["requests"],
                output_p50=plan["output"],
                output_p95=plan["output"],
            ),
            seed=plan["seed"],
        )

    def run(
        self, engine_ms: float, step_ms: float, workers: int, arm: str, scheduling: str = "async"
    ) -> Figures:
        """Run one arm as often as the plan says: the means.

        Three processes on two cores are chaotic: a microsecond decides who waits for a slice.
        """
        jitter = self.plan["work"]["jitter"]
        work = {"schedule": log_normal(engine_ms, jitter), "launch": log_normal(step_ms, jitter)}
        profile = with_costs(self.profile, work, "vLLM's instead of")
        policy = parse_policy(self.plan["policies"][arm]).policy
        config = self.config(workers, scheduling)
        found = [
            summarize(simulate(config, policy, profile, replication))
            for replication in range(self.plan["replications"])
        ]
        rows = [(f.tpot.mean / MS, f.scheduler_cores, f.worker_cores) for f in found]
        return Figures(*(float(np.mean(values)) for values in zip(*rows, strict=True)))

    def fit(self, progress: Progress) -> Fit:
        """EngineCore work and step at TP1 from the default's two modes, then its step at TP2.

        Raises
        ------
        ValueError
            If no value within the plan's ranges meets a cell.
        """
        one, two = self.plan["tp1"], self.plan["tp2"]
        workers, arm = one["workers"], one["fitted"]
        sync_ms = float(np.median(one["sync_ms"]))
        async_ms = float(np.median(one["arms"][arm]["ms"]))
        engine_ms = 1.0
        for turn in range(_MOST_TURNS):
            progress("fit to tp1", turn / _MOST_TURNS)
            step_ms = self._step_ms(engine_ms, one)

            def sync(engine_ms: float, step_ms: float = step_ms) -> float:
                return self.run(engine_ms, step_ms, workers, arm, "sync").ms

            engine_ms = solve(sync, sync_ms, *self.plan["work"]["engine_ms"], "EngineCore work, ms")
            found_ms = self.run(engine_ms, step_ms, workers, arm).ms
            if abs(found_ms / async_ms - 1.0) <= _CLOSE:
                break
        else:
            raise ValueError(
                f"after {_MOST_TURNS} turns the async cell of {async_ms:g} ms is met with "
                f"{found_ms:g} ms; the two cells do not tell EngineCore work and step apart"
            )
        progress("fit to tp2", 1.0)
        return Fit(engine_ms, {workers: step_ms, two["workers"]: self._step_ms(engine_ms, two)})

    def _step_ms(self, engine_ms: float, table: dict[str, Any]) -> float:
        arm = table["fitted"]

        def predicted(step_ms: float) -> float:
            return self.run(engine_ms, step_ms, table["workers"], arm).ms

        target = float(np.median(table["arms"][arm]["ms"]))
        return solve(predicted, target, *self.plan["work"]["step_ms"], "computation, ms")


def log_normal(mean_ms: float, jitter: float) -> Curve:
    """A cost of that mean and coefficient of variation."""
    median_ns = mean_ms * MS / math.sqrt(1.0 + jitter * jitter)
    p90_ns = median_ns * math.exp(float(ndtri(0.9)) * math.sqrt(math.log1p(jitter * jitter)))
    return log_normal_curve("", [(0.0, median_ns, p90_ns)])


def order(
    table: str,
    quantity: str,
    measured: dict[str, Sequence[float]],
    predicted: dict[str, float],
    slack: float,
) -> Order:
    """Compare two orders of the same arms.

    Parameters
    ----------
    table, quantity
        Copied.
    measured
        What each arm showed, once or several times. Two arms are told apart if their ranges do
        not overlap and their medians differ by more than ``slack``.
    predicted
        One number for each arm.
    slack
        Relative.
    """
    median = {arm: float(np.median(values)) for arm, values in measured.items()}
    wrong, n_pairs = [], 0
    for pair in combinations(measured, 2):
        less, more = sorted(pair, key=median.__getitem__)
        overlap = max(measured[less]) >= min(measured[more])
        if overlap or median[more] - median[less] <= slack * median[more]:
            continue
        n_pairs += 1
        if not predicted[less] < predicted[more]:
            wrong.append((less, more))
    arms = list(measured)
    tau = kendalltau([median[a] for a in arms], [predicted[a] for a in arms]).statistic
    return Order(table, quantity, float(tau), n_pairs - len(wrong), n_pairs, tuple(wrong))


def orders(plan: dict[str, Any], predicted: dict[str, dict[str, Figures]]) -> list[Order]:
    """The order of each table by each quantity."""
    found = []
    for table in TABLES:
        arms = plan[table]["arms"]
        for quantity in QUANTITIES:
            measured = {arm: np.atleast_1d(row[quantity]).tolist() for arm, row in arms.items()}
            values = {arm: getattr(predicted[table][arm], quantity) for arm in arms}
            found.append(order(table, quantity, measured, values, plan["slack"]))
    return found


def claims(found: list[Order], seed: int) -> list[Claim]:
    """Share of pairs in the right order; its range is half a pair to either side."""
    made = []
    for o in found:
        share = o.n_right / o.n_pairs
        half = 0.5 / o.n_pairs
        name = f"live_vllm/{o.table}_{o.quantity}_pairs_right"
        low, high = max(0.0, share - half), min(1.0, share + half)
        made.append(Claim(name, share, low, high, "share", ORDER_BOUND, ">=", o.n_pairs, seed))
    return made
