"""What is said about a live engine: where its cores go, and how its arms compare."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table

from realrun.vllm.ab import CONTROL_ARM, REFERENCE, ArmResult, Comparison, Plan
from realrun.vllm.control import Control
from realrun.vllm.importer import Share
from realrun.vllm.quiet import MARGIN, QUIET_CORES, starts_that_count
from shmsim.claims import Claim
from shmsim.console import diagnostics, wide

_MOST_WAITING: Final = 0.15
_MOST_RECORDING: Final = 0.01
_MESSAGES_PER_TOKEN: Final = 4  # two calls and two replies
_BESIDE_PER_TOKEN: Final = 1  # the second call is there already when its worker comes for it
_LEAST_CORES: Final = 0.005  # of a thread that is worth a row
_WIDTH: Final = 170  # a row of figures that is broken in two cannot be read


def shares_table(found: Sequence[Share]) -> Table:
    """Where the cores of each process go."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cores")
    for share in found:
        table.add_column(share.process, justify="right")
    rows = {
        "in all": "total",
        "waiting for calls": "ring_wait",
        "reading calls": "ring_read",
        "waiting for replies": "reply_wait",
        "reading replies": "reply_read",
        "waiting for a slot": "slot_wait",
        "writing": "write",
        "scheduling, or the call and its device": "work",
        "other threads": "others",
    }
    for label, field in rows.items():
        table.add_row(label, *(f"{getattr(share, field):.3f}" for share in found))
    return table


def comparison_table(compared: Comparison, results: Sequence[ArmResult]) -> Table:
    """Every arm against vLLM's own waiting; below it the starts that others disturbed."""
    processes = list(results[0].cores)
    plan, n_starts = compared.plan, results[0].tpot_ratio.n
    table = Table(
        title=f"{plan.cell}: {n_starts} starts, {results[0].n_blocks} generations of "
        f"{plan.tokens} tokens for each arm",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="Ratio: TPOT of the arm over vLLM's in the same start, with the 90 % interval over "
        f"starts; no slower: by {MARGIN:.0%} at most, or misses, or cannot tell. Waiting: CPU per "
        "token beyond what parking takes, of what vLLM's takes; nothing to save: parking does not "
        "take less for sure." + _disturbed(compared),
        caption_justify="left",
        caption_style="",
    )
    table.add_column("arm", no_wrap=True)
    for label in ("TPOT\nms", "ratio", "no slower", "first token\nafter idle, ms"):
        table.add_column(label, justify="right")
    for name in processes:
        table.add_column(f"{name}\ncores", justify="right")
    for label in ("waiting", "others'\ncores", "stalls"):
        table.add_column(label, justify="right")
    for result in results:
        ratio = result.tpot_ratio
        is_reference = result.arm == REFERENCE
        table.add_row(
            result.arm,
            f"{result.tpot_ms:.3f}",
            "1" if is_reference else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]",
            "" if is_reference else str(result.verdict),
            "" if math.isnan(result.ttft_idle_ms) else f"{result.ttft_idle_ms:.2f}",
            *(f"{result.cores[name]:.3f}" for name in processes),
            _waiting(result),
            f"{result.foreign_cores:.2f}",
            f"{result.stalls}",
        )
    return table


def _disturbed(compared: Comparison) -> str:
    """Which starts others disturbed, how, and whether they count."""
    if not compared.disturbed:
        return ""
    found = "; ".join(f"start {start + 1}: {why}" for start, why in compared.disturbed.items())
    counted = starts_that_count({block.start for block in compared.blocks}, compared.disturbed)
    if compared.disturbed.keys() <= set(counted):
        return f"\nDisturbed, and counted since fewer than two starts were quiet: {found}."
    return f"\nDisturbed, and left out: {found}."


