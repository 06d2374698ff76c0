"""The seed's four cells: two scales fitted to the sync pair, the async pair predicted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import beta

from shmsim.claims import Claim
from shmsim.config import RunConfig, WorkloadConfig, parse_config, parse_policy
from shmsim.fitting import log_normal_curve, scaled, solve, with_costs
from shmsim.metrics import Summary, summarize
from shmsim.profile import MachineProfile
from shmsim.sim.run import simulate
from shmsim.units import US, parse_duration_ns
from shmsim.wait import WaitPolicy

CELLS: Final = ("sync_spin", "sync_wait", "async_spin", "async_wait")
#: One standard deviation of the prior moves an async cell by about 4 %: more than 5 % off, and the
#: prior or a mechanism is wrong.
TPOT_BOUND: Final = 0.05
#: A shift of 2.5 ms in a mean over twelve first tokens, without interval: its size, to a half.
TTFT_BOUND: Final = 0.5


class Fit(NamedTuple):
    """What is taken from the two sync cells.

    Parameters
    ----------
    overlap
        Share of the host's work that async scheduling overlaps; from the prior, not fitted.
    host_scale
        How many times dearer the host's work is than in the profile.
    wake_scale
        How many times dearer a sleep is.
    """

    overlap: float
    host_scale: float
    wake_scale: float


class Draw(NamedTuple):
    """One value of the prior with its predictions.

    Parameters
    ----------
    fit
        Of this value.
    tpot_ns
        Mean TPOT of each of `CELLS`.
    ttft_shift_mean_ns, ttft_shift_p50_ns
        TTFT of the arm that waits less that of the arm that spins, sync and async.
    """

    fit: Fit
    tpot_ns: dict[str, float]
    ttft_shift_mean_ns: dict[str, float]
    ttft_shift_p50_ns: dict[str, float]


class Seed:
    """The machine of the seed, as far as it is published.

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
        self.config = replace(parse_config(plan["cell"]), seed=plan["seed"])
        self.profile = on_zmq(profile or MachineProfile.shipped(plan["profile"]), plan["wake"])

    def machine(self, fit: Fit, config: RunConfig) -> tuple[RunConfig, MachineProfile]:
        """A config and the profile on a machine with these scales.

        What async scheduling cannot overlap (preparing inputs, launching kernels, sampling, each of
        which a device ahead of its host waits for) is part of the step there.
        """
        names = self.plan["host"]["costs"]
        n = self.config.workload.concurrency
        work_ns = fit.host_scale * sum(mean_ns(self.profile, name, n) for name in names)
        profile = scaled(self.profile, names, fit.host_scale * fit.overlap)
        profile = scaled(profile, self.plan["wake"]["costs"], fit.wake_scale)
        step_ns = config.device.step_ns + round((1.0 - fit.overlap) * work_ns)
        return replace(config, device=replace(config.device, step_ns=step_ns)), profile

    def cell(self, name: str, length: str) -> tuple[RunConfig, WaitPolicy]:
        """A cell by name, as long as the plan says for fits or for predictions."""
        scheduling, arm = name.split("_")
        size = self.plan["length"][length]
        workload = replace(
            self.config.workload,
            requests=size["requests"],
            output_p50=size["output"],
            output_p95=size["output"],
        )
        engine = replace(self.config.engine, scheduling=scheduling)
        config = replace(self.config, engine=engine, workload=workload)
        return config, parse_policy(self.plan["arms"][arm]).policy

    def run(self, fit: Fit, config: RunConfig, policy: WaitPolicy, replication: int = 0) -> Summary:
        """Run once with these scales."""
        config, profile = self.machine(fit, config)
        return summarize(simulate(config, policy, profile, replication))

    def tpot_ns(self, fit: Fit, name: str, length: str, replication: int) -> float:
        """Mean TPOT of a cell."""
        config, policy = self.cell(name, length)
        return self.run(fit, config, policy, replication).tpot.mean

    def fit(self, overlap: float, replication: int) -> Fit:
        """Two scales from the two sync cells, one from each.

        Raises
        ------
        ValueError
            If no scale within the plan's range meets a cell.
        """
        measured = self.plan["measured"]

        def with_host(scale: float) -> float:
            return self.tpot_ns(Fit(overlap, scale, 1.0), "sync_spin", "fit", replication)

        # Nobody sleeps in this cell while there is work, so the other scale plays no part in it.
        target = parse_duration_ns(measured["sync_spin"]["tpot"])
        host = solve(with_host, target, *self.plan["host"]["scale"], "scale of the host's work")

        def with_wake(scale: float) -> float:
            return self.tpot_ns(Fit(overlap, host, scale), "sync_wait", "fit", replication)

        target = parse_duration_ns(measured["sync_wait"]["tpot"])
        wake = solve(with_wake, target, *self.plan["wake"]["scale"], "scale of a sleep's cost")
        return Fit(overlap, host, wake)

    def ttft_shift_ns(self, fit: Fit, scheduling: str, replication: int) -> tuple[float, float]:
        """How much later the first token comes if one waits asleep: in the mean, in the median."""
        table = self.plan["ttft"]
        idle_ns, stagger_ns = (parse_duration_ns(table[key]) for key in ("idle", "stagger"))
        means, medians = [], []
        for arm in ("spin", "wait"):
            config, policy = self.cell(f"{scheduling}_{arm}", "predict")
            # A pair ends before the next arrives: its few tokens take a fraction of the period.
            period_ns = idle_ns + 4 * table["output"] * config.device.step_ns
            arrivals_ns = [
                i * period_ns + late_ns
                for i in range(table["pairs"])
                for late_ns in (0, stagger_ns)
            ]
            prompt = config.workload.prompt_p50
            with trace(arrivals_ns, prompt, table["output"]) as workload:
                config = replace(config, workload=workload)
                ttft = self.run(fit, config, policy, replication).ttft
            means.append(ttft.mean)
            medians.append(ttft.p50)
        return means[1] - means[0], medians[1] - medians[0]

    def draw(self, number: int, overlap: float) -> Draw:
        """Fit on one tape, predict on another: the cells did not share their luck either."""
        fit = self.fit(overlap, 2 * number)
        luck = 2 * number + 1
        tpot_ns = {name: self.tpot_ns(fit, name, "predict", luck) for name in CELLS}
        shifts = {name: self.ttft_shift_ns(fit, name, luck) for name in ("sync", "async")}
        return Draw(
            fit,
            tpot_ns,
            {name: mean for name, (mean, _) in shifts.items()},
            {name: median for name, (_, median) in shifts.items()},
        )

    def overlaps(self) -> list[float]:
        """Medians of equally likely parts of the prior."""
        prior = self.plan["prior"]
        levels = (np.arange(prior["draws"]) + 0.5) / prior["draws"]
        return [float(x) for x in beta(prior["alpha"], prior["beta"]).ppf(levels)]


