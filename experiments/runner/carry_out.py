"""Runs the cells of one experiment, keeps each, and stores what came out."""

import json
import shutil
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from realrun.host import machine_facts
from runner.ctrl_c import CtrlC
from runner.experiment import WORLDS, Cell, Context, Experiment, Findings, Plan, Progress, Skipped
from runner.kept import Kept, hash_of, only_one
from runner.origin import box_hash, commit, label_of, source_hash
from runner.record import Record, Row, checked
from shmsim.claims import write_claims
from shmsim.console import console
from shmsim.whole import whole

CLAIMS: Final = "claims.json"
_WORK: Final = "work"
_FILES: Final = "files"


class Job(NamedTuple):
    """One experiment on one node.

    Parameters
    ----------
    folder
        That of the experiment; its name is the experiment's.
    experiment, plan
        What to run.
    effort
        ``"quick"`` or ``"full"``.
    out
        Where the results go.
    kept
        Where finished cells and working files are until then.
    node
        Label of this node; empty takes one from its facts.
    cluster
        Address of a Dask scheduler; empty for none.
    """

    folder: Path
    experiment: Experiment
    plan: Plan
    effort: str
    out: Path
    kept: Path
    node: str = ""
    cluster: str = ""


def carry_out(job: Job, progress: Progress) -> Record:
    """Run what is not kept yet, then report, store, and forget what was kept.

    Parameters
    ----------
    job
        What to run.
    progress
        Told which cell runs, and how much of all is done.

    Raises
    ------
    ValueError
        If the plan asks for nonsense, or a cell gives what cannot be stored.
    RuntimeError
        If somebody else runs the same, or a run failed.
    """
    cells = _distinct(list(job.experiment.cells(job.plan)))
    machine = machine_facts()
    label = job.node or label_of(machine)
    source = source_hash(job.folder)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    tree, dirty = commit(job.folder)
    with only_one(job.kept) as kept:
        kept.only_of(hash_of([job.plan, source, box_hash(machine), label]))
        with CtrlC() as ctrl_c, ExitStack() as resources:
            rows = _run(job, cells, kept, label, progress, resources, ctrl_c)
        node = {
            "machine": machine,
            "commit": tree,
            "dirty": dirty,
            "source": source,
            "started": started,
            "seconds": round(sum(row.seconds for row in rows), 1),
        }
        record = Record(job.folder.name, job.effort, job.plan, {label: node}, tuple(rows), {})
        shutil.copytree(job.kept / _FILES, job.out, copy_function=_copy, dirs_exist_ok=True)
        record = told(job.experiment, record, job.out)
        kept.clear()
    return record


def _copy(source: str, target: str) -> None:
    """Copy a file of the results, whole or not at all."""
    with whole(Path(target)) as unfinished:
        shutil.copyfile(source, unfinished)


def _distinct(cells: list[Cell]) -> list[Cell]:
    names = [cell.name for cell in cells]
    for cell in cells:
        if names.count(cell.name) > 1:
            raise ValueError(f"two cells are called {cell.name!r}; each needs a name of its own")
        if cell.world not in WORLDS:
            raise ValueError(
                f"cell {cell.name} is of world {cell.world!r}; known are {', '.join(WORLDS)}"
            )
    return cells


def _run(
    job: Job,
    cells: list[Cell],
    kept: Kept,
    label: str,
    progress: Progress,
    resources: ExitStack,
    ctrl_c: CtrlC,
) -> list[Row]:
    at, what = 0, ""

    def tell(doing: str, share: float) -> None:
        progress(f"{what}: {doing}" if doing else what, (at + share) / len(cells))

    work, files = job.kept / _WORK, job.kept / _FILES
    for folder in (work, files):
        folder.mkdir(exist_ok=True)
    context = Context(job.plan, work, files, tell, job.cluster, resources)
    rows = []
    for at, cell in enumerate(cells):  # noqa: B007 - read by `tell`
        what = cell.name
        stored = kept.get(cell.name)
        if stored is None:
            tell("", 0.0)
            row = _run_cell(job.experiment, cell, context, label)
            kept.put(cell.name, row._asdict())
            ctrl_c.check()
        else:
            row = Row(**stored)
        if row.content is not None:
            context.found[cell.name] = row.content
        rows.append(row)
    return rows


def _run_cell(experiment: Experiment, cell: Cell, context: Context, label: str) -> Row:
    started_s = time.monotonic()
    content, reason = None, ""
    try:
        content = checked(cell, experiment.run(cell, context))
    except Skipped as skipped:
        reason = str(skipped)
    return Row(*cell, label, round(time.monotonic() - started_s, 2), content, reason)


def told(experiment: Experiment, record: Record, out: Path) -> Record:
    """Let an experiment say what came out on each node, and store all of it in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    single = len(record.nodes) == 1
    claims, summaries = [], {}
    for label in record.nodes:
        place = out if single else out / label
        place.mkdir(exist_ok=True)
        if not single:
            console.rule(label)
        found: Findings = experiment.report(record.results(label), place)
        suffix = "" if single else f"@{label}"
        claims += [claim._replace(id=claim.id + suffix) for claim in found.claims]
        summaries[label] = json.loads(json.dumps(found.summary, allow_nan=False))
    record = record._replace(summaries=summaries)
    record.write(out)
    machine = next(iter(record.nodes.values()))["machine"]
    write_claims(out / CLAIMS, machine if single else {"nodes": list(record.nodes)}, claims)
    return record
