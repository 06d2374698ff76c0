"""What follows from the fitted machine: TP8, the first token after idling, and spin windows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from seed_cells import Fit, Seed, trace

from shmsim.config import RunConfig, parse_policy
from shmsim.metrics import Summary
from shmsim.units import MS, parse_duration_ns

Row = dict[str, Any]


def tp8(seed: Seed, fit: Fit, table: dict[str, Any]) -> Iterator[Row]:
    """Eight GPUs, a small model, few requests at a time: what the seed's reviewer asked for."""
    for scheduling in table["scheduling"]:
        for concurrency in table["concurrency"]:
            config = _decode(seed, table, 2 * concurrency, concurrency)
            config = replace(
                config,
                engine=replace(config.engine, workers=table["workers"], scheduling=scheduling),
                device=replace(
                    config.device,
                    step_ns=parse_duration_ns(table["step"]),
                    per_sequence_ns=parse_duration_ns(table["per_sequence"]),
                ),
            )
            cell = {"scheduling": scheduling, "concurrency": concurrency}
            for row in _rows(seed, fit, config, table):
                yield {**cell, **row}


def cliff(seed: Seed, fit: Fit, table: dict[str, Any]) -> Iterator[Row]:
    """One request at a time, each after a long idle period."""
    n = table["requests"]
    idle_ns = parse_duration_ns(table["idle"])
    # Gaps spread over the period of a poll: equal ones would all end at the same phase of it.
    gaps_ns = [idle_ns + (i * 100 * MS) // n for i in range(n)]
    arrivals_ns = np.cumsum(gaps_ns).tolist()
    with trace(arrivals_ns, seed.config.workload.prompt_p50, table["output"]) as workload:
        yield from _rows(seed, fit, replace(seed.config, workload=workload), table)


def windows(seed: Seed, fit: Fit, table: dict[str, Any]) -> Iterator[Row]:
    """Windows of 1 s and 2 ms, at steps around and above the shorter one."""
    for step in table["steps"]:
        config = _decode(seed, table, 2, seed.config.workload.concurrency)
        device = replace(config.device, step_ns=parse_duration_ns(step), per_sequence_ns=0)
        for row in _rows(seed, fit, replace(config, device=device), table, whole_step=True):
            yield {"step": step, **row}


def _decode(seed: Seed, table: dict[str, Any], requests: int, concurrency: int) -> RunConfig:
    workload = replace(
        seed.config.workload,
        requests=requests,
        concurrency=concurrency,
        output_p50=table["output"],
        output_p95=table["output"],
    )
    return replace(seed.config, workload=workload)


def _rows(
    seed: Seed, fit: Fit, config: RunConfig, table: dict[str, Any], *, whole_step: bool = False
) -> Iterator[Row]:
    for name in table["policies"]:
        policy = parse_policy(name).policy
        # A step that is given as a whole holds the work that cannot be overlapped already.
        used = fit._replace(overlap=1.0, host_scale=fit.host_scale * fit.overlap)
        found = seed.run(used if whole_step else fit, config, policy)
        yield {"policy": name, **figures(found, config.engine.workers)}


def figures(found: Summary, n_workers: int) -> Row:
    """What is stored of a run; of no idle periods NaN, which JSON writes as null."""
    after_idle = {
        "ttft_after_idle_p50_ns": found.ttft_after_idle.p50,
        "ttft_after_idle_p99_ns": found.ttft_after_idle.p99,
    }
    return {
        "tpot_mean_ns": found.tpot.mean,
        "itl_p99_ns": found.itl.p99,
        **{key: None if np.isnan(value) else value for key, value in after_idle.items()},
        "scheduler_cores": found.scheduler_cores,
        "worker_cores": found.worker_cores,
        "cores": found.scheduler_cores + n_workers * found.worker_cores,
    }


#: All of it, by name.
PARTS: Final[dict[str, Callable[[Seed, Fit, dict[str, Any]], Iterator[Row]]]] = {
    "tp8": tp8,
    "cliff": cliff,
    "windows": windows,
}
