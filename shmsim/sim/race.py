"""Policies side by side on common tapes, fast enough for the sliders of a notebook."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from shmsim.config import NamedPolicy, RunConfig
from shmsim.metrics import Summary
from shmsim.profile import MachineProfile
from shmsim.sim.engine import choose, summarize_with
from shmsim.stats.compare import paired_difference
from shmsim.stats.estimate import Estimate, Float64Array, mean_of_replications
from shmsim.units import S
from shmsim.wait import WaitPolicy

_STEPS: Final = 2_000
_REPLICATIONS: Final = 8
_MEAN_OF_P99: Final = "replications: mean of each run's figure"


class Standing(NamedTuple):
    """How a policy did; each interval (95 %, Student over the tapes) holds for itself.

    Parameters
    ----------
    name
        Of the policy.
    tpot_ns
        Mean time per output token.
    added_ns
        The same less that of the reference, tape by tape.
    itl_p99_ns
        99th percentile of the inter-token latency, mean of each run's.
    cores
        Cores that all processes together keep busy.
    scheduler_cores, worker_cores
        Of the schedulers, and of one worker, on average.
    cpu_ns
        CPU time of all processes for each step.
    cost_ns
        ``J(r) = cpu_ns + r * added_ns``, r being ``config.delay_price``: what a step costs in CPU
        time, if a second of delay is worth *r* core-seconds. Only differences of it mean something.
    """

    name: str
    tpot_ns: Estimate
    added_ns: Estimate
    itl_p99_ns: Estimate
    cores: Estimate
    scheduler_cores: Estimate
    worker_cores: Estimate
    cpu_ns: Estimate
    cost_ns: Estimate


def race(
    policies: Sequence[NamedPolicy],
    config: RunConfig,
    profile: MachineProfile,
    *,
    n_steps: int = _STEPS,
    replications: int = _REPLICATIONS,
    reference: str = "",
) -> list[Standing]:
    """Let policies meet the same luck, on several tapes; the first call for a class compiles it.

    What a tape holds does not depend on policies, step time, jitter or price. So a slider that
    changes these finds drawn what it needs.

    Parameters
    ----------
    policies
        Who races; their names differ.
    config, profile
        What runs, on which machine; the config's own policies play no part.
    n_steps
        Length of each run: ``workload.concurrency`` sequences decode that many tokens each, in
        place of the config's workload. 0 keeps the workload.
    replications
        How many tapes, at least 2.
    reference
        Name of the policy that `Standing.added_ns` counts from; empty takes the first.

    Returns
    -------
    list of Standing
        In the order of the policies.

    Raises
    ------
    ValueError
        If there is no policy, two have one name, the reference is none of them, there are fewer
        than 2 tapes, or `shmsim.sim.engine.simulate_with` raises one.

    Examples
    --------
    >>> from shmsim.config import parse_policy
    >>> policies = [parse_policy(text) for text in ("spin", "SpinThenPark:window=500us")]
    >>> profile = MachineProfile.shipped("vm-2cpu")
    >>> spin, window = race(policies, RunConfig(), profile, n_steps=50, replications=3)
    >>> spin.added_ns.value, window.cores.value < spin.cores.value
    (0.0, True)
    """
    names = [policy.name for policy in policies]
    if not policies or len(set(names)) < len(names):
        told = ", ".join(names) or "none"
        raise ValueError(f"a race needs policies whose names differ, got {told}")
    if reference and reference not in names:
        raise ValueError(f"the reference {reference!r} is none of the policies: {', '.join(names)}")
    if replications < 2:
        raise ValueError(f"an interval takes at least 2 replications, got {replications}")
    if n_steps:
        config = _decoding(config, n_steps)
    runs = _tapes(config, [p.policy for p in policies], profile, range(replications))
    columns = [_figures(config, [tape[i] for tape in runs]) for i in range(len(policies))]
    of_reference = columns[names.index(reference) if reference else 0]
    return [
        _standing(config, name, column, of_reference)
        for name, column in zip(names, columns, strict=True)
    ]


def _tapes(
    config: RunConfig,
    policies: Sequence[WaitPolicy],
    profile: MachineProfile,
    replications: Sequence[int],
) -> list[list[Summary]]:
    """What each policy makes of each tape."""
    if choose(config, profile) == "recurrence":
        # With numba, which takes a second to load.
        from shmsim.sim.recurrence import UndecidedError, compile_ahead, run_tapes

        # Another engine takes what is left undecided, and a policy that does not compile.
        with suppress(UndecidedError, TypeError):
            engine = config.engine
            compile_ahead(policies, engine.device_wait, one_worker=engine.workers == 1)
            return list(run_tapes(config, policies, profile, replications))
    return [
        [summarize_with(config, policy, profile, i) for policy in policies] for i in replications
    ]


def _decoding(config: RunConfig, n_steps: int) -> RunConfig:
    """As many sequences as the config has at once, of so many tokens each."""
    together = config.workload.concurrency
    workload = replace(
        config.workload, kind="closed", requests=together, output_p50=n_steps, output_p95=n_steps,
        max_output_tokens=0,
    )  # fmt: skip
    return replace(config, workload=workload)


def _figures(config: RunConfig, runs: list[Summary]) -> dict[str, Float64Array]:
    """Figures of a policy by name, each of shape ``(n_tapes,)``."""
    n_engines, n_workers = config.cores.engines, config.engine.workers

    def each(values: Sequence[float]) -> Float64Array:
        return np.array(values, np.float64)

    scheduler = each([run.scheduler_cores for run in runs])
    worker = each([run.worker_cores for run in runs])
    cores = n_engines * (scheduler + n_workers * worker)
    per_step_s = each([run.duration_s / run.n_steps for run in runs])
    return {
        "tpot_ns": each([run.tpot.mean for run in runs]),
        "itl_p99_ns": each([run.itl.p99 for run in runs]),
        "cores": cores,
        "scheduler_cores": scheduler,
        "worker_cores": worker,
        "cpu_ns": S * cores * per_step_s,
    }


def _standing(
    config: RunConfig,
    name: str,
    figures: dict[str, Float64Array],
    reference: dict[str, Float64Array],
) -> Standing:
    seed, tpot_ns = config.seed, figures["tpot_ns"]
    found = {key: mean_of_replications(column, seed=seed) for key, column in figures.items()}
    found["itl_p99_ns"] = found["itl_p99_ns"]._replace(method=_MEAN_OF_P99)
    cost_ns = figures["cpu_ns"] + config.delay_price * (tpot_ns - reference["tpot_ns"])
    return Standing(
        name=name,
        added_ns=paired_difference(tpot_ns, reference["tpot_ns"], seed=seed),
        cost_ns=mean_of_replications(cost_ns, seed=seed),
        **found,
    )
