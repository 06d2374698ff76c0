"""The ``shmsim`` command: the model, on any laptop, from a profile and a workload.

A command loads what it runs on when it runs: scipy, Arrow, numba and matplotlib take a second
together, and neither ``--help`` nor TAB needs one of them.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from shmsim.arena_sizing import cli as arena_cli
from shmsim.claims import read_claims
from shmsim.console import (
    Bar,
    ConfigArgument,
    ProfileOption,
    complete_policy,
    complete_profile,
    console,
    load_or_default,
    load_policies,
    load_profile,
    print_uncut,
)
from shmsim.export import cli as export_cli
from shmsim.policies import POLICIES, PRESETS, SOURCES
from shmsim.policies.parameters import parameters_of
from shmsim.program import Output, Program, Written
from shmsim.provenance import MARKS
from shmsim.tuner import parse_goal
from shmsim.units import format_ns
from shmsim.wait import WaitPolicy

if TYPE_CHECKING:
    from shmsim.profile import MachineProfile
    from shmsim.sim.cluster import Cluster
    from shmsim.stats.estimate import Estimate
    from shmsim.stats.warmup import WarmUp

app = Program(
    "Predict how the processes of an LLM engine should wait for each other.\n\n"
    "Costs come from a profile that 'realrun calibrate' measured; nothing runs for real here; "
    "that is what 'realrun' is for.",
)

JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", min=0, help="Processes; 0: one for each core.")
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Run on the workers of a Dask scheduler instead: its address, as tcp://node1:8786, or "
        "the file of its --scheduler-file. Results are kept here. See docs/sweep.md.",
    ),
]
PolicyOption = Annotated[
    list[str],
    typer.Option(
        "--policy",
        help="A preset, KIND:key=value,..., or a policy file; repeatable. "
        "Without it, those of the config.",
        autocompletion=complete_policy,
    ),
]


@app.subcommand("policies")
def list_policies() -> Output:
    """List the policies, what each does and its parameters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kind", no_wrap=True)
    for label in ("parameters", "what it does", "source"):
        table.add_column(label, overflow="fold")
    for name, policy_type in POLICIES.items():
        parameters = ", ".join(
            f"{field.removesuffix('_ns')}={_show(field, value)}"
            for field, value in parameters_of(policy_type()).items()
        )
        table.add_row(name, parameters or "none", _does(policy_type), SOURCES[name])
    console.print(table)
    console.print("presets: " + ", ".join(PRESETS))
    console.print("example: --policy WakeAhead:guard=80us,smoothing=0.1")
    kinds = {
        name: {
            "does": _does(policy_type),
            "source": SOURCES[name],
            "parameters": as_data(policy_type()),
        }
        for name, policy_type in POLICIES.items()
    }
    presets = {name: as_data(policy) for name, policy in PRESETS.items()}
    return Output({"kinds": kinds, "presets": presets})


def _does(policy_type: type[WaitPolicy]) -> str:
    """What a kind of policy does, without the marks that only the documentation shows as such."""
    return re.sub(r"[`*]", "", (policy_type.__doc__ or "").splitlines()[0])


