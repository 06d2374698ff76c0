"""The tables of an H200 in the model: two scales from batch 2, every other row predicted."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.claims import Claim
from shmsim.config import RunConfig, parse_config, parse_policy
from shmsim.fitting import level, scaled, solve
from shmsim.metrics import cores_of
from shmsim.profile import MachineProfile
from shmsim.records import column
from shmsim.sim.run import simulate
from shmsim.units import US, parse_duration_ns

TABLES: Final = ("batch_2", "batch_64", "eight_readers")
#: The same arm moved by 3 % between process starts.
STEP_BOUND: Final = 0.03
#: Against spin of the same table much of that cancels; the good arms are 0.5 to 2.5 % above it.
AGAINST_SPIN_BOUND: Final = 0.02
CORES_BOUND: Final = 0.10


class Fit(NamedTuple):
    """What batch 2 calibrates.

    Parameters
    ----------
    host_scale
        How many times dearer the host's work is than in the profile.
    slow_scale
        How many times more a sleep slows the work behind it.
    """

    host_scale: float
    slow_scale: float


class Step(NamedTuple):
    """One arm: median step time, and cores by role; NaN for a role that nobody has."""

    step_ns: float
    scheduler: float
    worker: float
    receiver: float


class Row(NamedTuple):
    """A row of a table beside its prediction.

    Parameters
    ----------
    table, arm
        Which.
    is_fitted
        Whether a scale was fitted to it.
    predicted
        Mean of the replications.
    measured
        As in the plan: ``step_us`` with ``low`` and ``high``, and cores.
    error, against_spin_error
        Relative error of the step time, and of its ratio to the table's spinning arm.
    cores_error
        Largest absolute error of a process, or of the sum where only that was reported.
    """

    table: str
    arm: str
    is_fitted: bool
    predicted: Step
    measured: dict[str, float]
    error: float
    against_spin_error: float
    cores_error: float


class H200:
    """The machine of the prototypes.

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
        table = plan["level"]
        profile = profile or MachineProfile.shipped(plan["profile"])
        self.profile = level(profile, table["costs"], table["sequences"])

    def config(self, table: str, arm: str) -> RunConfig:
        """How the model is asked for a row."""
        cell = self.plan[table]
        batch, steps = cell["batch"], self.plan["steps"]
        config = parse_config(self.plan["machine"])
        engine = replace(
            config.engine,
            workers=cell.get("workers", 1),
            devices=1,
            device_wait=self.plan["arms"][arm][1],
        )
        workload = replace(
            config.workload,
            requests=batch,
            concurrency=batch,
            output_p50=steps,
            output_p95=steps,
        )
        device = replace(config.device, step_ns=parse_duration_ns(cell["step"]))
        return replace(
            config, engine=engine, workload=workload, device=device, seed=self.plan["seed"]
        )

    def run(self, fit: Fit, table: str, arm: str, replication: int) -> Step:
        """Run one arm of one table once."""
        profile = scaled(self.profile, self.plan["host"]["costs"], fit.host_scale)
        profile = scaled(profile, self.plan["slow"]["costs"], fit.slow_scale)
        policy = parse_policy(self.plan["arms"][arm][0]).policy
        records = simulate(self.config(table, arm), policy, profile, replication)
        seen_ns = column(records.steps, "seen_ns")[self.plan["settle"] :]
        cores = cores_of(records)
        receivers = [share for name, share in cores.items() if name not in ("scheduler", "worker0")]
        receiver = float(np.mean(receivers)) if receivers else float("nan")
        step_ns = float(np.median(np.diff(seen_ns)))
        return Step(step_ns, cores["scheduler"], cores["worker0"], receiver)

    def fit(self) -> Fit:
        """Two scales from two rows of batch 2, on the luck of replication 0.

        Raises
        ------
        ValueError
            If no scale within the plan's range meets a row.
        """
        host, slow = self.plan["host"], self.plan["slow"]

        def target_ns(arm: str) -> float:
            return float(self.plan["batch_2"]["rows"][arm]["step_us"] * US)

        def with_host(scale: float) -> float:
            return self.run(Fit(scale, 1.0), "batch_2", host["row"], 0).step_ns

        # A spinner's work is slowed by costs of its own, so the other scale plays no part here.
        found = solve(with_host, target_ns(host["row"]), *host["scale"], "scale of the host's work")

        def with_slow(scale: float) -> float:
            return self.run(Fit(found, scale), "batch_2", slow["row"], 0).step_ns

        what = "scale of what a sleep slows down"
        return Fit(found, solve(with_slow, target_ns(slow["row"]), *slow["scale"], what))

    def predict(self, fit: Fit, table: str, arm: str) -> Step:
        """Mean of the replications of one row, on other luck than the fit's."""
        runs = [self.run(fit, table, arm, 1 + r) for r in range(self.plan["replications"])]
        return Step(*(float(np.mean(values)) for values in zip(*runs, strict=True)))


def rows_of(plan: dict[str, Any], predicted: dict[tuple[str, str], Step]) -> list[Row]:
    """Every row beside its prediction, by table and arm."""
    fitted = {("batch_2", plan[part]["row"]) for part in ("host", "slow")}
    found = []
    for (table, arm), step in predicted.items():
        rows = plan[table]["rows"]
        # The first row of each table spins.
        spin = next(iter(rows))
        ratio = step.step_ns / predicted[table, spin].step_ns
        measured = rows[arm]
        found.append(
            Row(
                table,
                arm,
                (table, arm) in fitted,
                step,
                measured,
                step.step_ns / US / measured["step_us"] - 1.0,
                ratio / (measured["step_us"] / rows[spin]["step_us"]) - 1.0,
                _cores_error(step, measured),
            )
        )
    return found


def _cores_error(predicted: Step, measured: dict[str, float]) -> float:
    if "total" in measured:
        return abs(predicted.scheduler + predicted.worker - measured["total"])
    roles = [role for role in ("scheduler", "worker", "receiver") if role in measured]
    return max(abs(getattr(predicted, role) - measured[role]) for role in roles)


def claims(rows: list[Row], plan: dict[str, Any]) -> list[Claim]:
    """The worst row of each table, fitted rows left out; the range is that of all its rows."""
    made = []
    for table in TABLES:
        predicted = [row for row in rows if row.table == table and not row.is_fitted]
        for name, errors, unit, bound in (
            ("step_worst_error", [abs(r.error) for r in predicted], "ratio", STEP_BOUND),
            (
                "against_spin_worst_error",
                [abs(r.against_spin_error) for r in predicted],
                "ratio",
                AGAINST_SPIN_BOUND,
            ),
            ("cores_worst_error", [r.cores_error for r in predicted], "cores", CORES_BOUND),
        ):
            worst = max(errors)
            n = len(errors)
            made.append(
                Claim(
                    f"h200/{table}_{name}", worst, min(errors), worst, unit, bound, "<=", n,
                    plan["seed"],
                )
            )  # fmt: skip
    return made
