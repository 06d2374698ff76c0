"""How sure the intervals of `shmsim.stats` are, and what common tapes buy.

Every known case is run many times over; *coverage* is the share of nominal 95 % intervals that hold
the truth. ``claims(seed, quick)`` is what a bench calls; ``python stats.py`` prints the table, and
another one of runs too short or too rare for what they are asked, which hold less.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shmsim.claims import Claim
from shmsim.config import EngineConfig, RunConfig, WorkloadConfig
from shmsim.figures import figures_of
from shmsim.policies import SpinThenPark
from shmsim.profile import MachineProfile
from shmsim.sim.engine import summarize_with
from shmsim.stats import (
    Estimate,
    Precision,
    batch_means,
    cycles,
    mean_of_replications,
    paired_ratio,
    quantile_of_independent,
    quantile_of_sections,
    ratio_of_cycles,
    run_until,
    steady_mean,
)
from shmsim.units import US

Float64Array = NDArray[np.float64]

_NOMINAL: Final = 0.95
_REPEATS, _QUICK_REPEATS = 4_000, 2_000
_TAPES, _QUICK_TAPES = 30, 10


# Processes with known answers.


def ar1(rng: np.random.Generator, n_runs: int, n: int, phi: float, start: float) -> Float64Array:
    """Autoregressive sequences of mean 0 and unit noise, shape ``(n_runs, n)``.

    Parameters
    ----------
    rng, n_runs, n
        How many, and how long.
    phi
        Correlation of neighbours.
    start
        Value before the first; NaN draws it from the stationary law.
    """
    found = rng.standard_normal((n, n_runs))
    before = (
        rng.standard_normal(n_runs) / math.sqrt(1 - phi**2)
        if np.isnan(start)
        else np.full(n_runs, start)
    )
    for row in found:
        row += phi * before
        before = row
    return found.T


def mm1_waits(rng: np.random.Generator, n_runs: int, n: int, load: float) -> Float64Array:
    """Waiting times of the M/M/1 queue from empty, service of mean 1, shape ``(n_runs, n)``.

    Lindley's recursion, all customers at once: the walk less its lowest point so far.
    """
    steps = rng.exponential(1.0, (n_runs, n)) - rng.exponential(1 / load, (n_runs, n))
    walk = np.concatenate([np.zeros((n_runs, 1)), np.cumsum(steps, axis=1)], axis=1)[:, :n]
    return walk - np.minimum.accumulate(walk, axis=1)


class Case(NamedTuple):
    """A method on a process whose answer is known.

    Parameters
    ----------
    name
        Method and process.
    truth
        The answer.
    estimates
        Makes intervals from so many runs.
    """

    name: str
    truth: float
    estimates: Callable[[np.random.Generator, int], list[Estimate]]


def _replications(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    return [mean_of_replications(row) for row in rng.gamma(16.0, 1 / 16, (n_runs, 20))]


def _batches_ar1(rng: np.random.Generator, n_runs: int, n: int = 4_096) -> list[Estimate]:
    return [batch_means(row) for row in ar1(rng, n_runs, n, 0.8, np.nan)]


def _exponential(rng: np.random.Generator, n_runs: int, n: int) -> list[Estimate]:
    return [mean_of_replications(row) for row in rng.exponential(1.0, (n_runs, n))]


def _warm_up_ar1(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    return [steady_mean(row)[0] for row in ar1(rng, n_runs, 4_096, 0.8, 100.0)]


_LOAD: Final = 0.5


def _mm1(
    rng: np.random.Generator, n_runs: int, n: int, of_row: Callable[[Float64Array], Estimate]
) -> list[Estimate]:
    found = []
    for _ in range(n_runs // 100):  # a hundred runs at once, so that memory stays small
        found += [of_row(row) for row in mm1_waits(rng, 100, n, _LOAD)]
    return found


def _batches_mm1(rng: np.random.Generator, n_runs: int, n: int = 8_192) -> list[Estimate]:
    return _mm1(rng, n_runs, n, batch_means)


def _cycles_mm1(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    # Who does not wait has found the server idle.
    return _mm1(rng, n_runs, 16_384, lambda row: ratio_of_cycles(*cycles(row, row == 0)))


def _median(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    return [quantile_of_independent(row, 0.5) for row in rng.exponential(1.0, (n_runs, 1_001))]


def _p99(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    return [quantile_of_independent(row, 0.99) for row in rng.exponential(1.0, (n_runs, 10_000))]


def _sections_ar1(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    # Each interval is that of ten replications.
    rows = ar1(rng, 10 * n_runs, 1_000, 0.5, np.nan).reshape(n_runs, 10, -1)
    return [quantile_of_sections(list(sections), 0.9) for sections in rows]


def _ratio(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    luck = rng.gamma(4.0, 0.25, (n_runs, 30))
    tried = 1.1 * luck + rng.normal(0, 0.05, luck.shape)
    return [paired_ratio(a, b) for a, b in zip(tried, luck, strict=True)]


def _sequential(rng: np.random.Generator, n_runs: int) -> list[Estimate]:
    precision = Precision(relative=0.05, least=10, most=2_000)
    return [run_until(precision, lambda _: rng.gamma(16.0, 1 / 16))[0] for _ in range(n_runs)]


#: Ids say method and process; the lengths are those from which normal laws hold, see
#: docs/statistics.md for what shorter runs do.
CASES: Final = (
    Case("replications/gamma_mean", 1.0, _replications),
    Case("batch_means/ar1_mean", 0.0, _batches_ar1),
    Case("mser5_batch_means/ar1_mean", 0.0, _warm_up_ar1),
    Case("batch_means/mm1_wait", _LOAD / (1 - _LOAD), _batches_mm1),
    Case("regenerative/mm1_wait", _LOAD / (1 - _LOAD), _cycles_mm1),
    Case("order_statistics/exponential_p50", math.log(2), _median),
    Case("order_statistics/exponential_p99", math.log(100), _p99),
    Case("sectioning/ar1_p90", float(stats.norm.ppf(0.9)) / math.sqrt(1 - 0.5**2), _sections_ar1),
    Case("fieller/ratio_of_pairs", 1.1, _ratio),
    Case("sequential/gamma_mean", 1.0, _sequential),
)


def _few_cycles(rng: np.random.Generator, n_runs: int, n: int) -> list[Estimate]:
    def first(row: Float64Array) -> Estimate:
        sums, lengths = cycles(row, row == 0)
        return ratio_of_cycles(sums[:n], lengths[:n])

    # Every second customer finds the server idle, on average.
    return _mm1(rng, n_runs, 3 * n, first)


#: What holds less than it says: too few replications of a skewed law, too short or too rare.
SHORT: Final = (
    *(
        Case(f"replications/exponential_mean, {n}", 1.0, partial(_exponential, n=n))
        for n in (5, 10, 30)
    ),
    *(
        Case(f"batch_means/ar1_mean, {n} values", 0.0, partial(_batches_ar1, n=n))
        for n in (512, 128)
    ),
    *(
        Case(
            f"batch_means/mm1_wait, {n} customers", _LOAD / (1 - _LOAD), partial(_batches_mm1, n=n)
        )
        for n in (1_024, 256)
    ),
    *(
        Case(f"regenerative/mm1_wait, {n} cycles", _LOAD / (1 - _LOAD), partial(_few_cycles, n=n))
        for n in (1_000, 100)
    ),
)


class Coverage(NamedTuple):
    """How often the intervals of one case held the truth.

    Parameters
    ----------
    name
        Of the case.
    share, low, high
        The share, and its own 95 % interval (Clopper and Pearson 1934).
    n
        How many intervals.
    """

    name: str
    share: float
    low: float
    high: float
    n: int


def coverage(case: Case, seed: int, n_runs: int) -> Coverage:
    """Run a case many times over."""
    number = (*CASES, *SHORT).index(case)
    estimates = case.estimates(np.random.default_rng([seed, number]), n_runs)
    held = sum(e.low <= case.truth <= e.high for e in estimates)
    low, high = stats.binomtest(held, len(estimates)).proportion_ci(0.95, "exact")
    return Coverage(case.name, held / len(estimates), float(low), float(high), len(estimates))


# Common tapes.


def variance_ratio(seed: int, n: int) -> tuple[float, float, float]:
    """How much less a threshold comparison varies on common tapes than on tapes of its own.

    Two spin windows a step's length apart by a tenth (1.9 and 2.1 ms at steps of 2 ms), whose
    difference in TPOT is microseconds: the comparison that every tuner makes.

    Parameters
    ----------
    seed, n
        Of the tapes, and how many of each kind.

    Returns
    -------
    tuple
        The ratio of the variances, and its 95 % interval by Fisher's F, both with ``n - 1`` degrees
        of freedom.
    """
    lengths = {"prompt_p50": 16, "prompt_p95": 16, "output_p50": 500, "output_p95": 500}
    config = replace(
        RunConfig(EngineConfig(calls_per_step=1), seed=seed),
        workload=WorkloadConfig(requests=2, concurrency=1, **lengths),
    )
    config = replace(config, device=replace(config.device, jitter=0.1))
    profile = MachineProfile.shipped("vm-2cpu")

    def tpot_ns(window_ns: int, replication: int) -> float:
        summary = summarize_with(config, SpinThenPark(window_ns), profile, replication, "simpy")
        return figures_of(summary)["tpot_mean_ns"]

    short = np.array([tpot_ns(1_900 * US, i) for i in range(n)])
    paired = np.array([tpot_ns(2_100 * US, i) for i in range(n)]) - short
    alone = np.array([tpot_ns(2_100 * US, i) for i in range(n, 2 * n)]) - short
    ratio = float(alone.var(ddof=1) / paired.var(ddof=1))
    f = float(stats.f.ppf(0.975, n - 1, n - 1))
    return ratio, ratio / f, ratio * f


def claims(seed: int, quick: bool) -> list[Claim]:
    """Coverage of each known case, how far the worst is off, and what common tapes buy.

    Parameters
    ----------
    seed
        Of all random numbers.
    quick
        Fewer repeats: for a look, not for a record.
    """
    n_runs = _QUICK_REPEATS if quick else _REPEATS
    n_tapes = _QUICK_TAPES if quick else _TAPES
    found = [coverage(case, seed, n_runs) for case in CASES]
    worst = max(found, key=lambda c: abs(c.share - _NOMINAL))
    off, half = abs(worst.share - _NOMINAL), (worst.high - worst.low) / 2
    ratio, low, high = variance_ratio(seed, n_tapes)

    def claim(name: str, value: float, ends: tuple[float, float], bound: str, n: int) -> Claim:
        unit, sign, limit = bound.split()
        return Claim(f"stats/{name}", value, *ends, unit, float(limit), sign, n, seed)

    return [
        # Within 93 to 97 %, in the worst of all cases.
        claim("coverage_95", off, (max(off - half, 0.0), off + half), "share <= 0.02", n_runs),
        *(
            claim(f"coverage_95/{c.name}", c.share, (c.low, c.high), "share >= 0.93", c.n)
            for c in found
        ),
        claim("crn_variance_ratio", ratio, (low, high), "ratio >= 100", n_tapes),
    ]


def short_of_it(seed: int) -> list[Coverage]:
    """Coverage where nobody should ask for an interval, or should know what it is worth."""
    return [coverage(case, seed, _QUICK_REPEATS) for case in SHORT]


def main() -> None:
    """Print every claim, and what holds less."""
    for claim in claims(1, quick=False):
        print(
            f"{claim.id:50} {claim.value:9.4g} ({claim.low:.4g} to {claim.high:.4g}) "
            f"{claim.direction} {claim.bound:g} n = {claim.n} {'' if claim.holds else 'FAILS'}"
        )
    print("\nToo short, or too rare: the share of nominal 95 % intervals that hold the truth")
    for found in short_of_it(1):
        print(f"{found.name:50} {found.share:9.4g} ({found.low:.4g} to {found.high:.4g})")


if __name__ == "__main__":
    main()
