"""The page of a validation: what a policy saves, whether the model foresaw it, and why."""

import json
import math
from pathlib import Path
from typing import Final

from realrun.report.html import Html, bullets, cards, element, joined, paragraph, table
from realrun.report.page import Section, page
from realrun.report.parts import (
    about_machine,
    commands,
    config_part,
    limits_of_machine,
    machine_part,
    quoted,
)
from realrun.report.pictures import (
    picture,
    picture_of_gaps,
    picture_of_step,
    picture_of_wake_ups,
)
from realrun.report.stored import StoredValidation, policy_of, profile_of, read_validation
from realrun.tables import CPU_MARGIN, TPOT_MARGIN
from realrun.validate import Comparison
from shmsim.plots import Judged, agreement, frontier, frontier_points
from shmsim.policies import PRESETS
from shmsim.records import ProcessRow, read_rows
from shmsim.units import MS, format_ns

#: Share of a run that a process with a core of its own may be ready without it: beyond, somebody
#: else was there. As `realrun.grid.DISTURBED`.
_DISTURBED: Final = 0.03
_MEASURED, _SIMULATED = "measured", "simulated"


def validation_page(folder: Path) -> str:
    """Make the page of a folder that ``realrun validate`` wrote.

    Raises
    ------
    ValueError
        If a file is missing or damaged.
    """
    stored = read_validation(folder)
    reference, *others = stored.table
    chosen = others[-1] if others else reference
    return page(
        f"{chosen} against {reference}" if others else f"{reference} in model and machine",
        f"{about_machine(stored.content['machine'])}; measured "
        f"{stored.content.get('finished_at', 'at an unknown time')}",
        [
            Section("verdict", "Verdict", _verdict(stored, reference, chosen)),
            Section("evidence", "Evidence", _evidence(stored, chosen)),
            Section("again", "How to get this again", _again(stored)),
            Section("limits", "Limits", _limits(stored)),
        ],
    )


def _verdict(stored: StoredValidation, reference: str, chosen: str) -> Html:
    parts = []
    words = stored.folder / "verdict.txt"
    if chosen != reference and words.is_file():
        parts.append(element("p", words.read_text(errors="replace").strip(), class_="verdict"))
    if chosen != reference:
        parts.append(cards(_key_figures(stored, reference, chosen)))
    n_inside = sum(row.verdict == "inside" for row in (*_tpot_rows(stored), *_cpu_rows(stored)))
    n_all = len(_tpot_rows(stored)) + len(_cpu_rows(stored))
    parts.append(
        paragraph(
            f"The model foresaw {n_inside} of {n_all} figures to within {100 * TPOT_MARGIN:g} % of "
            f"TPOT and {100 * CPU_MARGIN:g} points of CPU; nothing in it is fitted to these runs. "
            "That margin is of the figure itself: an effect smaller than it may be missed by a "
            "prediction inside."
        )
    )
    disturbed = _disturbed(stored)
    if disturbed:
        parts.append(paragraph(element("strong", "Disturbed: "), disturbed))
    parts.append(_policy_table(stored, reference))
    return joined(parts)


def _key_figures(
    stored: StoredValidation, reference: str, chosen: str
) -> list[tuple[str, str, str]]:
    before, left = (stored.cores(name, _MEASURED) for name in (reference, chosen))
    tpot = stored.table[chosen]["tpot_p50_ns"]
    change = _change(stored, reference, chosen, _MEASURED)
    foreseen = _change(stored, reference, chosen, _SIMULATED)
    saved = {
        w: stored.cores(reference, w) - stored.cores(chosen, w) for w in (_MEASURED, _SIMULATED)
    }
    noise = _noise(stored, reference, chosen)
    delay = stored.table[chosen]["scheduler_delay_p50_ns"]
    return [
        ("CPU, all processes", f"{left:.2f} cores", f"{reference}: {before:.2f}"),
        (
            "Time per output token",
            f"{100 * change:+.1f} %",
            f"{tpot.measured / MS:.3f} ms; run-to-run ±{100 * noise:.1f} %",
        ),
        (
            "Foreseen by the model",
            f"{100 * foreseen:+.1f} % TPOT",
            f"{saved[_SIMULATED]:.2f} cores saved; really {saved[_MEASURED]:.2f}",
        ),
        ("A reply is seen after", format_ns(delay.measured), "median, from its publication"),
    ]


def _change(stored: StoredValidation, reference: str, chosen: str, world: str) -> float:
    """Of the median TPOT, as a share."""
    after, before = (stored.table[name]["tpot_p50_ns"] for name in (chosen, reference))
    return float(getattr(after, world) / getattr(before, world) - 1)