@app.subcommand("simulate")
def simulate_command(
    config_path: ConfigArgument = None,
    profile_path: ProfileOption = Path("profile.json"),
    policy: PolicyOption = [],  # noqa: B006 - typer reads the default
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the records (Parquet) of replication 0."),
        Written.FOLDER,
    ] = None,
    replications: Annotated[
        int,
        typer.Option(
            "--replications", "-r", min=1, help="Runs of each policy, all on the same tapes."
        ),
    ] = 5,
    cores: Annotated[
        bool,
        typer.Option(
            "--cores",
            help="With --out: record too who was on which core, for 'shmsim timeline'. Replication "
            "0 then runs in the SimPy engine, which is slow; the figures are the same.",
        ),
    ] = False,
) -> Output:
    """Predict what each policy does to TPOT, TTFT and CPU, with 95 % intervals.

    Example: shmsim simulate -p profile.json --policy spin --policy park
    """
    from shmsim.figures import summarize_with_intervals, warm_ups
    from shmsim.run_costs import notes_on_costs
    from shmsim.sim.engine import simulate_with
    from shmsim.sim.run import has_cores, simulate
    from shmsim.sim.sweep import engine_that_pays, steps_of

    config = load_or_default(config_path)
    if cores and out is None:
        raise ValueError("--cores is about what is recorded; name a folder for it with --out")
    if cores and not has_cores(config.cores):
        raise ValueError("--cores records cores that threads share; set cores.n in the config")
    profile = load_profile(profile_path)
    policies = load_policies(policy) if policy else config.policies
    found: dict[str, dict[str, Estimate]] = {}
    cuts: dict[str, dict[str, WarmUp]] = {}
    with Bar() as bar:
        for index, named in enumerate(policies):
            n_steps = replications * steps_of(config)
            engine = engine_that_pays(config, profile, named.policy, n_steps)
            if engine == "recurrence":
                engine = "auto"  # the same, and goes on where it leaves a policy undecided
            runs = []
            for i in range(replications):
                share = (index + i / replications) / len(policies)
                bar.show(f"model: {named.name}, replication {i}", share)
                if cores and i == 0:  # the compiled engines do not note who was where
                    runs.append(simulate(config, named.policy, profile, traces=True))
                else:
                    runs.append(simulate_with(config, named.policy, profile, i, engine))
            found[named.name] = summarize_with_intervals(runs, seed=config.seed)
            if replications == 1:
                cuts[named.name] = warm_ups(runs[0])
            if out is not None:
                runs[0].write(out / named.name.replace("/", "_"))
    print_uncut(figures_table(found))
    console.print(
        f"estimate and half-width: 95 % intervals, {_resting_on(replications)} of seed "
        f"{config.seed}, the same tape{'s' if replications > 1 else ''} for every policy"
    )
    for note in (*table_notes(found), *warm_up_notes(cuts), *notes_on_costs(config, profile)):
        console.print(note, markup=False)
    if out is not None:
        of_cores = ", with who was on which core, by the SimPy engine" if cores else ""
        console.print(f"records: {out}{of_cores}", markup=False, soft_wrap=True)
    return Output(
        {
            "policies": found,
            "replications": replications,
            "seed": config.seed,
            "records": out,
            **({"warm_up": cuts} if cuts else {}),
        }
    )


def _resting_on(replications: int) -> str:
    """What the intervals of a table rest on."""
    if replications > 1:
        return f"n = {replications} replications"
    return "from batches and sections of one run"


@app.subcommand("tune")
def tune_command(
    config_path: ConfigArgument = None,
    profile_path: ProfileOption = Path("profile.json"),
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Where the policy is written; a picture beside it."),
        Written.FILE,
    ] = Path("policy.json"),
    goal_text: Annotated[
        str,
        typer.Option(
            "--goal",
            help="Limits against the default, then what is to be least: cpu, memory, tpot-p50, "
            "..., or 'price R', which is cores + R x (TPOT / TPOT of the default - 1). Without it "
            "the price of the config's run.delay_price, as 'realrun demo' and every verdict.",
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Short list, few tapes: 20 s instead of minutes.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--runs", help="Folder that keeps every run; a second call goes on there."),
        Written.FOLDER,
    ] = None,
    jobs: JobsOption = 0,
    cluster: ClusterOption = "",
) -> Output:
    """Choose a policy in the model, its parameters, and for bulk its routes and arena.

    The first policy of the config is the default: it is kept unless another is surely better.
    """
    from shmsim.config import NamedPolicy
    from shmsim.policy_file import write_policy
    from shmsim.run_costs import notes_on_costs
    from shmsim.sim.tune import FULL, QUICK, tune
    from shmsim.sim.tune_picture import write_picture
    from shmsim.sim.tune_report import finalists_table, found_of, notes

    config = load_or_default(config_path)
    profile = load_profile(profile_path)
    goal = parse_goal(goal_text or f"price {config.delay_price:g}")
    budget = QUICK if quick else FULL
    with Bar() as bar, _workers(cluster, jobs, bar) as workers:
        tuned = tune(
            config,
            profile,
            goal,
            folder,
            budget=budget,
            jobs=jobs,
            cluster=workers,
            progress=bar.show,
        )
    print_uncut(finalists_table(tuned))
    for note in (*notes(tuned, budget), *notes_on_costs(config, profile)):
        console.print(note, markup=False)
    if not goal_text:
        console.print(
            f"that price is the config's run.delay_price; limits instead: --goal '{_LIMITS}'",
            markup=False,
        )
    chosen = tuned.chosen
    found = found_of(tuned, profile)
    write_policy(out, NamedPolicy("tuned", chosen.policy), found)
    picture = out.with_suffix(".svg")
    write_picture(picture, tuned)
    console.print(
        f"chosen: {chosen.name}, written to {out}; picture: {picture}", markup=False, soft_wrap=True
    )
    policy = {"name": chosen.name, **as_data(chosen.policy)}
    return Output({"chosen": policy, "policy_file": out, "picture": picture, "found": found})


