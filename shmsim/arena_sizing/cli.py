"""The command ``shmsim arena``; what is slow to load is loaded when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.table import Table

from shmsim.arena_sizing.retention import HOLDS, CopyTime, Retention, retention_of
from shmsim.arena_sizing.workloads import WORKLOADS, named_workload
from shmsim.console import (
    Bar,
    complete_profile,
    console,
    load_or_default,
    load_profile,
    print_uncut,
)
from shmsim.program import Output
from shmsim.routing import MIB, VLLM_ARENA, ArenaPlan
from shmsim.units import format_ns

if TYPE_CHECKING:
    from shmsim.arena_sizing.payloads import Payloads
    from shmsim.arena_sizing.replay import Usage
    from shmsim.arena_sizing.search import Sizing
    from shmsim.config import RunConfig
    from shmsim.profile import MachineProfile
    from shmsim.records import StepRow

_SHOWN_AFTER: Final = (10, 100, 1_000, 10_000, 100_000)

_TIED: Final = "\u00a0"  # a space at which no line is broken

HELP: Final = f"""How many slots of which sizes does the arena need?

\b
shmsim arena --workload one-image --rate 5 -p h200
shmsim arena CONFIG.toml --workload photos --hold prefilled --probability 1e-4
shmsim arena CONFIG.toml
shmsim arena --payloads sizes.csv -p h200
shmsim arena CONFIG.toml --records runs/mine/spin

Without a workload, payloads or records it takes the steps of the config, as the model runs them.

It finds the least memory with which payloads rarely find no slot, and judges vLLM's arena \
(8 x 256 MiB from 8 MiB on) and two ways to grow a buffer by the same payloads. The config \
gives the device, the workers and the tokens of a step; the profile the time of a copy to the \
device.

Workloads: {", ".join(f"{name} ({w.what})" for name, w in WORKLOADS.items())}.

sizes.csv has the columns arrival_ns and bytes, and may have hold_ns, how long a slot is in use.

