"""The ``shmsim`` command: the model, on any laptop, from a profile and a workload."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from shmsim.claims import read_claims
from shmsim.config import NamedPolicy
from shmsim.console import (
    FAILURE,
    Bar,
    ConfigArgument,
    ProfileOption,
    console,
    errors_explained,
    load_or_default,
    load_policies,
)
from shmsim.inputs.shipped import shipped_names
from shmsim.metrics import Summary, summarize
from shmsim.policies import POLICIES, PRESETS
from shmsim.policy_file import write_policy
from shmsim.profile import COSTS, MachineProfile
from shmsim.provenance import MARKS
from shmsim.records import RunRecords
from shmsim.sim.run import simulate, tune
from shmsim.timeline import window_of_steps, write_timeline
from shmsim.units import MS, format_ns
from shmsim.wait import WaitPolicy

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Predict how the processes of an LLM engine should wait for each other.\n\n"
    "Costs come from a profile that 'realrun calibrate' measured; nothing runs for real here.",
)

PolicyOption = Annotated[
    list[str],
    typer.Option(
        "--policy",
        help="A preset, KIND:key=value,..., or a policy file; repeatable. "
        "Without it, those of the config.",
    ),
]


@app.command("policies")
def list_policies() -> None:
    """List the policies, what each does and its parameters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for label in ("kind", "parameters", "what it does"):
        table.add_column(label)
    for name, policy_type in POLICIES.items():
        parameters = ", ".join(
            f"{field.removesuffix('_ns')}={_show(field, value)}"
            for field, value in policy_type()._asdict().items()  # type: ignore[attr-defined]
            if field != "mean_wait_ns"
        )
        table.add_row(name, parameters or "none", (policy_type.__doc__ or "").splitlines()[0])
    console.print(table)
    console.print("presets: " + ", ".join(PRESETS))
    console.print("example: --policy WakeAhead:guard=80us,smoothing=0.1")


@app.command("simulate")
def simulate_command(
    config_path: ConfigArgument = None,
    profile_path: ProfileOption = Path("profile.json"),
    policy: PolicyOption = [],  # noqa: B006 - typer reads the default
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the records (Parquet).")
    ] = None,
) -> None:
    """Predict what each policy does to TPOT, TTFT and CPU.

    Example: shmsim simulate -p profile.json --policy spin --policy park
    """
    with errors_explained():
        config = load_or_default(config_path)
        profile = MachineProfile.read(profile_path)
        policies = load_policies(policy) if policy else config.policies
        summaries: list[tuple[str, Summary]] = []
        with Bar() as bar:
            for index, named in enumerate(policies):
                bar.show(f"model: {named.name}", index / len(policies))
                records = simulate(config, named.policy, profile)
                summaries.append((named.name, summarize(records)))
                if out is not None:
                    records.write(out / named.name.replace("/", "_"))
        console.print(summary_table(summaries))
        if out is not None:
            console.print(f"records: {out}")


@app.command("tune")
def tune_command(
    config_path: ConfigArgument = None,
    profile_path: ProfileOption = Path("profile.json"),
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the chosen policy is written.")
    ] = Path("policy.json"),
) -> None:
    """Choose the guard of WakeAhead, or a spin window, in the model.

    The price of a wait is cores + delay_price x (added TPOT / TPOT of busy spin); the lowest wins.
    """
    with errors_explained():
        config = load_or_default(config_path)
        profile = MachineProfile.read(profile_path)
        with Bar() as bar:
            tuner, summaries, reference = tune(
                config,
                profile,
                PRESETS["spin"],
                lambda done, total: bar.show(f"trial {done} of {total}", done / total),
            )
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("policy")
        for label in (
            "price\ncores",
            "TPOT mean\nms",
            "against\nspin",
            "scheduler\ncores",
            "worker\ncores",
        ):
            table.add_column(label, justify="right")
        best = tuner.best()
        for trial, summary in sorted(
            zip(tuner.trials, summaries, strict=True), key=lambda pair: pair[0].cost
        ):
            table.add_row(
                ("→ " if trial is best else "  ") + describe(trial.policy).replace(" ", "\u00a0"),
                f"{trial.cost:.3f}",
                f"{summary.tpot.mean / MS:.3f}",
                f"{100 * (summary.tpot.mean / reference.tpot.mean - 1):+.2f} %",
                f"{summary.scheduler_cores:.3f}",
                f"{summary.worker_cores:.3f}",
            )
        console.print(table)
        found = {
            "price_cores": best.cost,
            "delay_price": config.delay_price,
            "trials": len(tuner.trials),
            "seed": config.seed,
            "profile_measured_at": profile.measured_at,
        }
        write_policy(out, NamedPolicy("tuned", best.policy), found)
        console.print(f"chosen: {describe(best.policy)}, written to {out}")


