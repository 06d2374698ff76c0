"""The figures of a run by name, and their estimates with intervals over runs."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from shmsim.metrics import (
    Float64Array,
    Quantiles,
    Summary,
    itl_ns,
    summarize,
    tpot_ns,
    ttft_ns,
)
from shmsim.records import RequestRow, RunRecords
from shmsim.stats.estimate import CONFIDENCE, Estimate, mean_of_replications
from shmsim.stats.quantile import quantile_of_sections
from shmsim.stats.regenerative import MANY_CYCLES, cycles, ratio_of_cycles
from shmsim.stats.warmup import WarmUp, mser5, steady_mean
from shmsim.units import MS

_SECTIONS: Final = 16  # of one run


def _after_idle_ns(requests: list[RequestRow]) -> Float64Array:
    return ttft_ns([request for request in requests if request.after_idle])


#: Latencies by name: the field of `Summary`, and the values of a run.
_LATENCIES: Final[dict[str, Callable[[list[RequestRow]], Float64Array]]] = {
    "ttft": ttft_ns,
    "ttft_after_idle": _after_idle_ns,
    "tpot": tpot_ns,
    "itl": itl_ns,
}
_STATISTICS: Final = {"mean": None, "p50": 0.5, "p99": 0.99}
_PLAIN: Final = (
    "scheduler_cores",
    "worker_cores",
    "duration_s",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "n_steps",
)

#: Every figure of a run: quantity, statistic, unit.
FIGURES: Final = (
    *(f"{name}_{statistic}_ns" for name in _LATENCIES for statistic in _STATISTICS),
    *_PLAIN,
)


class Shown(NamedTuple):
    """How people read a figure: what it is divided by, and what it is called."""

    unit: float
    label: str


def shown(figure: str) -> Shown:
    """How a figure is written in a table.

    Examples
    --------
    >>> shown("tpot_p50_ns"), shown("worker_cores")
    (Shown(unit=1000000, label='TPOT p50 ms'), Shown(unit=1, label='worker cores'))
    """
    if not figure.endswith("_ns"):
        return Shown(1, figure.replace("_per_s", "/s").replace("_", " "))
    name, _, statistic = figure.removesuffix("_ns").rpartition("_")
    quantity, _, rest = name.partition("_")
    return Shown(
        MS, " ".join(filter(None, (quantity.upper(), rest.replace("_", " "), statistic, "ms")))
    )


def figures_of(summary: Summary) -> dict[str, float]:
    """The figures of one run, by a name of `FIGURES`; NaN where there was no value."""
    found: dict[str, float] = {}
    for name in _LATENCIES:
        quantiles: Quantiles = getattr(summary, name)
        for statistic in _STATISTICS:
            found[f"{name}_{statistic}_ns"] = float(getattr(quantiles, statistic))
    return found | {name: float(getattr(summary, name)) for name in _PLAIN}


def summarize_with_intervals(
    runs: Sequence[RunRecords], *, confidence: float = CONFIDENCE, seed: int = 0
) -> dict[str, Estimate]:
    """Estimate every figure, with an interval.

    Parameters
    ----------
    runs
        Replications of one thing. Of two or more, means and rates get an interval from their
        spread, and quantiles by sectioning, each replication being a section. Of a single run, the
        mean of TTFT comes by regeneration if at least 1,000 requests found the engine idle, other
        means from batch means behind a warm-up that MSER-5 finds, quantiles by sectioning of 16
        stretches of it; CPU and rates are one number each then, and have no interval.
    confidence, seed
        As in `shmsim.stats.Estimate`.

    Returns
    -------
    dict
        By a name of `FIGURES`.

    Raises
    ------
    ValueError
        If there is no run, or one without a request.
    """
    if not runs:
        raise ValueError("there is no run to summarise")
    each = [figures_of(summarize(run)) for run in runs]
    found = {
        name: mean_of_replications([f[name] for f in each], confidence=confidence, seed=seed)
        for name in FIGURES
    }
    for name, values_of in _LATENCIES.items():
        values = [values_of(run.requests) for run in runs]
        for statistic, p in _STATISTICS.items():
            figure = f"{name}_{statistic}_ns"
            if p is not None:
                if len(values) > 1:
                    found[figure] = quantile_of_sections(
                        values, p, confidence=confidence, seed=seed
                    )
                else:
                    found[figure] = _quantile_of_one_run(values[0], p, confidence, seed)
            elif len(runs) == 1:
                found[figure] = _mean_of_one_run(name, runs[0], values[0], confidence, seed)
    return found


def warm_ups(run: RunRecords) -> dict[str, WarmUp]:
    """What `summarize_with_intervals` cuts from the front of a single run, by quantity.

    Not from what has no values; and the mean of TTFT, where it comes by regeneration, is that of
    all.
    """
    every = {name: _there(values_of(run.requests)) for name, values_of in _LATENCIES.items()}
    return {name: mser5(values) for name, values in every.items() if len(values)}


def _there(values: Float64Array) -> Float64Array:
    return values[~np.isnan(values)]


def _quantile_of_one_run(values: Float64Array, p: float, confidence: float, seed: int) -> Estimate:
    """Quantile of the values of a run behind its warm-up; stretches of it are the sections."""
    values = _there(values)
    warm_up = mser5(values)
    stretches = np.array_split(values[warm_up.n_cut :], _SECTIONS)
    estimate = quantile_of_sections(stretches, p, confidence=confidence, seed=seed)
    noted = warm_up.noted(estimate)
    # Sections that are too short say enough, as few values have neither.
    return noted._replace(caveat=estimate.caveat or noted.caveat)


def _mean_of_one_run(
    name: str, run: RunRecords, values: Float64Array, confidence: float, seed: int
) -> Estimate:
    """Mean of the values of a run, in the order of its requests."""
    if name == "ttft":
        idle = np.array([request.after_idle for request in run.requests])
        sums, lengths = cycles(values, idle)
        if len(sums) >= MANY_CYCLES:
            return ratio_of_cycles(sums, lengths, confidence=confidence, seed=seed)
    values = _there(values)
    try:
        estimate, _ = steady_mean(values, confidence=confidence, seed=seed)
    except ValueError as error:
        value = float(values.mean()) if len(values) else float("nan")
        nan = float("nan")
        return Estimate(value, nan, nan, confidence, len(values), "one run", seed, str(error))
    return estimate