def _workers(cluster: str, jobs: int, bar: Bar) -> AbstractContextManager["Cluster | None"]:
    """Connect to a cluster if one is named."""
    if cluster and jobs:
        raise ValueError(
            f"--jobs {jobs} says how many processes run here, and with --cluster none does; give "
            "one of the two"
        )
    if not cluster:
        return nullcontext()
    from shmsim.sim.cluster import Cluster

    bar.show(f"waiting for workers of {cluster}", 0.0)
    return Cluster(cluster)


_LIMITS: Final = "tpot-p99 <= +1%, ttft-idle <= +1ms, then cpu"
_SWEEP_HELP: Final = """Run policies x workloads x profiles on common tapes; tables with intervals.

SWEEP.toml names profiles and policies, and what varies in the config:

\b
  profiles = ["vm-2cpu", "profile.json"]
  configs = ["base.toml"]         # what the rest stands on; without it the defaults
  replications = 10               # runs of each point, numbered, one tape for each number
  \\[grid]                          # keys of a config: every combination
  workload.concurrency = [1, 8]
  device.step = ["2ms", "10ms"]
  [\\[case]]                        # or named sets of them
  name = "light"
  workload.requests = 20
  [\\[policy]]                      # the first is the reference, unless reference = NAME
  preset = ["spin", "park"]
  [\\[policy]]
  kind = "WakeAhead"
  guard = ["50us", "100us"]       # a list: one policy for each
  \\[stop]                          # add replications until this is known well enough
  figure = "tpot_p50_ns"
  relative = 0.005
  most = 200

Interrupt it at any time: points are stored one by one under a hash of all they depend on, and
the same command goes on where it was. It writes points.parquet (a row for each run),
estimates.parquet and comparisons.parquet (differences to the reference).
"""


@app.subcommand("sweep", _SWEEP_HELP)
def sweep_command(
    path: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="What to run, see above.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder that keeps the points and gets the tables."),
        Written.FOLDER,
    ] = Path("runs/sweep"),
    jobs: JobsOption = 0,
    cluster: ClusterOption = "",
) -> Output:
    """Run a sweep, draw its tables."""
    from shmsim.sim.sweep import sweep
    from shmsim.sweep.report import cell_table, footnotes
    from shmsim.sweep.spec import load_sweep
    from shmsim.sweep.tables import write_tables

    plan = load_sweep(path)
    with Bar() as bar, _workers(cluster, jobs, bar) as workers:
        points = sweep(
            plan,
            out,
            jobs=jobs,
            cluster=workers,
            progress=lambda done, total: bar.show(f"point {done} of {total}", done / total),
        )
    found = write_tables(out, plan, points)
    for result in found:
        print_uncut(cell_table(plan, result))
    for note in footnotes(plan, found):
        console.print(note, markup=False)
    console.print(f"tables: {out}", markup=False, soft_wrap=True)
    return Output({"folder": out, "reference": plan.reference_name, "cells": found})


@app.subcommand("profile")
def show_profile(
    profile_path: Annotated[
        Path,
        typer.Argument(
            metavar="PROFILE",
            help="A file, or one that comes with the package; see --list.",
            autocompletion=complete_profile,
        ),
    ] = Path("profile.json"),
    list_shipped: Annotated[
        bool, typer.Option("--list", help="List the profiles that come with the package.")
    ] = False,
) -> Output:
    """Print the costs of a profile: medians with 95 % intervals and tails, and their sources."""
    from shmsim.inputs.shipped import shipped_names
    from shmsim.profile import MachineProfile

    if list_shipped:
        shipped = {name: provenance(MachineProfile.shipped(name)) for name in shipped_names()}
        for name, text in shipped.items():
            console.print(f"{name}: {text}", markup=False)
        return Output({"shipped": shipped})
    profile = load_profile(profile_path)
    print_uncut(profile_table(profile), n_keys=2)
    for source in dict.fromkeys(profile.sources.values()):
        costs = [name for name, given in profile.sources.items() if given == source]
        console.print(f"{source.mark}: {', '.join(costs)}: {source.text}", markup=False)
    return Output(profile_data(profile))


