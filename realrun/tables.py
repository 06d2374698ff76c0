"""Results as text: the benchmark block people know, the validation table, the verdict."""

import math
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.markup import escape
from rich.table import Table

from realrun.validate import Comparison, Validation
from shmsim.metrics import Quantiles, Summary
from shmsim.records import RunRecords
from shmsim.routing import MIB
from shmsim.units import MS, US

#: What counts as a hit: TPOT within this share, CPU within this many cores.
TPOT_MARGIN: Final = 0.05
CPU_MARGIN: Final = 0.05
_FEW_CORES: Final = 0.05  # a difference from run to run that nobody asks about


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


def hand_off_block(records: RunRecords, doorbell: str, committed_bytes: int) -> str:
    """How the messages of a run were handed over, in the shape of the benchmark block."""
    count = {
        name: sum(getattr(process, name) for process in records.processes)
        for name in ("notified", "elided", "spurious", "rescued", "late")
    }
    lines = [
        _rule(f"Hand-off ({doorbell})", "-"),
        _count("Rang the doorbell:", count["notified"]),
        _count("Nobody was asleep:", count["elided"]),
        _count("Woken for nothing:", count["spurious"]),
        _count("Replies that came too late:", count["late"]),
        _number("Shared memory committed (MiB):", committed_bytes / MIB),
    ]
    if count["rescued"]:
        lines.append(
            f"DEFECT: {count['rescued']} wake-ups were lost and found by a recheck; please report"
        )
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
        title=f"{engine.workers} worker(s), {engine.calls_per_step} call(s) per step, "
        f"{engine.describe_scheduling()}, {escape(config.device.describe())}; "
        f"{config.repeats} repeats, ± is half their range",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"hit: TPOT p50 within {100 * TPOT_MARGIN:g} %, CPU of each process within "
        f"{100 * CPU_MARGIN:g} points; that a smaller effect was foreseen it does not show",
        caption_justify="left",
        caption_style="",
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("", no_wrap=True)
    for label in (
        "TPOT p50\nms",
        "TPOT p99\nms",
        "TTFT idle\nms",
        "scheduler\ncores",
        "worker\ncores",
    ):
        table.add_column(label, justify="right")
    for name in validation.policy_names:
        columns = [
            (validation.compare(name, figure), unit)
            for figure, unit in (
                ("tpot_p50_ns", MS),
                ("tpot_p99_ns", MS),
                ("ttft_after_idle_p50_ns", MS),
                ("scheduler_cores", 1),
                ("worker_cores", 1),
            )
        ]
        predicted = (_number_or_none(c.simulated, u) for c, u in columns)
        table.add_row(escape(name), "predicted", *predicted)
        measured = (
            f"{_number_or_none(c.measured, u)} ±{_number_or_none(c.spread, u)}" for c, u in columns
        )
        table.add_row("", "measured", *measured)
        table.add_row(
            f"[green]{_HIT}[/]" if is_hit(validation, name) else f"[yellow]{_MISS}[/]",
            "error",
            *(_error(c, relative=u == MS) for c, u in columns),
            end_section=True,
        )
    return table


_HIT: Final = "hit"
_MISS: Final = "miss"


def _number_or_none(value: float, unit: int) -> str:
    return "none" if math.isnan(value) else f"{value / unit:.3f}"


def _error(comparison: Comparison, *, relative: bool) -> str:
    if math.isnan(comparison.measured) or math.isnan(comparison.simulated):
        return ""
    if relative:
        return f"{100 * comparison.relative_error:+.1f} %"
    return f"{100 * comparison.error:+.1f} pt"


def is_hit(validation: Validation, policy: str) -> bool:
    """Whether a prediction is within 5 % on TPOT and 5 points on the CPU of each process."""
    return abs(validation.compare(policy, "tpot_p50_ns").relative_error) <= TPOT_MARGIN and all(
        abs(validation.compare(policy, figure).error) <= CPU_MARGIN
        for figure in ("scheduler_cores", "worker_cores")
    )