def _noise(stored: StoredValidation, *policies: str) -> float:
    """Half the range of repeats over the figure, of the worst."""
    tpots = [stored.table[name]["tpot_p50_ns"] for name in policies]
    return max(tpot.spread / tpot.measured for tpot in tpots)


def _policy_table(stored: StoredValidation, reference: str) -> Html:
    rows = []
    for name, figures in stored.table.items():
        change = "reference"
        if name != reference:
            change = f"{100 * _change(stored, reference, name, _MEASURED):+.1f} %"
        rows.append(
            (
                name,
                f"{stored.cores(name, _MEASURED):.2f}",
                f"{stored.cores(name, _SIMULATED):.2f}",
                _with_spread(figures["tpot_p50_ns"]),
                _plain(figures["tpot_p50_ns"].simulated),
                change,
                _with_spread(figures["itl_p99_ns"]),
                _with_spread(figures["ttft_after_idle_p50_ns"]),
            )
        )
    columns = (
        "policy", "cores", "cores, predicted", "TPOT p50 (ms)", "TPOT, predicted (ms)",
        "against reference", "ITL p99 (ms)", "TTFT after idle (ms)",
    )  # fmt: skip
    caption = (
        f"Measured on this box, {stored.n_repeats} repeats in alternating order; ± is half their "
        f"range. The reference is {reference}. Cores: CPU of scheduler and workers together."
    )
    return table(caption, columns, rows)


def _plain(value_ns: float) -> str:
    return "none" if math.isnan(value_ns) else f"{value_ns / MS:.3f}"


def _with_spread(figure: Comparison) -> str:
    if math.isnan(figure.measured):
        return "none"
    return f"{figure.measured / MS:.3f} ± {figure.spread / MS:.3f}"


def _tpot_rows(stored: StoredValidation) -> list[Judged]:
    rows = []
    for name, figures in stored.table.items():
        tpot = figures["tpot_p50_ns"]
        rows.append(_judged(name, tpot.relative_error, tpot.spread / tpot.measured, TPOT_MARGIN))
    return rows


def _cpu_rows(stored: StoredValidation) -> list[Judged]:
    return [
        _judged(f"{name}, {process}", figure.error, figure.spread, CPU_MARGIN)
        for name, figures in stored.table.items()
        for process in ("scheduler", "worker")
        for figure in (figures[f"{process}_cores"],)
    ]


def _judged(name: str, error: float, spread: float, margin: float) -> Judged:
    verdict = "inside" if abs(error) <= margin else "outside"
    return Judged(name, error, error - spread, error + spread, margin, verdict)


def _evidence(stored: StoredValidation, chosen: str) -> Html:
    plain = {
        name: {figure: vars(comparison) for figure, comparison in figures.items()}
        for name, figures in stored.table.items()
    }
    points = frontier_points(plain, stored.n_workers)
    told = "; ".join(
        f"{name}: {stored.cores(name, _MEASURED):.2f} cores, "
        f"{_plain(figures['tpot_p50_ns'].measured)} ms"
        for name, figures in stored.table.items()
    )
    parts = [
        element("h3", "What each policy costs, and what it gives"),
        picture(
            "frontier",
            "CPU against time per output token",
            f"Measured: {told}.",
            "The lower left is where one wants to be. Filled: measured, with the range of the "
            "repeats; hollow: predicted. The dotted stairs join the policies that no other beats "
            "in both.",
            lambda width_in: frontier(points, "", width_in),
        ),
        element("h3", "How right the model was"),
    ]
    for name, title, label, rows in (
        ("tpot", "Error of the predicted TPOT", "TPOT p50 (%)", _tpot_rows(stored)),
        ("cpu", "Error of the predicted CPU", "CPU (points of a core)", _cpu_rows(stored)),
    ):
        parts.append(_picture_of_errors(name, title, label, rows))
    parts += _parts_of_run(stored, chosen)
    profile = profile_of(stored.folder)
    if profile is not None:
        parts += [element("h3", "What a rest costs here"), picture_of_wake_ups(profile)]
    return joined(parts)


def _picture_of_errors(name: str, title: str, label: str, rows: list[Judged]) -> Html:
    told = "; ".join(f"{row.name}: {100 * row.error:+.1f}" for row in rows)
    return picture(
        f"errors-{name}",
        title,
        f"Predicted less measured, {label}: {told}. Margin {100 * rows[0].margin:g}.",
        "Predicted less measured; the bar is half the range of the repeats to either side, grey is "
        "the margin. Two or three repeats make no confidence interval: 'realrun validate --grid' "
        "tests for equivalence.",
        lambda width_in: agreement(rows, label, "", width_in),
    )