def provenance(profile: "MachineProfile") -> str:
    """Say which machine a profile stands for, and how many of its costs were measured there."""
    from shmsim.profile import COSTS

    marks = [profile.source_of(name).mark for name in COSTS]
    counts = ", ".join(f"{marks.count(mark)} {mark}" for mark in MARKS)
    return f"{profile.machine.get('cpu')}; of {len(marks)} costs {counts}"


@app.subcommand("claims")
def claims_command(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of claims.")],
) -> Output:
    """Print claims as one table; exit with 1 if one does not hold."""
    claims = [claim for path in paths for claim in read_claims(path)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("claim")
    for label in ("value", "low to high", "bound", "n", ""):
        table.add_column(label, justify="right")
    for claim in claims:
        table.add_row(
            escape(claim.id),
            f"{claim.value:.4g} {escape(claim.unit)}",
            f"{claim.low:.4g} to {claim.high:.4g}",
            f"{claim.direction} {claim.bound:g}",
            str(claim.n),
            "holds" if claim.holds else "[red]fails[/]",
        )
    print_uncut(table)
    rows = [{**claim._asdict(), "holds": claim.holds} for claim in claims]
    return Output({"claims": rows}, holds=all(claim.holds for claim in claims))


@app.subcommand("timeline")
def timeline_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Folder with records.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="File to write; NAME.json.gz is compressed."),
        Written.FILE,
    ] = Path("trace.json"),
    steps: Annotated[
        str, typer.Option("--steps", help="FIRST:LAST, as a slice of Python; all by default.")
    ] = ":",
) -> Output:
    """Write the timeline of a run for ui.perfetto.dev or chrome://tracing.

    Example: shmsim timeline runs/mine/records/spin-0-machine -o trace.json.gz --steps 100:200
    """
    from shmsim.records import RunRecords
    from shmsim.timeline import window_of_steps, write_timeline

    records = RunRecords.read(folder)
    window = None if steps == ":" else window_of_steps(records, steps)
    n_events = write_timeline(records, out, window)
    console.print(
        f"{n_events} events in {out}; open it with https://ui.perfetto.dev",
        markup=False,
        soft_wrap=True,
    )
    return Output({"timeline": out, "events": n_events})


def profile_data(profile: "MachineProfile") -> dict[str, Any]:
    """The costs of a profile as data, each with its source; nanoseconds."""
    costs = {
        name: {
            "along": curve.by,
            "source": profile.source_of(name),
            "points": [
                {
                    "at": x,
                    "n": point.n,
                    "p50": point.median,
                    "low": point.low,
                    "high": point.high,
                    "p90": point.at(0.9),
                    "p99": point.at(0.99),
                    "replicates": point.replicates,
                }
                for x, point in zip(curve.xs, curve.points, strict=True)
            ],
        }
        for name, curve in profile.costs.items()
    }
    return {"machine": profile.machine, "measured_at": profile.measured_at, "costs": costs}


