"""The page of one run, of either world: what a serving benchmark says, and how it waited."""

import math
from pathlib import Path
from typing import Final

from realrun.report.html import Html, bullets, cards, element, joined, paragraph, table
from realrun.report.page import Section, page
from realrun.report.parts import (
    about_machine,
    commands,
    folded,
    limits_of_machine,
    machine_part,
    quoted,
)
from realrun.report.pictures import picture_of_gaps, picture_of_step
from realrun.report.stored import StoredRun, policy_of, read_records
from shmsim.figures import FIGURES, shown, summarize_with_intervals
from shmsim.metrics import summarize
from shmsim.stats.estimate import Estimate
from shmsim.units import MS
from shmsim.wait import TYPICAL_COSTS

_MACHINE: Final = "machine"


def run_page(folder: Path) -> str:
    """Make the page of a folder that holds the records of one run.

    Raises
    ------
    ValueError
        If a file is missing or damaged, or the run has no request.
    """
    run = StoredRun(folder.resolve().name, read_records(folder))
    meta = run.records.meta
    world = str(meta.get("world", "model"))
    machine = meta.get("machine")
    about = "a run of the model, in virtual time"
    if world == _MACHINE and isinstance(machine, dict):
        about = about_machine(machine)
    return page(
        f"One run: {run.name}",
        about,
        [
            Section("verdict", "Verdict", _verdict(run)),
            Section("evidence", "Evidence", _evidence(run)),
            Section("again", "How to look further", _again(folder, run)),
            Section("limits", "Limits", _limits(run)),
        ],
    )


def _verdict(run: StoredRun) -> Html:
    summary = summarize(run.records)
    return cards(
        [
            (
                "Time per output token",
                f"{summary.tpot.p50 / MS:.3f} ms",
                f"median; p99 {summary.tpot.p99 / MS:.3f} ms",
            ),
            (
                "Time to first token",
                f"{summary.ttft.p50 / MS:.2f} ms",
                f"median of {summary.ttft.n} requests; p99 {summary.ttft.p99 / MS:.2f} ms",
            ),
            (
                "CPU, scheduler",
                f"{summary.scheduler_cores:.2f} cores",
                f"each worker: {summary.worker_cores:.2f}",
            ),
            (
                "Throughput",
                f"{summary.output_tokens_per_s:.0f} tokens/s",
                f"{summary.n_steps} steps in {summary.duration_s:.1f} s",
            ),
        ]
    )


def _evidence(run: StoredRun) -> Html:
    estimates = summarize_with_intervals([run.records])
    rows = [
        (shown(name).label, estimates[name].text(shown(name).unit), _interval(estimates[name]))
        for name in FIGURES
    ]
    parts = [
        table("Every figure, with a 95 % interval where one run gives one.",
              ("figure", "estimate", "interval by"), rows)
    ]  # fmt: skip
    policy = policy_of(run.records.meta.get("policy"))
    if policy is not None:
        gaps = picture_of_gaps("run", run.records, policy, TYPICAL_COSTS)
        if gaps is not None:
            parts += [element("h3", "How the scheduler waits"), gaps]
    step = picture_of_step("run", run.records)
    if step is not None:
        parts += [element("h3", "One step"), step]
    return joined(parts)


def _interval(estimate: Estimate) -> str:
    return estimate.method if math.isfinite(estimate.half_width) else "none: one run"


def _again(folder: Path, run: StoredRun) -> Html:
    word = quoted(folder)
    parts = [
        commands(f"shmsim timeline {word} -o trace.json"),
        paragraph(
            f"Seed {run.records.meta.get('seed', 'unknown')}, replication "
            f"{run.records.meta.get('replication', 'unknown')}. To hold the model against the same "
            "config, run 'realrun validate'."
        ),
    ]
    machine = run.records.meta.get("machine")
    if isinstance(machine, dict):
        parts.append(machine_part(machine))
    policy = run.records.meta.get("policy")
    if policy is not None:
        parts.append(folded("The policy", element("pre", element("code", str(policy)))))
    return joined(parts)


def _limits(run: StoredRun) -> Html:
    meta, items = run.records.meta, ["One run: nobody knows by how much the next one would differ."]
    if meta.get("world") != _MACHINE:
        items.append("These are figures of the model; nothing was measured.")
    if meta.get("emulated"):
        items.append("Some devices were emulated: several workers share one, or have none.")
    items.append(
        "What the plan did is worked out with typical costs of waiting: the records do not hold "
        "those the run was told."
    )
    machine = meta.get("machine")
    return bullets([*items, *(limits_of_machine(machine) if isinstance(machine, dict) else [])])
