"""Every number that the text may name, by key, from the stored records.

Keys of a claim are its id, and below it ``low``, ``high``, ``range``, ``bound``, ``n``, ``percent``
and ``verdict``. The other keys are made here, record by record. A text that names an unknown key
is not built.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Final

from paper import wording
from paper.protocol import properties
from paper.records import HERE, Records
from realrun.tables import CPU_MARGIN, TPOT_MARGIN
from shmsim.claims import Claim
from shmsim.policies import PRESETS
from shmsim.units import MS, US
from shmsim.wait import block_penalty_ns

Texts = dict[str, str]

#: From the best verdict to the worst; the worst process of a cell counts.
VERDICTS: Final = ("holds", "cannot tell", "misses")
QUANTITIES: Final = ("tpot_p50", "itl_p99", "cpu")
#: A process that waited longer for its core shared it with somebody: as experiments/bench says.
_DISTURBED: Final = 0.03
_PRESET_CELLS: Final = ("tp1_2ms", "tp1_10ms", "tp2_2ms", "tp2_10ms")

_ROW_MARGIN: Final = 0.03  # of experiment 12
_WORDS: Final = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
)


def all_results(records: Records) -> Texts:
    """Every key and its text."""
    found: Texts = _listed("cited") | _listed("replaced")
    for name in records.sources:
        machine = records.machine(name)
        found[f"machine/{name}"] = wording.machine(machine)
        claims = records.claims(name)
        found[f"n_claims/{name}"] = str(len(claims))
        found[f"n_failed/{name}"] = str(sum(not claim.holds for claim in claims))
        for claim in claims:
            found |= of_claim(claim)
        seeds = sorted({claim.seed for claim in claims if claim.seed})
        found[f"seed/{name}"] = ", ".join(map(str, seeds)) or "none"
    for name, make in _MAKERS.items():
        if records.has(name):
            found |= make(records)
    claims = [claim for name in records.sources for claim in records.claims(name)]
    n_failed = sum(not claim.holds for claim in claims)
    return found | {
        "protocol/tests": str(sum(len(each.tests) for each in properties())),
        "claims/n": str(len(claims)),
        "claims/holding": str(len(claims) - n_failed),
        "claims/failed": str(n_failed),
        "records/n": str(len(records.sources)),
        "policies/n": str(len(PRESETS)),
    }


def held(records: Records) -> dict[str, bool]:
    """Which claims hold, by id."""
    return {claim.id: claim.holds for name in records.sources for claim in records.claims(name)}


def of_claim(claim: Claim) -> Texts:
    """The keys of one claim."""
    unit = claim.unit
    found = {
        "": wording.quantity(claim.value, unit),
        "/low": wording.quantity(claim.low, unit),
        "/high": wording.quantity(claim.high, unit),
        "/range": wording.interval(claim.value, claim.low, claim.high, unit),
        "/bound": wording.quantity(claim.bound, unit),
        "/n": wording.count(claim.n),
        "/verdict": "holds" if claim.holds else "fails",
    }
    if unit in ("ratio", "share"):
        found["/percent"] = wording.percent(claim.value, 1)
        found["/fixed"] = wording.fixed(claim.value, 2)
    return {f"{claim.id}{ending}": text for ending, text in found.items()}


def in_words(n: int) -> str:
    """A small count as a word."""
    return _WORDS[n] if n < len(_WORDS) else wording.count(n)


def worst_verdicts(cell: Mapping[str, Any]) -> dict[str, str]:
    """The verdict of a cell on each quantity: of its processes the worst one counts."""
    found = dict.fromkeys(QUANTITIES, VERDICTS[0])
    for finding in cell["findings"]:
        quantity = finding["quantity"]
        found[quantity] = max(found[quantity], finding["verdict"], key=VERDICTS.index)
    return found


def is_within(figures: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether a prediction of experiment 10 is within its margins."""
    tpot, *cores = (figures[f] for f in ("tpot_p50_ns", "scheduler_cores", "worker_cores"))
    return abs(tpot["simulated"] / tpot["measured"] - 1) <= TPOT_MARGIN and all(
        abs(c["simulated"] - c["measured"]) <= CPU_MARGIN for c in cores
    )


