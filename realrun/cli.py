"""The ``realrun`` command: measure this box, and run the loop on it for real.

A command loads what it runs on when it runs: scipy, Arrow and matplotlib take most of a second
together, and neither ``doctor`` nor ``--help`` nor TAB needs one of them.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from realrun.contribute_cli import HELP as CONTRIBUTE_HELP
from realrun.contribute_cli import contribute_command
from realrun.gpu_cli import gpu_check_command, show_gpu
from realrun.host import differing_facts, machine_facts, usable_cores, warnings_about
from realrun.vllm.cli import add_commands as add_vllm_commands
from shmsim.claims import write_claims
from shmsim.console import (
    Bar,
    ConfigArgument,
    ProfileOption,
    complete_policy,
    console,
    diagnostics,
    load_or_default,
    load_policies,
    load_profile,
    print_uncut,
)
from shmsim.program import Output, Program, Written
from shmsim.units import US, format_ns
from shmsim.whole import write_whole

if TYPE_CHECKING:
    from shmsim.config import RunConfig
    from shmsim.profile import MachineProfile

app = Program(
    "Measure what waiting costs on this box, and run the scheduler-worker loop on it.\n\n"
    "Start with 'realrun doctor', then 'realrun calibrate'; 'realrun demo' does it all at once.",
)


@app.subcommand("doctor")
def doctor() -> Output:
    """Say what this box is, and what about it will show in every figure."""
    facts = machine_facts()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    for name, value in facts.items():
        table.add_row(name, escape(_show(name, value)))
    console.print(table)
    warnings = warnings_about(facts)
    for warning in warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}", soft_wrap=True)
    if not warnings:
        console.print("nothing to note: this box measures cleanly")
    return Output({"facts": facts, "notes": warnings})


@app.subcommand("calibrate")
def calibrate_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the profile is written."), Written.FILE
    ] = Path("profile.json"),
    doorbell: Annotated[
        Literal["futex", "eventfd", "zmq"],
        typer.Option(help="By which a sleeper is woken; as handoff.doorbell in the config."),
    ] = "futex",
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Three times the replicates; 'validate --grid' wants it."),
    ] = False,
    gpu: Annotated[
        int | None,
        typer.Option(metavar="INDEX", min=0, help="Measure a GPU too, one of those visible."),
    ] = None,
) -> Output:
    """Measure every cost of waiting on this box, one by one; takes about 50 s.

    The profile holds distributions with sample counts and intervals, and the facts of the box.
    'shmsim profile FILE' prints it. With --gpu it also tells what copies, waits and steps cost
    there, in two minutes more; named as device.file it predicts runs on that GPU.
    """
    from realrun.calibrate import N_REPLICATES, N_THOROUGH, RESTS, calibrate
    from realrun.calibrate_gpu import measure_gpu, with_gpu

    with Bar() as bar:
        n_replicates = N_THOROUGH if thorough else N_REPLICATES
        # First the GPU: if it cannot be used, that is said at once.
        log = out.with_suffix(".gpu.log")
        reported = measure_gpu(gpu, bar.show, log=log) if gpu is not None else []
        profile = calibrate(bar.show, doorbell, n_replicates)
        if gpu is not None:
            profile = with_gpu(profile, reported)
    profile.write(out)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rested for")
    names = {
        "wake_latency": "wake-up by doorbell",
        "timer_overshoot": "timer late by",
        "park_cpu": "CPU of a park",
        "slow_after_park": "work after a park: extra",
        "slow_after_spin": "after spinning: extra",
    }
    for label in names.values():
        table.add_column(label + "\np50 / p99 µs", justify="right")
    for rest_ns, _ in RESTS:
        curves = (profile.costs[name] for name in names)
        table.add_row(
            format_ns(rest_ns),
            *(f"{c.at(0.5, rest_ns) / US:.0f} / {c.at(0.99, rest_ns) / US:.0f}" for c in curves),
        )
    print_uncut(table)
    if gpu is not None:
        show_gpu(profile)
    console.print(
        f"profile: {out} ('shmsim profile {out}' prints all of it)", markup=False, soft_wrap=True
    )
    rested = {
        f"{rest_ns:.0f}": {
            name: {"p50_ns": curve.at(0.5, rest_ns), "p99_ns": curve.at(0.99, rest_ns)}
            for name in names
            for curve in (profile.costs[name],)
        }
        for rest_ns, _ in RESTS
    }
    return Output({"profile": out, "machine": profile.machine, "by_rest_ns": rested})


@app.subcommand("run")
def run_command(
    config_path: ConfigArgument = None,
    profile_path: ProfileOption = Path("profile.json"),
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="A preset, KIND:key=value,..., or a policy file.",
            autocompletion=complete_policy,
        ),
    ] = "wake-ahead",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the records (Parquet)."),
        Written.FOLDER,
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(help="CSV for the step times by batch, as device.file wants them."),
        Written.FILE,
    ] = None,
) -> Output:
    """Run the loop once for real and print what a serving benchmark prints.

    Example: realrun run -p profile.json --policy WakeAhead:guard=80us
    """
    from realrun.run import make_spec, run_once
    from realrun.steps import device_notes, write_steps
    from realrun.tables import benchmark_block, hand_off_block
    from shmsim.metrics import summarize

    config = load_or_default(config_path)
    (named,) = load_policies([policy])
    profile = _profile_for(config, profile_path)
    with Bar() as bar:
        bar.show(f"machine: {named.name}", 0.0)
        spec = make_spec(config, named.policy, profile, 0)
        records = run_once(
            spec,
            lambda steps: bar.show(f"machine: {named.name}, step {steps}", 0.0),
            out / "logs" if out is not None else None,
        )
    figures = summarize(records)
    console.print(benchmark_block(figures), highlight=False, markup=False)
    block = hand_off_block(records, spec.handoff.doorbell, spec.layout.size)
    console.print(block, highlight=False, markup=False)
    notes = list(device_notes(records))
    for note in notes:
        diagnostics.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if out is not None:
        records.write(out)
        console.print(f"records: {out}", markup=False, soft_wrap=True)
    if steps is not None:
        n_steps = write_steps(steps, records)
        console.print(
            f"step times: {steps} ({n_steps} steps without prompt tokens)",
            markup=False,
            soft_wrap=True,
        )
    return Output(
        {
            "policy": named.name,
            "figures": figures,
            "processes": records.processes,
            "notes": notes,
            "records": out,
            "step_times": steps,
        }
    )


@app.subcommand("validate")
def validate_command(
    config_path: ConfigArgument = None,
    profile_path: ProfileOption = Path("profile.json"),
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            help="Instead of the config's policies; repeatable.",
            autocompletion=complete_policy,
        ),
    ] = [],  # noqa: B006 - typer reads the default
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for results."), Written.FOLDER
    ] = Path("runs/validation"),
    grid: Annotated[
        Path | None,
        typer.Option(
            metavar="CELLS.toml", help="A list of cells, each judged by itself; no CONFIG then."
        ),
    ] = None,
    cell: Annotated[
        list[str], typer.Option("--cell", help="Only this cell of the grid; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default
    claims_path: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE", help="Claims file of a grid, for shmsim claims."),
        Written.FILE,
    ] = None,
) -> Output:
    """Run model and machine on the same workload and policies, and compare them.

    Writes outcomes.parquet, validation.json, frontier.svg and the records of every run.

    With --grid every cell gets a verdict for TPOT, ITL and CPU: holds, misses or cannot tell, by
    an equivalence test. The runs are stored in OUT; a second call continues with what is missing
    and lets the model, as it then is, answer anew.
    """
    from realrun.report import disturbed_in, draw_frontier
    from realrun.tables import validation_table, verdict
    from realrun.validate import validate
    from shmsim.config import ConfigError, RunConfig
    from shmsim.run_costs import notes_on_costs

    if grid is not None:
        if config_path is not None or policy:
            raise ConfigError("a grid names its configs and policies itself; leave them out")
        return _validate_grid(grid, cell, profile_path, out, claims_path)
    if cell or claims_path is not None:
        raise ConfigError("--cell and --claims belong to a grid; name it with --grid CELLS.toml")
    config = load_or_default(config_path)
    if policy:
        config = RunConfig(**{**vars(config), "policies": load_policies(policy)})
    profile = _profile_for(config, profile_path)
    with Bar() as bar:
        validation = validate(
            config,
            profile,
            out,
            lambda done, total, label: bar.show(f"{done}/{total} {label}", done / total),
        )
    print_uncut(validation_table(validation))
    for note in notes_on_costs(config, profile):
        console.print(note, markup=False)
    draw_frontier(validation, out / "frontier.svg")
    reference, *others = validation.policy_names
    words = "\n\n".join(verdict(validation, name, reference) for name in others[-1:])
    if words:
        write_whole(out / "verdict.txt", words + "\n")
        console.print(words, markup=False, soft_wrap=True)
    disturbed = disturbed_in(out)
    if disturbed:
        diagnostics.print(f"[yellow]warning:[/] {disturbed}", soft_wrap=True)
    console.print(
        f"results: {out} (frontier.svg, validation.json, outcomes.parquet)",
        markup=False,
        soft_wrap=True,
    )
    stored = json.loads((out / "validation.json").read_text())
    return Output({"folder": out, "verdict": words, **stored})


def _validate_grid(
    path: Path, names: list[str], profile_path: Path, out: Path, claims_path: Path | None
) -> Output:
    from realrun.calibrate import N_REPLICATES, N_THOROUGH
    from realrun.cells import read_grid
    from realrun.grid import run_grid
    from realrun.grid_report import claims, print_table, summary, write_record
    from shmsim.config import ConfigError

    grid = read_grid(path)
    if names:
        grid = grid.only(names)
    profile = load_profile(profile_path)
    if profile.machine.get("replicates", N_REPLICATES) < N_THOROUGH:
        raise ConfigError(
            f"{profile_path} is no thorough profile, so that its own noise would count as the "
            f"model's error; make one with 'realrun calibrate --thorough -o {profile_path}'"
        )
    _say_what_differs(profile)
    with Bar() as bar:
        results = run_grid(
            grid,
            lambda _: profile,
            out,
            lambda done, total, label: bar.show(f"{done}/{total} {label}", done / total),
        )
    print_table(results)
    console.print(summary(results), markup=False, soft_wrap=True)
    write_record(out / "grid.json", results, [profile])
    if claims_path is not None:
        write_claims(claims_path, machine_facts(), claims(results))
    console.print(f"results: {out} (grid.json, records of every run)", markup=False, soft_wrap=True)
    return Output({"folder": out, **json.loads((out / "grid.json").read_text())})


@app.subcommand("report")
def report_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="What validate, validate --grid or run --out wrote."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page; report.html in RUN without."),
        Written.FILE,
    ] = None,
) -> Output:
    """Write one HTML page about what came out: verdict, evidence, how to get it again, limits.

    The page is one file that opens offline, at a desk and on a telephone; no script runs in it.
    """
    from realrun.report import write_report

    page = write_report(folder, out)
    console.print(f"report: {page}", markup=False, soft_wrap=True)
    return Output({"report": page})


@app.subcommand("demo")
def demo(
    trace: Annotated[
        Path | None,
        typer.Option(help="An Azure-format CSV to serve instead of the generated workload."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for results."), Written.FOLDER
    ] = Path("runs/demo"),
) -> Output:
    """Calibrate this box, tune in the model, run for real, compare; about 3 minutes.

    Runs the commands that you would run one by one, and prints each.
    """
    from realrun.demo import run_demo

    return Output(run_demo(out, trace))


def _show(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / (1 << 30):.1f} GiB"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _profile_for(config: "RunConfig", path: Path) -> "MachineProfile":
    """Read the profile of a real run, and say what will set the run apart from the model."""
    profile = load_profile(path)
    _say_what_differs(profile)
    _say_what_oversubscription_means(config)
    return profile


def _say_what_differs(profile: "MachineProfile") -> None:
    """Warn about a profile that was not measured here."""
    differing = differing_facts(profile.machine, machine_facts())
    if differing:
        diagnostics.print(
            "[yellow]warning:[/] the profile is not from this box as it is now, so predictions are "
            f"about another one; {escape('; '.join(differing))}. Calibrate here for a comparison.",
            soft_wrap=True,
        )


def _say_what_oversubscription_means(config: "RunConfig") -> None:
    engine, n_cores = config.engine, len(usable_cores())
    # Async, each worker waits for its device in a second thread.
    n_threads = 1 + engine.workers * (2 if engine.scheduling == "async" else 1)
    if n_threads > n_cores:
        diagnostics.print(
            f"[yellow]warning:[/] scheduler and workers have {n_threads} threads on {n_cores} "
            "cores: a spinner takes the core from whom it waits for, and runs differ more from "
            "each other than elsewhere. With fewer cores than processes they are not pinned.",
            soft_wrap=True,
        )


app.subcommand("gpu-check")(gpu_check_command)
app.subcommand("contribute", CONTRIBUTE_HELP)(contribute_command)
add_vllm_commands(app)

if __name__ == "__main__":
    app()
