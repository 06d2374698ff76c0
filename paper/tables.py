"""Every table of the text, from the stored records; what has no record has no table."""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from paper import wording
from paper.protocol import properties
from paper.records import HERE, Records
from paper.results import QUANTITIES, VERDICTS, is_within, round_trips, worst_verdicts
from shmsim.claims import Claim
from shmsim.units import MS, US, parse_duration_ns

_NONE: Final = "--"


def all_tables(records: Records) -> dict[str, str]:
    """Every table by name, as LaTeX."""
    found = {name: make(records) for name, (needed, make) in TABLES.items() if records.has(needed)}
    return found | {
        "protocol": _protocol(),
        "failed": _claims(records, holding=False),
        "holding": _claims(records, holding=True),
    }


def tabular(columns: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table between rules; a row that is empty becomes a rule."""
    body = ["\\midrule" if not row else " & ".join(row) + r" \\" for row in rows]
    lines = [
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        " & ".join(head) + r" \\",
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def long_table(columns: str, head: Sequence[str], rows: Iterable[Sequence[str] | str]) -> str:
    """A table that may go over pages. A row of one cell is a heading, a text a paragraph."""
    n_columns = len(head)
    lines = [
        f"\\begin{{longtable}}{{{columns}}}",
        "\\toprule",
        " & ".join(head) + r" \\",
        "\\midrule",
        "\\endhead",
        "\\bottomrule",
        "\\endfoot",
    ]
    for row in rows:
        if isinstance(row, str):
            cell = f"\\multicolumn{{{n_columns}}}{{@{{}}p{{\\linewidth}}@{{}}}}{{{row}}}"
            lines.append(rf"{cell} \\ \addlinespace[2pt]")
        elif len(row) == 1:
            lines.append(f"\\multicolumn{{{n_columns}}}{{@{{}}l}}{{\\textit{{{row[0]}}}}} \\\\*")
        else:
            lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, "\\end{longtable}"]) + "\n"


def _presets(records: Records) -> str:
    """Time per token and CPU of every preset, predicted and measured."""
    folder = ("10_model_against_machine", "results")
    cells = [records.read(*folder, f"tp1_{step}", "validation.json") for step in ("2ms", "10ms")]
    rows = []
    for policy in cells[0]["table"]:
        row = [f"\\texttt{{{wording.escaped(policy)}}}"]
        for cell in cells:
            figures = cell["table"][policy]
            tpot = figures["tpot_p50_ns"]
            cores = (figures["scheduler_cores"], figures["worker_cores"])
            row += [
                wording.fixed(tpot["simulated"] / MS, 2),
                f"{wording.fixed(tpot['measured'] / MS, 2)} $\\pm$ "
                f"{wording.fixed(tpot['spread'] / MS, 2)}",
                wording.fixed(sum(c["simulated"] for c in cores), 2),
                wording.fixed(sum(c["measured"] for c in cores), 2),
                "yes" if is_within(figures) else "\\textbf{no}",
            ]
        rows.append(row)
    titles = ("model", "machine", "model", "machine", "in?")
    head = (
        "& \\multicolumn{5}{c}{steps of 2\\,ms} & \\multicolumn{5}{c}{steps of 10\\,ms} \\\\\n"
        "\\cmidrule(lr){2-6}\\cmidrule(l){7-11}\n"
        "& \\multicolumn{2}{c}{ms a token} & \\multicolumn{2}{c}{cores} & "
        "& \\multicolumn{2}{c}{ms a token} & \\multicolumn{2}{c}{cores} & \\\\\n"
        "policy"
    )
    return tabular("@{}lrrrrcrrrrc@{}", [head, *titles, *titles], rows)


def _delays(records: Records) -> str:
    """How late the scheduler sees a reply, by policy and jitter."""
    folder = ("10_model_against_machine", "results")
    rows: list[list[str]] = []
    for jitter, label in (("2pct", "2\\,\\%"), ("10pct", "10\\,\\%")):
        delays = records.read(*folder, f"jitter_{jitter}", "delays.json")
        table = records.read(*folder, f"jitter_{jitter}", "validation.json")["table"]
        if rows:
            rows.append([])
        for policy, worlds in delays.items():
            row = [label if policy == "spin" else "", f"\\texttt{{{wording.escaped(policy)}}}"]
            for world in ("machine", "model"):
                row += [wording.fixed(worlds[world][p], 1) for p in ("p50_us", "p90_us", "p99_us")]
            cores = table[policy]["scheduler_cores"]
            row += [wording.fixed(cores["measured"], 2), wording.fixed(cores["simulated"], 2)]
            rows.append(row)
    head = (
        "& & \\multicolumn{3}{c}{machine (\\textmu{}s)} & \\multicolumn{3}{c}{model (\\textmu{}s)} "
        "& \\multicolumn{2}{c}{scheduler's cores} \\\\\n"
        "\\cmidrule(lr){3-5}\\cmidrule(lr){6-8}\\cmidrule(l){9-10}\njitter"
    )
    names = ("policy", "p50", "p90", "p99", "p50", "p90", "p99", "machine", "model")
    return tabular("@{}llrrrrrrrr@{}", [head, *names], rows)


def _cells(records: Records) -> str:
    """How many cells hold, miss or cannot be told."""
    cells = records.read("bench", "results", "model_cells.json")["grid"]["cells"]
    labels = {"tpot_p50": "TPOT, median", "itl_p99": "ITL, p99", "cpu": "CPU, worst process"}
    margins = {
        "tpot_p50": "3\\,\\% or the noise",
        "itl_p99": "10\\,\\%",
        "cpu": "0.03 cores",
    }
    rows = []
    for quantity in QUANTITIES:
        row = [labels[quantity], margins[quantity]]
        for shared in (False, True):
            verdicts = [
                worst_verdicts(cell)[quantity] for cell in cells if cell["oversubscribed"] == shared
            ]
            row += [str(verdicts.count(verdict)) for verdict in VERDICTS]
        rows.append(row)
    alone, shared = (sum(c["oversubscribed"] == s for c in cells) for s in (False, True))
    head = (
        f"& & \\multicolumn{{3}}{{c}}{{a core for each process ({alone})}} "
        f"& \\multicolumn{{3}}{{c}}{{three on two cores ({shared})}} \\\\\n"
        "\\cmidrule(lr){3-5}\\cmidrule(l){6-8}\nquantity"
    )
    names = ("margin", *(("holds", "cannot tell", "misses") * 2))
    return tabular("@{}llcccccc@{}", [head, *names], rows)


#: Rows and columns of the table of round trips: systems by what they do in a pause, scenarios.
_SYSTEMS: Final = (
    ("ours", ("ours", "ours", "ours, parks", "ours")),
    ("vLLM's \\texttt{MessageQueue}", ("vLLM", "vLLM", "vLLM, parks", "vLLM")),
    ("futex in C, nothing pickled", ("futex in C",) * 4),
    ("\\texttt{multiprocessing.Pipe}", ("Pipe",) * 4),
    ("iceoryx2", ("iceoryx2",) * 4),
    ("ZeroMQ PAIR", ("ZeroMQ PAIR",) * 4),
)
_SCENARIOS: Final = ("back_to_back", "gap_2ms", "parked", "idle_5s")


def _round_trips(records: Records) -> str:
    """Round trips of a small call, by system and pause."""
    cells = round_trips(records)
    rows = []
    for label, systems in _SYSTEMS:
        row = [label]
        for system, scenario in zip(systems, _SCENARIOS, strict=True):
            cell = cells.get((system, 1, scenario, "call"))
            row.append(_spread_us(cell) if cell else _NONE)
        if any(text != _NONE for text in row[1:]):
            rows.append(row)
    n = [cells["ours", 1, "back_to_back", "call"]["n"], cells["ours", 1, "gap_2ms", "call"]["n"]]
    counts = ["calls", wording.count(n[0]), wording.count(n[1]), wording.count(n[1])]
    counts.append(wording.count(cells["ours", 1, "idle_5s", "call"]["n"]))
    head = ("\\textmu{}s", "back to back", "2\\,ms, spinning", "2\\,ms, parked", "5\\,s idle")
    return tabular("@{}lrrrr@{}", head, [*rows, [], counts])


def _spread_us(cell: dict[str, Any]) -> str:
    """The median, and the middle 80 % of the rounds' medians."""
    low, high = np.percentile(cell["round_medians_ns"], [10, 90]) / US
    return _with_range(cell["median_ns"] / US, low, high)


def _engines(records: Records) -> str:
    """Simulated steps per second of CPU, by engine and config."""
    speeds = records.read("bench", "results", "engines_cells.json")["speed"]["steps_per_s"]
    by = {tuple(name.split(", ")): values for name, values in speeds.items()}
    engines = ("simpy", "events", "recurrence", "heap")
    rows = []
    for config in dict.fromkeys(config for config, _ in by):
        cells = [by.get((config, engine)) for engine in engines]
        rows.append([wording.escaped(config), *(_rate(values) for values in cells)])
    head = ("", "SimPy", "events", "recurrence", "bare heap")
    return tabular("@{}lrrrr@{}", head, rows)


def _rate(values: list[float] | None) -> str:
    if not values:
        return _NONE
    return _with_range(float(np.median(values)) / 1e3, min(values) / 1e3, max(values) / 1e3)


def _with_range(middle: float, low: float, high: float) -> str:
    return f"{wording.number(middle)} ({wording.number(low)}--{wording.number(high)})"


def _seed_cells(records: Records) -> str:
    """The seed's cells: which were fitted, and what became of the others."""
    intervals = records.summary("02_seed_cells")["intervals"]
    labels = (
        ("tpot/sync_spin", "TPOT, sync, spinning (fitted)"),
        ("tpot/sync_wait", "TPOT, sync, asleep on a socket (fitted)"),
        ("tpot/async_spin", "TPOT, async, spinning"),
        ("tpot/async_wait", "TPOT, async, asleep on a socket"),
        ("ttft_shift_mean/sync", "TTFT, shift by sleeping, sync (mean)"),
        ("ttft_shift_mean/async", "TTFT, shift by sleeping, async (mean)"),
    )
    rows = []
    for name, label in labels:
        row = intervals[name]
        rows.append(
            [
                label,
                f"{wording.fixed(row['median'] / MS, 2)} "
                f"({wording.fixed(row['low'] / MS, 2)}--{wording.fixed(row['high'] / MS, 2)})",
                wording.fixed(row["measured"] / MS, 2),
                wording.percent(row["error"], 1, signed=True),
                "yes" if row["covers"] else "\\textbf{no}",
            ]
        )
    head = ("ms", "model (90\\,\\%)", "measured", "error", "inside?")
    return tabular("@{}lrrrc@{}", head, rows)


def _h200(records: Records) -> str:
    """Rows of an H200, measured with prototypes and predicted."""
    titles = {"batch_2": "batch 2", "batch_64": "batch 64", "eight_readers": "eight readers"}
    rows: list[list[str]] = []
    last = ""
    for row in records.summary("12_h200_tables")["rows"]:
        title = titles[row["table"]] if row["table"] != last else ""
        if last and title:
            rows.append([])
        last = row["table"]
        measured, predicted = row["measured"], row["predicted"]
        mark = " (fitted)" if row["is_fitted"] else ""
        rows.append(
            [
                title,
                wording.escaped(row["arm"]) + mark,
                f"{measured['step_us']} ({measured['low']}--{measured['high']})",
                f"{predicted['step_ns'] / US:.0f}",
                wording.percent(row["error"], 1, signed=True),
                wording.fixed(_total(measured), 2),
                wording.fixed(_total(predicted), 2),
            ]
        )
    head = (
        "& & \\multicolumn{3}{c}{step (\\textmu{}s)} & \\multicolumn{2}{c}{cores} \\\\\n"
        "\\cmidrule(lr){3-5}\\cmidrule(l){6-7}\n"
    )
    names = ("wait for words / for the GPU", "measured", "model", "error", "measured", "model")
    return tabular("@{}llrrrrr@{}", [head, *names], rows)


def _total(figures: dict[str, float]) -> float:
    """Cores of scheduler and worker together."""
    return figures.get("total") or figures["scheduler"] + figures["worker"]


def _live(records: Records) -> str:
    """The arms of a live vLLM: what they change, measured and foretold."""
    summary = records.summary("11_live_vllm_order")
    rows: list[list[str]] = []
    for table, label in (("tp1", "one worker"), ("tp2", "two workers")):
        if rows:
            rows.append([])
        for n, (name, arm) in enumerate(summary["arms"][table].items()):
            effect = summary["effects"][table].get(name)
            rows.append(
                [
                    label if n == 0 else "",
                    wording.escaped(name),
                    wording.fixed(float(np.mean(arm["ms"])), 2),
                    *(["", ""] if effect is None else _effect(effect)),
                    wording.fixed(float(np.mean(arm["engine_cores"])), 2),
                    wording.fixed(float(np.mean(arm["predicted_cores"])), 2),
                ]
            )
    head = (
        "& & ms & \\multicolumn{2}{c}{TPOT} & \\multicolumn{2}{c}{EngineCore's cores} \\\\\n"
        "\\cmidrule(lr){4-5}\\cmidrule(l){6-7}\n"
    )
    names = ("arm", "a token", "measured", "foretold", "measured", "foretold")
    return tabular("@{}llrrrrr@{}", [head, *names], rows)


def _effect(effect: dict[str, dict[str, float]]) -> list[str]:
    """Measured with its interval, and foretold."""
    measured = effect["measured"]
    value, low, high = (
        wording.percent(measured[end] - 1.0, 1, signed=True) for end in ("value", "low", "high")
    )
    return [
        f"{value} ({low} to {high})",
        wording.percent(effect["predicted"]["value"] - 1.0, 1, signed=True),
    ]


#: Of the library, those that a reader would ask for.
_LIBRARY: Final = (
    "spin", "park", "vllm-1s", "forks-2ms", "competitive", "kvm", "pas", "quantile-doze",
    "plan-hedge", "hazard-bayes", "wake-ahead", "step-ahead",
)  # fmt: skip
_PRICE: Final = "10"
_LEAST_SHOWN: Final = -0.99


def _distances(records: Records) -> str:
    """Share of the gap to the bound that policies close, by trace of the scheduler's waits."""
    traces = {
        name: trace
        for cell, content in records.contents("04_distance_to_bound").items()
        if cell != "costs"
        for name, trace in content.items()
        if not name.endswith("_worker")
    }
    rows = [
        [f"\\texttt{{{policy}}}", *(_closed(t["policies"][policy]) for t in traces.values())]
        for policy in _LIBRARY
    ]
    waits = [wording.count(trace["waits"]["n"]) for trace in traces.values()]
    medians = [wording.number(t["waits"]["p50_ns"] / US) for t in traces.values()]
    head = ["policy", *(wording.escaped(name.replace("_", " ")) for name in traces)]
    columns = "@{}l" + "r" * len(traces) + "@{}"
    return tabular(
        columns,
        head,
        [*rows, [], ["waits", *waits], ["median gap (\\textmu{}s)", *medians]],
    )


def _closed(by_price: dict[str, Any]) -> str:
    value, low, high = by_price[_PRICE]["gap_closed"]
    if value is None:
        return "no gap"
    if value < _LEAST_SHOWN:
        return "$<-99$"
    ends = "" if low is None else f" ({100 * max(low, _LEAST_SHOWN):.0f} to {100 * high:.0f})"
    return f"{100 * value:.0f}{ends}".replace("-", "$-$")


def _stalls(records: Records) -> str:
    """Share of messages that a lossy bell left to a recheck, by window and gap."""
    found = records.summary("07_lost_wakeups")["stall_share"]["lossy"]
    cells = {tuple(name.removeprefix("window ").split(", gap ")): s for name, s in found.items()}
    windows = dict.fromkeys(window for window, _ in cells)
    gaps = dict.fromkeys(gap for _, gap in cells)
    rows = [
        [_time(window), *(wording.percent(cells[window, gap]) for gap in gaps)]
        for window in windows
    ]
    return tabular("@{}l" + "r" * len(gaps) + "@{}", ["window, gap:", *map(_time, gaps)], rows)


def _time(text: str) -> str:
    return wording.duration(parse_duration_ns(text))


def _claim_row(claim: Claim) -> list[str]:
    comparison = "$\\le$" if claim.direction == "<=" else "$\\ge$"
    return [
        f"\\path{{{claim.id}}}",
        wording.quantity(claim.value, claim.unit),
        wording.interval(claim.value, claim.low, claim.high, claim.unit),
        f"{comparison} {wording.quantity(claim.bound, claim.unit)}",
        wording.count(claim.n),
    ]


def _protocol() -> str:
    """Properties of the hand-off, and what each needs."""
    head = ("property, over every interleaving with store buffers", "shown to need")
    rows = [[wording.escaped(row.holds), wording.escaped(row.needs)] for row in properties()]
    return tabular("@{}p{0.52\\linewidth}p{0.42\\linewidth}@{}", head, rows)


_CLAIM_COLUMNS: Final = "@{}>{\\raggedright\\arraybackslash}p{0.42\\linewidth}rrrr@{}"
_CLAIM_HEAD: Final = ("claim", "value", "interval", "bound", "$n$")


def _claims(records: Records, *, holding: bool) -> str:
    """The claims that hold, or those that fail, by record."""
    rows: list[list[str] | str] = []
    lessons = learnt()
    for name in records.sources:
        own = [_claim_row(c) for c in records.claims(name) if c.holds == holding]
        if own:
            rows += [[_heading(records, name)], *own]
            if not holding and name in lessons:
                rows.append(f"Learnt: {wording.escaped(lessons[name])}")
    return long_table(_CLAIM_COLUMNS, _CLAIM_HEAD, rows)


def learnt() -> dict[str, str]:
    """What failing claims have taught, by record."""
    found: dict[str, str] = tomllib.loads((HERE / "learnt.toml").read_text())
    return found


def _heading(records: Records, name: str) -> str:
    seeds = {claim.seed for claim in records.claims(name) if claim.seed}
    told = f"; seed {', '.join(map(str, sorted(seeds)))}" if seeds else ""
    return wording.escaped(f"{name}: {records.sources[name].title}{told}")


#: By name: the record it needs, and how it is made.
TABLES: Final[dict[str, tuple[str, Callable[[Records], str]]]] = {
    "presets": ("10_model_against_machine", _presets),
    "delays": ("10_model_against_machine", _delays),
    "cells": ("bench/model", _cells),
    "round_trips": ("bench/handoff", _round_trips),
    "engines": ("bench/engines", _engines),
    "seed_cells": ("02_seed_cells", _seed_cells),
    "h200": ("12_h200_tables", _h200),
    "live": ("11_live_vllm_order", _live),
    "distances": ("04_distance_to_bound", _distances),
    "stalls": ("07_lost_wakeups", _stalls),
}