def _parts_of_run(stored: StoredValidation, chosen: str) -> list[Html]:
    run = stored.run_of(chosen)
    if run is None:
        return []
    parts = []
    profile, policy = profile_of(stored.folder), policy_of(run.records.meta.get("policy"))
    if profile is not None and policy is not None:
        costs = profile.wait_costs(float(stored.content["config"]["delay_price"]))
        gaps = picture_of_gaps("chosen", run.records, policy, costs)
        if gaps is not None:
            parts += [element("h3", f"How {chosen} waits"), gaps]
    step = picture_of_step("chosen", run.records)
    if step is not None:
        parts += [element("h3", f"One step with {chosen}"), step]
    return parts


def _again(stored: StoredValidation) -> Html:
    folder = stored.folder
    config = folder / "config.toml"
    config_word = quoted(config) if config.is_file() else "CONFIG.toml"
    policies = "".join(f" --policy {word}" for word in _policy_words(stored))
    return joined(
        [
            paragraph(
                "The profile holds what waiting costs on this box; the model has nothing else, and "
                "the runs use the same policies. Order and random numbers are fixed by the seed."
            ),
            commands(
                "realrun calibrate -o profile.json",
                f"realrun validate {config_word} -p profile.json{policies} -o runs/again",
                "realrun report runs/again",
            ),
            paragraph(
                f"Seed {stored.content['config'].get('seed')}; profile measured "
                f"{stored.content.get('profile_measured_at', 'at an unknown time')}. The figures "
                "are in validation.json and outcomes.parquet, every wait and step in records/."
            ),
            config_part(folder, stored.content["config"]),
            machine_part(stored.content["machine"]),
        ]
    )


def _policy_words(stored: StoredValidation) -> list[str]:
    """How each policy is named on a command line, as far as the folder says."""
    tuned = stored.folder / "policy.json"
    words = []
    for name in stored.table:
        if name in PRESETS:
            words.append(name)
        elif tuned.is_file() and _name_in(tuned) == name:
            words.append(quoted(tuned))
    return words if len(words) == len(stored.table) else []


def _name_in(policy_file: Path) -> str | None:
    try:
        return str(json.loads(policy_file.read_text())["name"])
    except (KeyError, OSError, TypeError, ValueError):
        return None


def _limits(stored: StoredValidation) -> Html:
    config, items = stored.content["config"], []
    kind = config.get("device", {}).get("kind", "echo")
    if kind not in ("cpu", "cuda"):
        items.append(
            "The device is a clock: step times are drawn, and no GPU worked. Scheduler, workers, "
            "messages and waits are real processes of this box."
        )
    items.append(
        f"{stored.n_repeats} repeats: a range says how far runs differ, not how sure a mean is. "
        "Differences within it are none."
        if stored.n_repeats > 1
        else "One repeat: nobody knows by how much the next one would differ."
    )
    items.append("It holds for this workload and this box; another one needs runs of its own.")
    items += _about_the_runs(stored)
    return bullets([*items, *limits_of_machine(stored.content["machine"])])


def _about_the_runs(stored: StoredValidation) -> list[str]:
    """Whether somebody else was on the box, and whether a wake-up was lost."""
    runs = _processes(stored)
    if not runs:
        return ["The records of the runs are not here, so nobody can tell what disturbed them."]
    n_rescued = sum(row.rescued for rows in runs for row in rows)
    told = [
        f"In {sum(map(_is_disturbed, runs))} of {len(runs)} runs a process waited for a core for "
        f"more than {100 * _DISTURBED:g} % of the time: somebody else was there, or processes "
        "outnumber cores."
    ]
    if n_rescued:
        told.append(
            f"Defect: {n_rescued} wake-ups were lost and found by a recheck; please report."
        )
    return told


def disturbed_in(folder: Path) -> str:
    """What to say of a validation in which processes waited for their cores, else nothing."""
    return _disturbed(read_validation(folder))


def _disturbed(stored: StoredValidation) -> str:
    runs = _processes(stored)
    n_disturbed = sum(map(_is_disturbed, runs))
    if not n_disturbed:
        return ""
    return (
        f"in {n_disturbed} of {len(runs)} runs on the machine a process did not get its core when "
        "it needed it, so these figures are of a busy box. Repeat them on a quiet one."
    )


def _processes(stored: StoredValidation) -> list[list[ProcessRow]]:
    """The processes of every run on the machine whose records are there."""
    return [
        read_rows(folder / "processes.parquet", ProcessRow) for folder in stored.runs("machine")
    ]


def _is_disturbed(rows: list[ProcessRow]) -> bool:
    return any(row.run_queue_ns > _DISTURBED * row.wall_ns for row in rows)