def _listed(kind: str) -> Texts:
    """What ``cited.toml`` or ``replaced.toml`` lists: numbers that no stored record holds."""
    listed = tomllib.loads((HERE / f"{kind}.toml").read_text())
    return {f"{kind}/{name}": entry["text"] for name, entry in listed.items()}


def _calibration(records: Records) -> Texts:
    profile = records.profile("01_calibration", "results", "profile.json")
    probe = records.read("01_calibration", "results", "cache_probe.json")["by_rest_ns"]
    found = {
        f"rest/{name}/{at}": wording.duration(profile.costs[name].at(0.5, ns))
        for name in (
            "wake_latency", "timer_overshoot", "park_cpu", "slow_after_park", "slow_after_spin",
            "slow_after_doze", "slow_after_rehearsal",
        )
        for at, ns in (("2ms", 2 * MS), ("10ms", 10 * MS), ("100ms", 100 * MS))
    }  # fmt: skip
    found["calibration/measured_at"] = wording.moment(profile.measured_at)
    found["penalty/r10"] = wording.duration(block_penalty_ns(profile.wait_costs(10.0)))
    for rest, at in (("0", "at once"), ("10000000", "10ms"), ("100000000", "100ms")):
        found[f"probe/spinning/{at}"] = wording.duration(probe["16 KiB, spinning"][rest])
    return found


def _presets(records: Records) -> Texts:
    folder = ("10_model_against_machine", "results")
    found: Texts = {}
    n_within = n_all = 0
    for cell in _PRESET_CELLS:
        stored = records.read(*folder, cell, "validation.json")
        table, workers = stored["table"], stored["config"]["engine"]["workers"]
        within = sum(map(is_within, table.values()))
        if workers == 1:
            n_within, n_all = n_within + within, n_all + len(table)
        found[f"presets/{cell}/within"] = str(within)
        found[f"presets/{cell}/n"] = str(len(table))
        found[f"presets/{cell}/repeats"] = in_words(stored["config"]["repeats"])
        for policy, figures in table.items():
            tpot = figures["tpot_p50_ns"]
            cores = figures["scheduler_cores"]["measured"]
            cores += workers * figures["worker_cores"]["measured"]
            key = f"presets/{cell}/{policy}"
            found[f"{key}/tpot"] = f"{wording.fixed(tpot['measured'] / MS, 2)}\\,ms"
            error = tpot["simulated"] / tpot["measured"] - 1
            found[f"{key}/error"] = wording.percent(error, 1, signed=True)
            found[f"{key}/cores"] = wording.number(cores, 2)
            spin = table["spin"]["tpot_p50_ns"]["measured"]
            found[f"{key}/to_spin"] = wording.percent(tpot["measured"] / spin - 1, 1, signed=True)
    found |= {"presets/tp1/within": str(n_within), "presets/tp1/n": str(n_all)}
    found["presets/measured_at"] = wording.moment(
        records.profile(*folder, "profile.json").measured_at
    )
    for jitter in ("2pct", "10pct"):
        delays = records.read(*folder, f"jitter_{jitter}", "delays.json")
        table = records.read(*folder, f"jitter_{jitter}", "validation.json")["table"]
        for policy, worlds in delays.items():
            key = f"jitter/{jitter}/{policy}"
            for p in ("p50", "p90", "p99"):
                found[f"{key}/{p}"] = wording.duration(worlds["machine"][f"{p}_us"] * US)
            found[f"{key}/n"] = wording.count(worlds["machine"]["n"])
            share = table[policy]["scheduler_cores"]["measured"]
            found[f"{key}/scheduler"] = wording.percent(share)
    return found


