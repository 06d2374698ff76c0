"""One sequence that decodes at a given step time: in the model, and for real."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from realrun.run import make_spec, run_once
from realrun.validate import predict
from runner import Content, Plan
from shmsim.config import DeviceConfig, EngineConfig, NamedPolicy, RunConfig, WorkloadConfig
from shmsim.metrics import Summary, summarize
from shmsim.profile import MachineProfile
from shmsim.sweep.plan import SweepPlan, cells_of
from shmsim.sweep.tables import CellResult
from shmsim.theory import wait_cost
from shmsim.units import parse_duration_ns

#: A window is paid twice if it costs so many times the CPU of parking ...
DEARER: Final = 2.0
#: ... and gains less than that share of its TPOT.
GAIN: Final = 0.005


class Point(NamedTuple):
    """One policy at one step time.

    Parameters
    ----------
    step
        As the plan writes it.
    policy
        Its name.
    tpot_ns
        Mean time per output token.
    scheduler_cores, worker_cores
        CPU over wall time of each.
    """

    step: str
    policy: str
    tpot_ns: float
    scheduler_cores: float
    worker_cores: float

    @property
    def cores(self) -> float:
        """Of both."""
        return self.scheduler_cores + self.worker_cores

    def price(self, spin: "Point", delay_price: float) -> float:
        """In cores, its delay against spin counted."""
        return wait_cost(self.cores, self.tpot_ns / spin.tpot_ns - 1.0, delay_price)


Points = dict[tuple[str, str], Point]


def config_of(plan: Plan, step: str, tokens: int) -> RunConfig:
    """A closed loop at one step time."""
    n = plan["concurrency"]
    return RunConfig(
        EngineConfig(workers=1),
        workload=WorkloadConfig(
            kind="closed",
            requests=n,
            concurrency=n,
            prompt_p50=16,
            prompt_p95=16,
            output_p50=tokens,
            output_p95=tokens,
        ),
        device=DeviceConfig(
            step_ns=parse_duration_ns(step), per_prefill_token_ns=0, jitter=plan["jitter"]
        ),
        seed=plan["seed"],
    )


def sweep_of(
    plan: Plan, table: dict[str, Any], policies: Iterable[NamedPolicy], profile: MachineProfile
) -> SweepPlan:
    """Every policy at every step time of a table of the plan."""
    configs = {step: config_of(plan, step, table["tokens"]) for step in table["steps"]}
    return SweepPlan(
        cells_of(configs, {plan["profile"] or "this box": profile}),
        tuple(policies),
        replications=table["replications"],
        figures=("tpot_mean_ns", "scheduler_cores", "worker_cores"),
    )


def rows_of(found: Iterable[CellResult]) -> list[Content]:
    """Estimates of a sweep as rows, with the interval of TPOT."""
    rows = []
    for cell in found:
        for policy, estimates in cell.estimates.items():
            tpot = estimates["tpot_mean_ns"]
            cores = [estimates[f"{who}_cores"].value for who in ("scheduler", "worker")]
            point = Point(cell.cell, policy, tpot.value, *cores)
            rows.append({**point._asdict(), "tpot_low_ns": tpot.low, "tpot_high_ns": tpot.high})
    return rows


def points_of(rows: Iterable[Content]) -> Points:
    """By step time and policy."""
    points = (Point(*(row[name] for name in Point._fields)) for row in rows)
    return {(point.step, point.policy): point for point in points}


def modelled(plan: Plan, step: str, policy: NamedPolicy, profile: MachineProfile) -> Content:
    """What the model says of a run on this box."""
    config = config_of(plan, step, _tokens(plan, step))
    return _row(step, policy.name, summarize(predict(config, policy.policy, profile, 0)))


def measured(
    plan: Plan, step: str, policy: NamedPolicy, profile: MachineProfile, repeat: int
) -> Content:
    """One run of the real loop."""
    config = config_of(plan, step, _tokens(plan, step))
    records = run_once(make_spec(config, policy.policy, profile, repeat))
    emulated = bool(records.meta["emulated"])
    return {**_row(step, policy.name, summarize(records)), "emulated": emulated}


def _tokens(plan: Plan, step: str) -> int:
    return max(2, parse_duration_ns(plan["machine"]["run"]) // parse_duration_ns(step))


def _row(step: str, policy: str, found: Summary) -> Content:
    cores = found.scheduler_cores, found.worker_cores
    return Point(step, policy, found.tpot.mean, *cores)._asdict()


def paid_twice(points: Points, policy: str) -> list[str]:
    """Step times at which a window spins in vain and pays for the wake-up too."""
    steps = []
    for (step, name), point in points.items():
        if name != policy:
            continue
        park = points[step, "park"]
        dear = point.scheduler_cores >= DEARER * park.scheduler_cores
        if dear and point.tpot_ns >= (1.0 - GAIN) * park.tpot_ns:
            steps.append(step)
    return steps


def cheapest(points: Points, step: str, delay_price: float) -> str:
    """The policy of the lowest price at a step time."""
    spin = points[step, "spin"]
    here = [point for (at, _), point in points.items() if at == step]
    return min(here, key=lambda point: point.price(spin, delay_price)).policy