docs/arena.md says what was found and where sizes come from.
"""


def arena_command(
    config_path: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="Engine, device, payload.")
    ] = None,
    profile_path: Annotated[
        Path,
        typer.Option(
            "--profile",
            "-p",
            help="With copies to a device, as h200.",
            autocompletion=complete_profile,
        ),
    ] = Path("h200"),
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            help=f"One of {', '.join(WORKLOADS)}.",
            autocompletion=lambda: list(WORKLOADS),
        ),
    ] = "",
    rate: Annotated[
        float, typer.Option("--rate", min=0, help="Requests each second; 0: the workload's own.")
    ] = 0.0,
    payload_path: Annotated[
        Path | None, typer.Option("--payloads", help="A CSV file of payloads.")
    ] = None,
    records_path: Annotated[
        Path | None, typer.Option("--records", help="Folder with the records of a run.")
    ] = None,
    hold: Annotated[
        str,
        typer.Option(
            "--hold",
            help=f"Until when a slot is in use: {', '.join(HOLDS)}.",
            autocompletion=lambda: list(HOLDS),
        ),
    ] = HOLDS[0],
    probability: Annotated[
        float, typer.Option("--probability", help="Share of payloads that may find no slot.")
    ] = 1e-3,
    divert_mib: Annotated[
        list[float],
        typer.Option(
            "--divert", help="MiB from which payloads go through the arena; repeat it to compare."
        ),
    ] = [8.0],  # noqa: B006 - typer reads the default
    classes: Annotated[
        int, typer.Option("--classes", min=1, max=4, help="Sizes of slots, at most.")
    ] = 2,
    count: Annotated[
        int, typer.Option("--count", min=100, help="Payloads of a named workload.")
    ] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="Of a named workload.")] = 1,
) -> Output:
    """Find slots and sizes of an arena."""
    from shmsim.arena_sizing.draw import draw_payloads
    from shmsim.arena_sizing.replay import replay
    from shmsim.arena_sizing.search import smallest_arena
    from shmsim.records import RunRecords

    given = [bool(workload), payload_path is not None, records_path is not None]
    if sum(given) > 1:
        raise ValueError("give one of --workload, --payloads and --records")
    config = load_or_default(config_path)
    profile = load_profile(profile_path)
    thresholds = [round(mib * MIB) for mib in divert_mib]
    if min(thresholds) < 1:
        raise ValueError(f"--divert must be at least a byte, got {min(divert_mib)} MiB")
    divert_bytes = thresholds[0]
    if payload_path is not None:
        payloads = _from_file(payload_path, config, profile, hold)
    elif workload:
        payloads = draw_payloads(
            named_workload(workload),
            count,
            rate,
            CopyTime.of(profile, _memory(config)),
            _retention(config, hold),
            seed,
        )
    else:
        steps = RunRecords.read(records_path).steps if records_path else None
        payloads = _from_steps(steps, config, profile)
    console.print(_what(payloads, divert_bytes))
    with Bar() as bar:
        tried = 0

        def note(plan: ArenaPlan) -> None:
            nonlocal tried
            tried += 1
            bar.show(f"trying {plan_text(plan)}", 1 - 1 / (1 + tried / 10))

        each = [smallest_arena(payloads, probability, t, classes, note) for t in thresholds]
    found = each[0]
    plans = [("vLLM", VLLM_ARENA, replay(VLLM_ARENA, payloads))]
    if config.payload.arena:
        own = config.payload.plan
        plans.append(("config", own, replay(own, payloads)))
    plans.append(("smallest", found.plan, found.usage))
    print_uncut(arena_table(plans))
    for line in remarks(plans, payloads, config.engine.workers):
        console.print(line, markup=False)
    if len(each) > 1:
        print_uncut(threshold_table(each, config.engine.workers))
    offered = payloads.of_at_least(divert_bytes)
    if offered.n:
        print_uncut(growth_table(offered))
    console.print(config_text(found.plan), markup=False)
    return Output(
        {
            "payloads": {"n": payloads.n, "offered": offered.n, "span_ns": payloads.span_ns},
            "plans": {name: {"plan": plan, "usage": usage} for name, plan, usage in plans},
            "thresholds": [{"plan": sizing.plan, "usage": sizing.usage} for sizing in each],
        }
    )


def _memory(config: "RunConfig") -> str:
    return "pageable" if config.payload.memory == "pageable" else "registered"


def _retention(config: "RunConfig", hold: str) -> Retention:
    engine = config.engine
    return retention_of(
        hold,
        config.device.step_time,
        engine.max_batched_tokens,
        max(engine.max_sequences // 2, 1),
    )


def _from_file(path: Path, config: "RunConfig", profile: "MachineProfile", hold: str) -> "Payloads":
    """Payloads of a file; hold times that it lacks are those of a prompt of one step."""
    import numpy as np

    from shmsim.arena_sizing.payloads import payloads_of, read_payloads

    table = read_payloads(path)
    if table.hold_ns is not None:
        return payloads_of(*table[:2], table.hold_ns)
    retention, copy = _retention(config, hold), CopyTime.of(profile, _memory(config))
    tokens = config.engine.max_batched_tokens
    held = [
        retention.hold_ns(copy.ns(n), tokens, config.workload.output_p50)
        for n in table.n_bytes.tolist()
    ]
    return payloads_of(*table[:2], np.array(held, dtype=np.int64))


def _from_steps(
    steps: "list[StepRow] | None", config: "RunConfig", profile: "MachineProfile"
) -> "Payloads":
    """Payloads of a run; without one, of what the model makes of the config."""
    from shmsim.arena_sizing.steps import payloads_of_steps
    from shmsim.sim.run import simulate

    payload = config.payload
    if not payload.carries_bulk:
        raise ValueError(
            "nothing is handed over: give --workload or --payloads, or a config whose [payload] "
            "has bytes_per_prefill_token or bytes_per_step"
        )
    if steps is None:
        steps = simulate(config, config.policies[0].policy, profile).steps
    copy = CopyTime.of(profile, payload.memory) if payload.holds_slots else None
    return payloads_of_steps(steps, payload, copy)


def _what(payloads: "Payloads", divert_bytes: int) -> str:
    """Say what is to be handed over."""
    import numpy as np

    offered = payloads.of_at_least(divert_bytes)
    text = (
        f"{payloads.n} payloads in {format_ns(payloads.span_ns)}, {offered.n} of them of at least "
        f"{divert_bytes / MIB:g} MiB"
    )
    if not offered.n:
        return text + ": no arena is needed"
    p50, p99 = np.quantile(offered.n_bytes, (0.5, 0.99)) / MIB
    mean_ns = float(offered.hold_ns.mean())
    load = float(offered.hold_ns.sum()) / offered.span_ns
    return (
        f"{text}: {p50:.3g} MiB (median), {p99:.4g} (p99), {offered.n_bytes.max() / MIB:.4g} at "
        f"most; held for {format_ns(mean_ns)} in the mean, {load:.3g} at a time"
    )


def plan_text(plan: ArenaPlan) -> str:
    """Write a plan in a few words."""
    return (
        " + ".join(f"{n_slots} x {slot_bytes / MIB:g} MiB" for slot_bytes, n_slots in plan.classes)
        or "no arena"
    )


def arena_table(plans: list[tuple[str, ArenaPlan, "Usage"]]) -> Table:
    """Draw what arenas do with payloads."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arena")
    for label in (
        "reserved\nMiB",
        "touched\nMiB",
        "find no\nslot %",
        "95 %\ninterval",
        "too large\n%",
        "in use\nat most",
    ):
        table.add_column(label, justify="right")
    for name, plan, usage in plans:
        found = usage.fallback
        table.add_row(
            f"{name}\n{plan_text(plan).replace(' + ', chr(10)).replace(' ', _TIED)}",
            f"{usage.reserved_bytes / MIB:.0f}",
            f"{usage.touched_bytes / MIB:.0f}",
            f"{100 * found.value:.2g}",
            f"{100 * found.low:.2g} to {100 * found.high:.2g}",
            f"{100 * usage.n_too_large / max(usage.n_diverted, 1):.2g}",
            str(usage.n_most_held),
        )
    return table