def on_zmq(profile: MachineProfile, wake: dict[str, Any]) -> MachineProfile:
    """The same machine, asleep on a ZMQ socket."""
    points = [{key: parse_duration_ns(text) for key, text in p.items()} for p in wake["points"]]
    latency = log_normal_curve("asleep_ns", ((p["asleep"], p["p50"], p["p90"]) for p in points))
    notify = log_normal_curve("asleep_ns", ((p["asleep"], p["send"], p["send"]) for p in points))
    profile = with_costs(
        profile, {"wake_latency": latency, "notify_armed": notify}, "ZMQ PUB/SUB instead of"
    )
    return replace(profile, machine={**profile.machine, "doorbell": "zmq"})


def mean_ns(profile: MachineProfile, name: str, x: float) -> float:
    """Mean of a cost, in the model's resolution."""
    levels = (np.arange(1000) + 0.5) / 1000
    return float(np.mean([profile.costs[name].at(float(u), x) for u in levels]))


@contextmanager
def trace(arrivals_ns: Sequence[int], prompt: int, output: int) -> Iterator[WorkloadConfig]:
    """Requests at given instants, as a trace that a config can name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "requests.csv"
        rows = (f"{np.datetime64(t, 'ns')},{prompt},{output}" for t in arrivals_ns)
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
        yield WorkloadConfig(
            kind="trace", trace=str(path), format="azure", requests=len(arrivals_ns)
        )


class Interval(NamedTuple):
    """A prediction beside what was measured, ns; the interval is that of the plan."""

    low: float
    median: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the median."""
        return self.median / self.measured - 1.0

    @property
    def covers(self) -> bool:
        """Whether what was measured lies within the interval."""
        return self.low <= self.measured <= self.high

    def claim(self, name: str, bound: float, n: int, seed: int) -> Claim:
        """The size of the error as a claim; its range is that over the interval."""
        ends = abs(self.low / self.measured - 1.0), abs(self.high / self.measured - 1.0)
        least = 0.0 if self.covers else min(ends)
        return Claim(name, abs(self.error), least, max(ends), "ratio", bound, "<=", n, seed)


def intervals(draws: Sequence[Draw], plan: dict[str, Any]) -> dict[str, Interval]:
    """Each predicted quantity with its interval over the prior and the luck."""
    measured = plan["measured"]
    tail = (1.0 - plan["prior"]["interval"]) / 2
    found = {}

    def add(name: str, values: list[float], target_ns: float) -> None:
        low, median, high = np.quantile(values, [tail, 0.5, 1.0 - tail])
        found[name] = Interval(float(low), float(median), float(high), target_ns)

    for name in CELLS:
        target_ns = parse_duration_ns(measured[name]["tpot"])
        add(f"tpot/{name}", [d.tpot_ns[name] for d in draws], target_ns)
    for name in ("sync", "async"):
        for statistic in ("mean", "p50"):
            spin, wait = (
                parse_duration_ns(measured[f"{name}_{arm}"][f"ttft_{statistic}"])
                for arm in ("spin", "wait")
            )
            values = [
                (d.ttft_shift_mean_ns if statistic == "mean" else d.ttft_shift_p50_ns)[name]
                for d in draws
            ]
            add(f"ttft_shift_{statistic}/{name}", values, wait - spin)
    return found


def claims(found: dict[str, Interval], n: int, seed: int) -> list[Claim]:
    """The predicted cells; those that were fitted are none."""
    made = [
        found[f"tpot/async_{arm}"].claim(f"model/seed_async_{arm}_error", TPOT_BOUND, n, seed)
        for arm in ("spin", "wait")
    ]
    made += [
        found[f"ttft_shift_mean/{name}"].claim(
            f"model/seed_{name}_ttft_shift_error", TTFT_BOUND, n, seed
        )
        for name in ("sync", "async")
    ]
    covered = sum(found[f"tpot/async_{arm}"].covers for arm in ("spin", "wait"))
    return [
        *made,
        Claim(
            "model/seed_async_cells_covered", covered, covered, covered, "cells", 2, ">=", n, seed
        ),
    ]


def describe(interval: Interval) -> str:
    """Predicted, its interval, measured, and the error, in words."""
    low, median, high, measured = (x / US for x in interval)
    inside = "inside" if interval.covers else "OUTSIDE"
    return (
        f"{median:.0f} us [{low:.0f} to {high:.0f}], measured {measured:.0f}: "
        f"{100 * interval.error:+.1f} %, {inside}"
    )
