"""Results as text: the benchmark block people know, the validation table, the verdict."""

import math

from rich import box
from rich.table import Table

from realrun.validate import Comparison, Validation
from shmsim.metrics import Quantiles, Summary
from shmsim.units import MS, US

#: What counts as a hit: TPOT within this share, CPU within this many cores.
TPOT_MARGIN = 0.05
CPU_MARGIN = 0.05


def benchmark_block(summary: Summary) -> str:
    """The block that vLLM's ``bench serve`` prints, with the CPU below it."""
    lines = [
        _rule("Serving Benchmark Result", "="),
        _count("Successful requests:", summary.ttft.n),
        _number("Benchmark duration (s):", summary.duration_s),
        _number("Request throughput (req/s):", summary.requests_per_s),
        _number("Output token throughput (tok/s):", summary.output_tokens_per_s),
        _number("Total token throughput (tok/s):", summary.total_tokens_per_s),
    ]
    for title, short, quantity in (
        ("Time to First Token", "TTFT", summary.ttft),
        ("Time per Output Token (excl. 1st token)", "TPOT", summary.tpot),
        ("Inter-token Latency", "ITL", summary.itl),
    ):
        lines += [_rule(title, "-"), *_three(short, quantity)]
    lines += [
        _rule("CPU", "-"),
        _number("Scheduler (cores):", summary.scheduler_cores, 3),
        _number("Each worker (cores):", summary.worker_cores, 3),
        "=" * 50,
    ]
    return "\n".join(lines)


def _rule(title: str, fill: str) -> str:
    return f" {title} ".center(50, fill)


def _count(label: str, value: int) -> str:
    return f"{label:<40}{value:<10d}"


def _number(label: str, value: float, digits: int = 2) -> str:
    return f"{label:<40}{value:<10.{digits}f}"


def _three(short: str, quantity: Quantiles) -> list[str]:
    return [
        _number(f"{name} {short} (ms):", value / MS)
        for name, value in (
            ("Mean", quantity.mean),
            ("Median", quantity.p50),
            ("P99", quantity.p99),
        )
    ]


def validation_table(validation: Validation) -> Table:
    """Draw every policy in both worlds, with errors and the machine's own spread."""
    config = validation.config
    engine = config.engine
    table = Table(
        title=f"model against machine: {engine.workers} worker(s), {engine.calls_per_step} call(s) "
        f"per step, {engine.scheduling}, step {config.device.step_ns / MS:g} ms, "
        f"{config.repeats} repeats; ± is half the range of the machine's repeats",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("policy")
    for label in (
        "TPOT p50 ms\nmodel  machine",
        "error",
        "TPOT p99 ms\nmodel  machine",
        "TTFT after idle ms\nmodel  machine",
        "scheduler cores\nmodel  machine",
        "worker cores\nmodel  machine",
        "",
    ):
        table.add_column(label, justify="right")
    for name in validation.policy_names:
        tpot = validation.compare(name, "tpot_p50_ns")
        scheduler = validation.compare(name, "scheduler_cores")
        worker = validation.compare(name, "worker_cores")
        table.add_row(
            name,
            _pair(tpot, MS),
            f"{100 * tpot.relative_error:+.1f} %",
            _pair(validation.compare(name, "tpot_p99_ns"), MS),
            _pair(validation.compare(name, "ttft_after_idle_p50_ns"), MS),
            _pair(scheduler, 1),
            _pair(worker, 1),
            "hit" if is_hit(tpot, scheduler, worker) else "miss",
        )
    return table


def is_hit(tpot: Comparison, scheduler: Comparison, worker: Comparison) -> bool:
    """Whether a prediction is within 5 % on TPOT and 5 points on the CPU of each process."""
    return (
        abs(tpot.relative_error) <= TPOT_MARGIN
        and abs(scheduler.error) <= CPU_MARGIN
        and abs(worker.error) <= CPU_MARGIN
    )


def _pair(comparison: Comparison, unit: int) -> str:
    if math.isnan(comparison.measured):
        return "none"
    digits = 3
    return (
        f"{comparison.simulated / unit:.{digits}f}  {comparison.measured / unit:.{digits}f}"
        f" ±{comparison.spread / unit:.{digits}f}"
    )


def verdict(validation: Validation, winner: str, reference: str) -> str:
    """Say in plain words what a policy does on this box, measured and predicted."""
    engine = validation.config.engine
    n_waiters = 1 + engine.workers
    cores, tpot = {}, {}
    for name in (winner, reference):
        scheduler = validation.compare(name, "scheduler_cores")
        worker = validation.compare(name, "worker_cores")
        token = validation.compare(name, "tpot_p50_ns")
        for world in ("simulated", "measured"):
            cores[name, world] = getattr(scheduler, world) + engine.workers * getattr(worker, world)
            tpot[name, world] = getattr(token, world)
    left, before = cores[winner, "measured"], cores[reference, "measured"]
    saved = {w: cores[reference, w] - cores[winner, w] for w in ("simulated", "measured")}
    added = {w: tpot[winner, w] / tpot[reference, w] - 1 for w in ("simulated", "measured")}
    noise = max(
        validation.compare(name, "tpot_p50_ns").spread
        / validation.compare(name, "tpot_p50_ns").measured
        for name in (winner, reference)
    )
    change = added["measured"]
    words = f"adds {100 * change:.1f} % to" if change >= 0 else f"takes {-100 * change:.1f} % off"
    certainty = (
        f"; that is within the run-to-run noise of this box (±{100 * noise:.1f} %)"
        if abs(change) <= noise
        else f" (run-to-run noise ±{100 * noise:.1f} %)"
    )
    delay = validation.compare(winner, "scheduler_delay_p50_ns").measured / US
    return (
        f"On this box, with this workload: {winner} saves {saved['measured']:.2f} of the "
        f"{before:.2f} cores that {reference} burns ({saved['measured'] / n_waiters:.2f} per "
        f"waiter; {left:.2f} left) and {words} the time per output token{certainty}. Predicted: "
        f"{saved['simulated']:.2f} cores saved, {100 * added['simulated']:+.1f} % TPOT. "
        f"The scheduler sees a reply {delay:.1f} µs after it was published (median)."
    )