def verdict(validation: Validation, winner: str, reference: str) -> str:
    """Say in plain words what a policy does on this box, measured and predicted."""
    n_waiters = 1 + validation.config.engine.workers
    worlds = ("simulated", "measured")
    tpot = {name: validation.compare(name, "tpot_p50_ns") for name in (winner, reference)}
    left, before = (validation.cores(name, "measured") for name in (winner, reference))
    saved = {w: validation.cores(reference, w) - validation.cores(winner, w) for w in worlds}
    added = {w: getattr(tpot[winner], w) / getattr(tpot[reference], w) - 1 for w in worlds}
    noise = max(token.spread / token.measured for token in tpot.values())
    change = added["measured"]
    words = f"adds {100 * change:.1f} % to" if change >= 0 else f"takes {-100 * change:.1f} % off"
    certainty = (
        f"; that is within the run-to-run noise of this box (±{100 * noise:.1f} %)"
        if abs(change) <= noise
        else f" (run-to-run noise ±{100 * noise:.1f} %)"
    )
    if validation.config.repeats == 1:
        certainty = " (one repeat: run-to-run noise unknown)"
    effect = (
        f"saves {saved['measured']:.2f} of the {before:.2f} cores that {reference} burns "
        f"({saved['measured'] / n_waiters:.2f} per waiter; {left:.2f} left)"
        if saved["measured"] >= 0
        else f"takes {-saved['measured']:.2f} cores more than the {before:.2f} of {reference}"
    )
    delay = validation.compare(winner, "scheduler_delay_p50_ns").measured / US
    beside = beside_the_margin(change, added["simulated"], noise, validation.config.repeats)
    return (
        f"On this box, with this workload: {winner} {effect} and {words} the time per output "
        f"token{certainty}. Predicted: {saved['simulated']:.2f} cores saved, "
        f"{100 * added['simulated']:+.1f} % TPOT. {beside}"
        f"{_about_the_cores(validation, (winner, reference), saved['measured'])}"
        f"The scheduler sees a reply {delay:.1f} µs after it was published (median). "
        f"{_at_the_price(validation, winner, reference)}"
    )


def _about_the_cores(validation: Validation, names: Sequence[str], saved: float) -> str:
    """Warn of cores that differ from run to run about as much as policies do; else nothing.

    A box that stands still for a while, as a virtual machine that is moved, takes the cores of a
    spinner out of one run of several: the mean of them says nothing then.
    """
    n_workers = validation.config.engine.workers
    noise = max(
        validation.compare(name, "scheduler_cores").spread
        + n_workers * validation.compare(name, "worker_cores").spread
        for name in names
    )
    if noise <= max(abs(saved) / 2, _FEW_CORES):
        return ""
    return (
        f"Cores differ by ±{noise:.2f} from run to run, so that this cannot be told from chance: "
        "run it again on a quiet box, with more repeats (run.repeats). "
    )


def beside_the_margin(change: float, foreseen: float, noise: float, n_repeats: int) -> str:
    """What a hit says about an effect on TPOT that is smaller than the margin; else nothing.

    Parameters
    ----------
    change, foreseen
        The effect, measured and predicted, as shares of the reference's TPOT.
    noise
        Half the range of repeats, as a share.
    n_repeats
        How many there are; a single one knows no noise.
    """
    if abs(change) > TPOT_MARGIN:
        return ""
    off = abs(foreseen - change)
    within = ", less than the noise" if off <= noise and n_repeats > 1 else ""
    return (
        f"The {100 * TPOT_MARGIN:g} % that count as a hit are more than this effect, so a hit does "
        "not show that it was foreseen; of the effect itself the prediction is "
        f"{100 * off:.1f} points off{within}. "
    )


def _at_the_price(validation: Validation, winner: str, reference: str) -> str:
    """What all that was measured costs at the config's price of delay, and who costs least.

    Cores, and the price times the share by which a token takes longer than with the reference: who
    reads only of the cores saved would take a policy that another one beats.
    """
    price = validation.config.delay_price
    tokens = {name: validation.compare(name, "tpot_p50_ns") for name in validation.policy_names}
    reference_ns = tokens[reference].measured
    costs = {
        name: validation.cores(name, "measured") + price * (token.measured / reference_ns - 1)
        for name, token in tokens.items()
    }
    best = min(costs, key=lambda name: costs[name])
    told = (
        f"Weighed at {price:g} cores for the whole critical path (run.delay_price), {winner} costs "
        f"{costs[winner]:.2f} cores and {reference} {costs[reference]:.2f}"
    )
    if best == winner:
        return f"{told}; nothing here costs less."
    noise = price * max(tokens[name].spread for name in (winner, best)) / reference_ns
    unsure = costs[winner] - costs[best] <= noise and validation.config.repeats > 1
    hint = f", which is within the noise of {noise:.2f}" if unsure else ""
    return f"{told}; least costs {best}, {costs[best]:.2f}{hint}."