def _validation(records: Records) -> Texts:
    cells = records.read("bench", "results", "model_cells.json")["grid"]["cells"]
    found: Texts = {"cells/n": str(len(cells)), "cells/tapes": in_words(len(cells[0]["tapes"]))}
    runs = [(cell, run) for cell in cells for tape in cell["tapes"] for run in tape["machine"]]
    found["cells/runs"] = wording.count(len(runs))
    alone = [run for cell, run in runs if not cell["oversubscribed"]]
    disturbed = sum(run["queue_share"] > _DISTURBED for run in alone)
    found["cells/alone/runs"], found["cells/alone/disturbed"] = str(len(alone)), str(disturbed)
    errors: dict[str, list[float]] = {"sync": [], "async": []}
    for cell in cells:
        finding = next(f for f in cell["findings"] if f["quantity"] == "tpot_p50")
        errors[cell["config"]["engine"]["scheduling"]].append(finding["error"]["value"])
    for scheduling, values in errors.items():
        key = f"cells/{scheduling}"
        found[f"{key}/n"] = str(len(values))
        found[f"{key}/too_low"] = str(sum(value < 0 for value in values))
        found[f"{key}/median"] = wording.percent(median(values), 1, signed=True)
        found[f"{key}/lowest"] = wording.percent(min(values), 1, signed=True)
        found[f"{key}/largest"] = wording.percent(max(map(abs, values)), 1)
    for group, belongs in _GROUPS.items():
        chosen = [cell for cell in cells if belongs(cell)]
        found[f"cells/{group}/n"] = str(len(chosen))
        for quantity in QUANTITIES:
            counts = Counter(worst_verdicts(cell)[quantity] for cell in chosen)
            for verdict in VERDICTS:
                key = f"cells/{group}/{quantity}/{verdict.replace(' ', '_')}"
                found[key] = str(counts[verdict])
    return found


_GROUPS: Final[dict[str, Callable[[Any], bool]]] = {
    "all": lambda _: True,
    "alone": lambda cell: not cell["oversubscribed"],
    "shared": lambda cell: bool(cell["oversubscribed"]),
}


def round_trips(records: Records) -> dict[tuple[str, int, str, str], dict[str, Any]]:
    """The cells of the hand-off bench, by system, readers, scenario and payload."""
    cells = records.read("bench", "results", "handoff_cells.json")["cells"]
    return {(c["system"], c["n_readers"], c["scenario"], c["payload"]): c for c in cells}


def _handoff(records: Records) -> Texts:
    cells = round_trips(records)
    found: Texts = {}
    for (system, n_readers, scenario, payload), cell in cells.items():
        if n_readers == 1 and payload == "call":
            slug = re.sub(r"[^a-z0-9]+", "_", system.lower()).strip("_")
            found[f"round_trip/{slug}/{scenario}"] = wording.duration(cell["median_ns"])
    big = "numpy/134217728"
    for name, key in (
        ("ours", ("ours, 128 MiB", 2, "handoff", "call")),
        ("copy", ("ours, 128 MiB", 2, "memcpy", "call")),
        ("vllm", ("vLLM", 2, "payload", big)),
    ):
        if key in cells:
            found[f"bulk/{name}"] = wording.duration(cells[key]["median_ns"])
    return found


def _seed_cells(records: Records) -> Texts:
    summary = records.summary("02_seed_cells")
    fit, control = summary["fit"], summary["control"]
    found = {
        "seed_cells/host_scale": wording.number(fit["host_scale"], 2),
        "seed_cells/wake_scale": wording.number(fit["wake_scale"], 2),
        "seed_cells/hidden": wording.duration(control["hidden_ns"]),
        "seed_cells/kernels": wording.duration(control["kernels_ns"]),
    }
    for name, row in summary["intervals"].items():
        found[f"seed_cells/{name}/predicted"] = wording.duration(row["median"])
        found[f"seed_cells/{name}/measured"] = wording.duration(row["measured"])
        found[f"seed_cells/{name}/error"] = wording.percent(row["error"], 1, signed=True)
    return found