@app.command("profile")
def show_profile(
    profile_path: Annotated[
        Path,
        typer.Argument(
            metavar="PROFILE", help="A file, or one that comes with the package; see --list."
        ),
    ] = Path("profile.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Medians as JSON.")] = False,
    list_shipped: Annotated[
        bool, typer.Option("--list", help="List the profiles that come with the package.")
    ] = False,
) -> None:
    """Print the costs of a profile: medians with 95 % intervals and tails, and their sources."""
    with errors_explained():
        if list_shipped:
            for name in shipped_names():
                console.print(f"{name}: {provenance(MachineProfile.shipped(name))}")
            return
        profile = MachineProfile.read(profile_path)
        if as_json:
            medians = {
                name: {f"{x:g}": point.median for x, point in zip(c.xs, c.points, strict=True)}
                for name, c in profile.costs.items()
            }
            print(json.dumps(medians, indent=1))  # noqa: T201 - for a machine, so not by rich
        else:
            console.print(profile_table(profile))
            for source in dict.fromkeys(profile.sources.values()):
                costs = [name for name, given in profile.sources.items() if given == source]
                console.print(f"{source.mark}: {', '.join(costs)}: {source.text}", markup=False)


def provenance(profile: MachineProfile) -> str:
    """Say which machine a profile stands for, and how many of its costs were measured there."""
    marks = [profile.source_of(name).mark for name in COSTS]
    counts = ", ".join(f"{marks.count(mark)} {mark}" for mark in MARKS)
    return f"{profile.machine.get('cpu')}; of {len(marks)} costs {counts}"


@app.command("claims")
def claims_command(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of claims.")],
) -> None:
    """Print claims as one table; exit with 1 if one does not hold."""
    with errors_explained():
        claims = [claim for path in paths for claim in read_claims(path)]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("claim", overflow="fold")
        for label in ("value", "low to high", "bound", "n", ""):
            table.add_column(label, justify="right")
        for claim in claims:
            table.add_row(
                claim.id,
                f"{claim.value:.4g} {claim.unit}",
                f"{claim.low:.4g} to {claim.high:.4g}",
                f"{claim.direction} {claim.bound:g}",
                str(claim.n),
                "holds" if claim.holds else "[red]fails[/]",
            )
        console.print(table)
        if not all(claim.holds for claim in claims):
            raise typer.Exit(FAILURE)


@app.command("timeline")
def timeline_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Folder with records.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write; NAME.json.gz is compressed.")
    ] = Path("trace.json"),
    steps: Annotated[
        str, typer.Option("--steps", help="FIRST:LAST, as a slice of Python; all by default.")
    ] = ":",
) -> None:
    """Write the timeline of a run for ui.perfetto.dev or chrome://tracing.

    Example: shmsim timeline runs/mine/spin -o trace.json.gz --steps 100:200
    """
    with errors_explained():
        records = RunRecords.read(folder)
        window = None if steps == ":" else window_of_steps(records, steps)
        n_events = write_timeline(records, out, window)
        console.print(f"{n_events} events in {out}; open it with https://ui.perfetto.dev")


def profile_table(profile: MachineProfile) -> Table:
    """Draw every cost of a profile."""
    machine = profile.machine
    table = Table(
        title=f"{machine.get('cpu')}, {machine.get('cores')} cores, kernel "
        f"{machine.get('kernel', 'unknown')}, as of {profile.measured_at}",
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("cost")
    table.add_column("at", justify="right")
    for label in ("n", "median", "95 % interval", "p90", "p99", "replicates' medians"):
        table.add_column(label, justify="right")
    for name, curve in profile.costs.items():
        for x, point in zip(curve.xs, curve.points, strict=True):
            at = format_ns(x) if curve.by == "asleep_ns" else f"{x:g} {curve.by}"
            spread = f"{format_ns(min(point.replicates))} to {format_ns(max(point.replicates))}"
            table.add_row(
                name,
                at if curve.by else "",
                str(point.n) if point.n else "unknown",
                format_ns(point.median),
                f"{format_ns(point.low)} to {format_ns(point.high)}",
                format_ns(point.at(0.9)),
                format_ns(point.at(0.99)),
                spread,
            )
    return table


def summary_table(summaries: list[tuple[str, Summary]]) -> Table:
    """Draw the figures of several runs of one workload."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    for label in (
        "TPOT p50 ms", "p99", "ITL p99 ms", "TTFT p50 ms", "after idle", "tok/s", "scheduler cores",
        "each worker",
    ):  # fmt: skip
        table.add_column(label, justify="right")
    for name, s in summaries:
        table.add_row(
            name,
            f"{s.tpot.p50 / MS:.3f}",
            f"{s.tpot.p99 / MS:.3f}",
            f"{s.itl.p99 / MS:.3f}",
            f"{s.ttft.p50 / MS:.2f}",
            f"{s.ttft_after_idle.p50 / MS:.2f}" if s.ttft_after_idle.n else "none",
            f"{s.output_tokens_per_s:.0f}",
            f"{s.scheduler_cores:.3f}",
            f"{s.worker_cores:.3f}",
        )
    return table


def describe(policy: WaitPolicy) -> str:
    """Write a policy with its first parameter and those that are not as usual."""
    fields: dict[str, float] = policy._asdict()  # type: ignore[attr-defined]
    usual: dict[str, float] = type(policy)()._asdict()  # type: ignore[attr-defined]
    shown = ", ".join(
        f"{name.removesuffix('_ns')} {_show(name, value)}"
        for index, (name, value) in enumerate(fields.items())
        if index == 0 or value != usual[name]
    )
    return f"{type(policy).__name__} {shown}".rstrip()


def _show(field: str, value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not field.endswith("_ns"):
        return f"{value:g}"
    return format_ns(value) if value >= 0 else "B"


if __name__ == "__main__":
    app()