def _waiting(result: ArmResult) -> str:
    if result.parking_saves_s is None:
        return ""
    if (ratio := result.wait_cpu_ratio) is None:
        return "nothing to save"
    if result.arm == REFERENCE:
        return "1"
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def threads_table(results: Sequence[ArmResult]) -> Table:
    """Cores of each thread in every arm."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"Threads that use less than {_LEAST_CORES:g} cores in every arm are left out; "
        "those of one name are one row.",
        caption_justify="left",
        caption_style="",
    )
    for label in ("process", "thread"):
        table.add_column(label, no_wrap=True)
    for result in results:
        table.add_column(f"{result.arm}\ncores", justify="right")
    known = {(p, name): None for r in results for p in r.threads for name in r.threads[p]}
    for process, name in known:
        cores = [result.threads.get(process, {}).get(name, 0.0) for result in results]
        if max(cores) >= _LEAST_CORES:
            table.add_row(process, name, *(f"{used:.3f}" for used in cores))
    return table


def print_comparison(compared: Comparison, results: Sequence[ArmResult]) -> None:
    """Print `comparison_table` and `threads_table`, however narrow the terminal."""
    wide(_WIDTH).print(comparison_table(compared, results))
    wide(_WIDTH).print(threads_table(results))
    print_others(result.foreign_cores for result in results)


def print_others(foreign_cores: Iterable[float]) -> None:
    """Say so if others used more of the machine meanwhile than a comparison bears.

    Parameters
    ----------
    foreign_cores
        Their mean cores during each part of it.
    """
    most = max(foreign_cores)
    if most > QUIET_CORES:
        diagnostics.print(
            f"[yellow]note:[/] others used up to {most:.2f} cores meanwhile, for which waiters and "
            "workers had to wait too; repeat on a quiet box",
            soft_wrap=True,
        )


def comparison_claims(plan: Plan, results: Sequence[ArmResult]) -> list[Claim]:
    """Claims about every arm but vLLM's own."""
    found = []
    for result in results:
        if result.arm == REFERENCE:
            continue
        cell = f"{plan.cell}-{result.arm.replace(' ', '_')}"
        ratio, n = result.tpot_ratio, result.tpot_ratio.n
        # Upper ends are what is claimed: an estimate below the bound would prove nothing.
        found.append(
            Claim(
                f"vllm/tpot_ratio/{cell}",
                ratio.high,
                ratio.low,
                ratio.high,
                "ratio",
                1 + MARGIN,
                "<=",
                n,
                0,
            )
        )
        if result.arm == CONTROL_ARM:
            continue
        if (waiting := result.wait_cpu_ratio) is not None:
            numbers = waiting.high, waiting.low, waiting.high
            name = f"vllm/wait_cpu_ratio/{cell}"
            found.append(Claim(name, *numbers, "ratio", _MOST_WAITING, "<=", n, 0))
        stalls = float(result.stalls)
        found.append(Claim(f"vllm/stalls/{cell}", stalls, stalls, stalls, "count", 0.0, "<=", n, 0))
    same, n_arms = float(sum(result.says_the_same for result in results)), float(len(results))
    n_blocks = sum(result.n_blocks for result in results)
    name = f"vllm/tokens_identical/{plan.cell}"
    found.append(Claim(name, same, same, same, "count", n_arms, ">=", n_blocks, 0))
    return found


def recorder_claim(plan: Plan, results: Sequence[ArmResult], took: dict[str, float]) -> Claim:
    """What recording adds to a token.

    The ways of its messages count one after the other. What is done off them falls into the time
    that others work, but once: the second call is there already when its worker comes for it.

    Parameters
    ----------
    took
        CPU time of a message as `realrun.vllm.overhead` found it, ns.
    """
    (reference,) = (result for result in results if result.arm == REFERENCE)
    on_way_ns, beside_ns = _added(took, "recorded")
    added_ns = _MESSAGES_PER_TOKEN * on_way_ns + _BESIDE_PER_TOKEN * beside_ns
    share = added_ns / (1e6 * reference.tpot_ms)
    name = f"vllm/recorder_overhead/{plan.cell}"
    return Claim(
        name, share, share, share, "ratio", _MOST_RECORDING, "<=", reference.tpot_ratio.n, 0
    )


def _added(took: dict[str, float], what: str) -> tuple[float, float]:
    """What is added to a message on its way, and beside it, ns."""
    return took[what] - took["plain"], took[f"{what}_beside"] - took["plain_beside"]


def recorder_sentence(plan: Plan, results: Sequence[ArmResult], took: dict[str, float]) -> str:
    """`recorder_claim` in words."""
    claim = recorder_claim(plan, results, took)
    on_way_ns, beside_ns = _added(took, "recorded")
    switchable_ns, _ = _added(took, "switchable")
    return (
        f"recording alone: {on_way_ns / 1e3:.1f} µs on the way of a message, written and read, and "
        f"{beside_ns / 1e3:.1f} µs beside it; a token, {_MESSAGES_PER_TOKEN} messages one after "
        f"the other, takes {claim.value:.1%} more. Policies that are there and not in force: "
        f"{switchable_ns / 1e3:.1f} µs on the way of a message"
    )


def counters_table(control: Control) -> Table:
    """What each process has counted since it started."""
    lines = control.read()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("counted")
    for line in lines:
        table.add_column(
            f"{'worker' + str(line.rank) if line.is_worker else 'scheduler'}\n{line.pid}",
            justify="right",
        )
    for name in (
        "waits",
        "at_once",
        "vllm_waits",
        "slot_waits",
        "sent",
        "rung",
        "pinged",
        "spurious",
        "rescued",
        "overtaken",
    ):
        table.add_row(name.replace("_", " "), *(str(getattr(line, name)) for line in lines))
    return table