def _live(records: Records) -> Texts:
    summary = records.summary("11_live_vllm_order")
    found = {
        f"live/{order['table']}/{order['quantity']}/{key}": str(order[key])
        for order in summary["orders"]
        for key in ("n_right", "n_pairs")
    }
    for table, effects in summary["effects"].items():
        for arm, effect in effects.items():
            for world in ("measured", "predicted"):
                changed = effect[world]["value"] - 1.0
                found[f"live/{table}/{arm}/{world}"] = wording.percent(changed, 1, signed=True)
        found[f"live/{table}/n_starts"] = str(
            len(next(iter(summary["arms"][table].values()))["ms"])
        )
    return found


def _h200(records: Records) -> Texts:
    summary = records.summary("12_h200_tables")
    rows = [row for row in summary["rows"] if not row["is_fitted"]]
    errors = [abs(row["error"]) for row in rows]
    n_missing = sum(error > _ROW_MARGIN for error in errors)
    return {
        "h200_rows/n": str(len(rows)),
        "h200_rows/missing": str(n_missing),
        "h200_rows/worst": wording.percent(max(errors), 1),
        "h200_rows/kill": "met" if n_missing > len(rows) / 3 else "not met",
        "h200_rows/host_scale": wording.number(summary["fit"]["host_scale"], 2),
        "h200_rows/slow_scale": wording.number(summary["fit"]["slow_scale"], 2),
    }


def _distances(records: Records) -> Texts:
    """On how many of the scheduler's traces a policy is the best, at the price of the text."""
    traces = {
        name: trace["policies"]
        for cell, content in records.contents("04_distance_to_bound").items()
        if cell != "costs"
        for name, trace in content.items()
        if not name.endswith("_worker")
    }
    best = Counter(max(policies, key=_closed_by(policies)) for policies in traces.values())
    found = {"distance/traces": str(len(traces))}
    for policy in ("step-ahead", "wake-ahead", "quantile-doze", "hazard-bayes"):
        found[f"distance/best_on/{policy}"] = str(best[policy])
    return found


def _closed_by(policies: Mapping[str, Any]) -> Callable[[str], float]:
    """Which share of the gap a policy closes, at the price of the text."""
    return lambda name: float(policies[name]["10"]["gap_closed"][0] or 0.0)


def _stalls(records: Records) -> Texts:
    """What the table of stalls is over."""
    plan = records.plan("07_lost_wakeups")
    return {
        "stalls/repeats": in_words(plan["repeats"]),
        "stalls/messages": wording.count(plan["lossy"]["messages"]),
        "stalls/spread": wording.percent(_largest_range(records), 1),
    }


def _largest_range(records: Records) -> float:
    """Of the shares of messages that stalled, over the repeats of a window and a gap."""
    shares: dict[str, list[float]] = {}
    for name, found in records.contents("07_lost_wakeups").items():
        if name.startswith("lossy, window"):
            cell = name.rpartition(", ")[0]
            shares.setdefault(cell, []).append(found["stalls"] / found["messages"])
    return max(max(repeats) - min(repeats) for repeats in shares.values())


def _ablations(records: Records) -> Texts:
    summary = records.summary("05_stepahead_ablations")
    ratio = summary["decode"]["machine"]["spin"]["tpot_ratio"][0]
    return {"ablations/decode/over_spin": wording.percent(1 / ratio - 1, 1, signed=True)}


_MAKERS: Final[dict[str, Callable[[Records], Texts]]] = {
    "01_calibration": _calibration,
    "02_seed_cells": _seed_cells,
    "04_distance_to_bound": _distances,
    "05_stepahead_ablations": _ablations,
    "07_lost_wakeups": _stalls,
    "10_model_against_machine": _presets,
    "11_live_vllm_order": _live,
    "12_h200_tables": _h200,
    "bench/handoff": _handoff,
    "bench/model": _validation,
}
