"""Runs experiments: one by its name or number, or all of them.

Usage: python experiments/run.py NAME|all [--quick] [--cluster ADDRESS] [--node LABEL]
           [--gpus 0,1] [--config FILE] [--out FOLDER]
       python experiments/run.py merge RECORD ... --out FOLDER
       python experiments/run.py list

A run that was interrupted goes on where it was; README.md says what is stored, and where.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.table import Table

from runner.carry_out import CLAIMS, Job, carry_out, told
from runner.find import EXPERIMENTS, find, load, names, read_plan
from runner.merge import agreement, merged
from runner.record import Record, read_record
from shmsim.claims import read_claims
from shmsim.console import Bar, console, diagnostics
from shmsim.program import FAILURE, INTERRUPTED, MISUSE

RUNS: Final = Path("runs/experiments")


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    made = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=f"experiments: {', '.join(names())}",
    )
    made.add_argument("name", help="an experiment, whole or by number; or all, merge, list")
    made.add_argument("records", nargs="*", type=Path, help="of merge: record.json of each node")
    made.add_argument("--quick", action="store_true", help="the same in little, half a minute each")
    made.add_argument("--cluster", default="", help="address of a Dask scheduler, for the model")
    made.add_argument("--node", default="", help="label of this node, if results will be merged")
    made.add_argument("--gpus", default="", help="which GPUs may be used, as in 0,3; default: all")
    made.add_argument("--config", type=Path, help="instead of config.toml; needs --out")
    made.add_argument("--out", type=Path, help="default: results/, with --quick runs/experiments/")
    return made


def job_of(name: str, arguments: argparse.Namespace) -> Job:
    """What the command line asks for of one experiment."""
    folder = EXPERIMENTS / name
    if arguments.config and not arguments.out:
        raise ValueError(
            "--config runs another plan than results/ is of; say with --out where its go"
        )
    experiment = load(folder)
    if arguments.cluster and not experiment.sweeps:
        diagnostics.print(f"note: {name} sweeps nothing, so --cluster changes nothing there")
    plan = read_plan(arguments.config or folder / "config.toml")
    effort = "quick" if arguments.quick else "full"
    if arguments.quick:
        plan = experiment.quick(plan)
    full_name = f"{name}-{effort}"
    stored = RUNS / full_name if arguments.quick else folder / "results"
    kept = RUNS / "kept" / (f"{full_name}-{arguments.node}" if arguments.node else full_name)
    return Job(
        *(folder, experiment, plan, effort, arguments.out or stored, kept),
        *(arguments.node, arguments.cluster),
    )


def run_one(arguments: argparse.Namespace) -> None:
    """Run one experiment and tell what it claims."""
    job = job_of(find(arguments.name), arguments)
    with Bar() as bar:
        record = carry_out(job, bar.show)
    tell(record, job.out)


def tell(record: Record, out: Path) -> None:
    """Say what was skipped, what is claimed, and where all of it is."""
    for row in record.rows:
        if row.skipped:
            console.print(f"skipped: {row.name}: {row.skipped}", markup=False, soft_wrap=True)
    for claim in read_claims(out / CLAIMS):
        verdict = "holds" if claim.holds else "FAILS"
        console.print(
            f"{claim.id}: {claim.value:.4g} {claim.unit} ({claim.low:.4g} to {claim.high:.4g}), "
            f"{claim.direction} {claim.bound:g}: {verdict}",
            markup=False,
            soft_wrap=True,
        )
    seconds = sum(node["seconds"] for node in record.nodes.values())
    console.print(
        f"{record.experiment}, {record.effort}: {seconds:.0f} s; stored in {out}", soft_wrap=True
    )


def run_all(arguments: argparse.Namespace) -> int:
    """Run every experiment in a process of its own; the exit code."""
    if arguments.out or arguments.config:
        raise ValueError("--out and --config are for one experiment; all have folders of their own")
    table = Table("experiment", "seconds", "ended")
    failed = False
    for name in names():
        console.rule(name)
        command = [sys.executable, str(Path(__file__).resolve()), name]
        command += ["--quick"] if arguments.quick else []
        for option in ("cluster", "node", "gpus"):
            value = getattr(arguments, option)
            command += [f"--{option}", value] if value else []
        started_s = time.monotonic()
        # Ctrl-C reaches the whole group: whoever runs cleans up, and is waited for.
        with subprocess.Popen(command) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # which `with` would wait for a quarter of a second
                process.wait()
                raise
            except SystemExit:  # SIGTERM, which reaches this process alone
                process.terminate()
                raise
        failed |= code != 0
        how = "well" if code == 0 else f"with exit code {code}"
        table.add_row(name, f"{time.monotonic() - started_s:.0f}", how)
    console.print(table)
    return FAILURE if failed else 0


def run_merge(arguments: argparse.Namespace) -> None:
    """Join the records of several nodes."""
    if not arguments.out:
        raise ValueError("say with --out where the merged record goes")
    record = merged([read_record(path) for path in arguments.records])
    experiment = load(EXPERIMENTS / find(record.experiment))
    record = told(experiment, record, arguments.out)
    same, of = agreement(record)
    if of:
        console.print(f"{same} of {of} cells of the model say the same on all nodes")
    tell(record, arguments.out)


def main() -> int:
    """Do what was asked; the exit code."""
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILURE))  # as Ctrl-C: nothing stays behind
    if arguments.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = arguments.gpus
    try:
        if arguments.records and arguments.name != "merge":
            raise ValueError(f"{arguments.name} takes no records; they are for merge")
        if arguments.name == "list":
            for name in names():
                console.print(name)
        elif arguments.name == "merge":
            run_merge(arguments)
        elif arguments.name == "all":
            return run_all(arguments)
        else:
            run_one(arguments)
    except ValueError as error:
        diagnostics.print(f"error: {error}", markup=False, soft_wrap=True)
        return MISUSE
    except (OSError, RuntimeError) as error:
        diagnostics.print(f"failed: {error}", markup=False, soft_wrap=True)
        return FAILURE
    except KeyboardInterrupt:
        diagnostics.print("interrupted; the same command goes on where it was")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