def remarks(
    plans: list[tuple[str, ArenaPlan, "Usage"]], payloads: "Payloads", n_readers: int
) -> list[str]:
    """What Erlang's formula says, and what is copied."""
    from shmsim.arena_sizing.copies import copies_of
    from shmsim.arena_sizing.search import erlang_of

    lines = [
        "find no slot by Erlang's formula, each size by itself: "
        + ", ".join(f"{name} {100 * erlang_of(plan, payloads):.2g} %" for name, plan, _ in plans)
    ]
    per_payload = MIB * max(payloads.n, 1)
    for name, _, usage in plans:
        copies = copies_of(usage, n_readers, by_socket=True)
        lines.append(
            f"MiB copied a payload, with readers: {n_readers}: {name} "
            f"{copies.with_arena / per_payload:.3g}; by socket alone "
            f"{copies.without / per_payload:.3g}"
        )
        if usage.fallback.caveat:
            lines.append(f"{name}: {usage.fallback.caveat}")
    return lines


def threshold_table(each: list["Sizing"], n_readers: int) -> Table:
    """Draw the smallest arenas for several sizes from which payloads go there."""
    from shmsim.arena_sizing.copies import copies_of

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("smallest arena")
    for label in (
        "from\nMiB",
        "of all\npayloads %",
        "reserved\nMiB",
        "95 %\ninterval",
        "MiB copied\nelse by socket",
        "\nelse in line",
    ):
        table.add_column(label, justify="right")
    for sizing in each:
        usage = sizing.usage
        by_socket, in_line = (
            copies_of(usage, n_readers, by_socket=by_socket).with_arena / (MIB * usage.n)
            for by_socket in (True, False)
        )
        table.add_row(
            plan_text(sizing.plan).replace(" + ", chr(10)).replace(" ", _TIED),
            f"{sizing.plan.divert_bytes / MIB:g}",
            f"{100 * usage.n_diverted / usage.n:.0f}",
            f"{usage.reserved_bytes / MIB:.0f}",
            f"{100 * usage.fallback.low:.2g} to {100 * usage.fallback.high:.2g}",
            f"{by_socket:.3g}",
            f"{in_line:.3g}",
        )
    return table


def growth_table(offered: "Payloads") -> Table:
    """Draw what buffers that grow keep resident while payloads come."""
    from shmsim.arena_sizing.growth import GROWTHS

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("one buffer that grows")
    after = [n for n in _SHOWN_AFTER if n <= offered.n]
    for n in after:
        table.add_column(f"MiB after\n{n}", justify="right")
    table.add_column("peak\nMiB", justify="right")
    table.add_column("times\ngrown", justify="right")
    for name, grow in GROWTHS.items():
        growth = grow(offered.n_bytes)
        table.add_row(
            name,
            *(f"{growth.resident_bytes[n - 1] / MIB:.0f}" for n in after),
            f"{growth.peak_bytes / MIB:.0f}",
            str(growth.n_grown),
        )
    return table


def config_text(plan: ArenaPlan) -> str:
    """Write a plan as keys of a config."""
    rows = [f"    {{ slot_bytes = {size}, slots = {count} }},\n" for size, count in plan.classes]
    slots = f"[\n{''.join(rows)}]" if rows else "[]"
    return f"[payload]\ndivert_bytes = {plan.divert_bytes}\narena = {slots}"