def profile_table(profile: "MachineProfile") -> Table:
    """Draw every cost of a profile."""
    machine = profile.machine
    table = Table(
        title=escape(
            f"{machine.get('cpu')}, {machine.get('cores')} cores, kernel "
            f"{machine.get('kernel', 'unknown')}, as of {profile.measured_at}"
        ),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("cost")
    table.add_column("at", justify="right")
    for label in ("n", "median", "95 % interval", "p90", "p99"):
        table.add_column(label, justify="right")
    # Profiles that come along are thinned, and keep no replicates.
    points = [point for curve in profile.costs.values() for point in curve.points]
    has_replicates = any(len(set(point.replicates)) > 1 for point in points)
    if has_replicates:
        table.add_column("replicates' medians", justify="right")
    for name, curve in profile.costs.items():
        for x, point in zip(curve.xs, curve.points, strict=True):
            at = format_ns(x) if curve.by == "asleep_ns" else f"{_plainly(x)} {curve.by}"
            spread = f"{format_ns(min(point.replicates))} to {format_ns(max(point.replicates))}"
            table.add_row(
                escape(name),
                at if curve.by else "",
                str(point.n) if point.n else "unknown",
                format_ns(point.median),
                f"{format_ns(point.low)} to {format_ns(point.high)}",
                format_ns(point.at(0.9)),
                format_ns(point.at(0.99)),
                *([spread] if has_replicates else []),
            )
    return table


def _plainly(x: float) -> str:
    return str(int(x)) if x == int(x) else f"{x:g}"


#: Figures that ``shmsim simulate`` shows.
_SIMULATED: Final = (
    "tpot_p50_ns",
    "tpot_p99_ns",
    "itl_p99_ns",
    "ttft_p50_ns",
    "ttft_after_idle_p50_ns",
    "output_tokens_per_s",
    "scheduler_cores",
    "worker_cores",
)


def figures_table(found: dict[str, dict[str, "Estimate"]]) -> Table:
    """Draw the figures of several policies on one workload, half-widths below the estimates."""
    from shmsim.figures import shown

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    for figure in _SIMULATED:
        table.add_column(shown(figure).label, justify="right")
    for policy, figures in found.items():
        cells = []
        for figure in _SIMULATED:
            estimate = figures[figure]
            text = estimate.text(shown(figure).unit) if estimate.n else "none"
            mark = " ?" if estimate.caveat and estimate.n else ""
            cells.append(text.replace(" ± ", "\n±").replace(" (", "\n(") + mark)
        table.add_row(escape(policy), *cells)
    return table


def table_notes(found: dict[str, dict[str, "Estimate"]]) -> list[str]:
    """Methods behind a table of `figures_table`, and what is marked in it."""
    from shmsim.figures import shown

    methods: dict[str, list[str]] = {}
    notes: dict[str, list[str]] = {}
    for figures in found.values():
        for figure in _SIMULATED:
            estimate, label = figures[figure], shown(figure).label
            if estimate.n and estimate.half_width == estimate.half_width:
                methods.setdefault(estimate.method.partition(",")[0], []).append(label)
            if estimate.n and estimate.caveat:
                notes.setdefault(estimate.caveat, []).append(label)
    return [
        *(f"{method}: {', '.join(dict.fromkeys(labels))}" for method, labels in methods.items()),
        *(f"? {', '.join(dict.fromkeys(labels))}: {note}" for note, labels in notes.items()),
    ]


def warm_up_notes(cuts: dict[str, dict[str, "WarmUp"]]) -> list[str]:
    """What was cut from the front of single runs, a line for each policy."""
    from shmsim.figures import shown

    def told(name: str, cut: "WarmUp") -> str:
        return f"{shown(f'{name}_mean_ns').label.removesuffix(' mean ms')} {cut.n_cut} of {cut.n}"

    return [
        f"warm-up (MSER-5), values of {policy} that were cut: "
        + ", ".join(told(name, cut) for name, cut in of_policy.items())
        for policy, of_policy in cuts.items()
    ]


def describe(policy: WaitPolicy) -> str:
    """Write a policy with its first parameter and those that are not as usual."""
    fields = parameters_of(policy)
    usual = parameters_of(type(policy)())
    shown = ", ".join(
        f"{name.removesuffix('_ns')} {_show(name, value)}"
        for index, (name, value) in enumerate(fields.items())
        if index == 0 or value != usual[name]
    )
    return f"{type(policy).__name__} {shown}".rstrip()


def as_data(policy: WaitPolicy) -> dict[str, Any]:
    """A policy's kind and parameters; durations in nanoseconds."""
    parameters = parameters_of(policy).items()
    fields = {name: as_data(value) if name == "inner" else value for name, value in parameters}
    return {"kind": type(policy).__name__, **fields}


def _show(field: str, value: Any) -> str:
    if field == "inner":
        return describe(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not field.endswith("_ns"):
        return f"{value:g}"
    return format_ns(value) if value >= 0 else "B"


app.subcommand("export", export_cli.HELP)(export_cli.export_command)
app.subcommand("arena", arena_cli.HELP)(arena_cli.arena_command)

if __name__ == "__main__":
    app()
