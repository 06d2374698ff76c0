"""Pass or fail, claim by claim, of what was measured."""

from typing import Any, Final

from realrun.gpu_check.asked import MODEL, OUTPUT, PROMPT, Cell, Row
from realrun.gpu_check.flow import Found
from realrun.gpu_check.predictions import SPINS_TWICE, prediction_claims, with_readers
from shmsim.claims import Claim
from shmsim.inputs.catalog import gpu_names, load_gpu, load_model
from shmsim.roofline import RooflineStepTime

_MOST_ADDED: Final = 1.005
_MOST_CORES: Final = 0.3
_MOST_CORES_FAN_OUT: Final = 0.9  # of scheduler and eight readers together; spinning takes 9
_MOST_OVER_FLOOR: Final = 1.3
_LEAST_OF_PINNED: Final = 0.9
_MOST_LATER: Final = 500.0  # ns
_MOST_ASLEEP: Final = 0.1  # of the wait; one H200's took 0.04 of 2 ms
#: Answers of `realrun.cuda.memory` that the loop rests on; the others are told.
NEEDED: Final = (
    "views_pinned",
    "same_pointer",
    "second_registration",
    "graph_write",
    "graph_copy",
    "array_interface",
)


def claims_of(found: Found) -> list[Claim]:
    """Every claim that what was found can decide."""
    claims = []
    if found.tests >= 0:
        claims.append(_claim("gpu/tests_exit_code", float(found.tests), "code", 0.0, "<=", 1))
    by_cell = {row.cell: row for row in found.rows}
    # With other batches a product has another shape, another kernel and other roundings, and in
    # bf16 the two likeliest tokens are often equal; with the same batches everything is the same.
    rows = [row for row in found.rows if row.cell.kernels == "eager"]
    batches = sorted({(row.cell.batch, row.cell.scheduling) for row in rows})
    for batch in batches:
        crcs = [r.tokens_crc32 for r in rows if (r.cell.batch, r.cell.scheduling) == batch]
        name = f"gpu/batch{batch[0]}_{batch[1]}_token_streams"
        claims.append(_claim(name, float(len(set(crcs))), "streams", 1.0, "<=", len(crcs)))
    for row in found.rows:
        cell = row.cell
        reference = by_cell.get(cell._replace(policy="spin"))
        if cell.policy != "step-ahead-rehearsed" or reference is None:
            continue
        name = f"gpu/batch{cell.batch}_{cell.scheduling}_{cell.observe}"
        name += f"{with_readers(cell.readers)}_step_ahead"
        ratio = row.tpot_p50_ns / reference.tpot_p50_ns
        claims.append(_claim(f"{name}_tpot_ratio", ratio, "ratio", _MOST_ADDED, "<=", OUTPUT))
        if cell.observe != SPINS_TWICE:
            most = _MOST_CORES if cell.readers == 1 else _MOST_CORES_FAN_OUT
            claims.append(_claim(f"{name}_cores", row.cores, "cores", most, "<=", OUTPUT))
    claims += _claims_about_ways(by_cell)
    claims += _claims_about_bulk(by_cell)
    claims += _claims_about_the_step(found.rows)
    claims += _claims_about_copies(found.gpu.get("copies", {}))
    claims += _claims_about_memory(found.gpu.get("memory", {}))
    claims += _claims_about_waits(found.gpu.get("rests", {}).get("ways", []))
    return claims + prediction_claims(found.rows, found.predicted)


def _claims_about_ways(by_cell: dict[Cell, Row]) -> list[Claim]:
    """The word that the GPU writes is seen no later than by asking the driver."""
    written = by_cell.get(Cell(2, "sync", "write", "spin"))
    asked = by_cell.get(Cell(2, "sync", "query", "spin"))
    if written is None or asked is None or written.device.get("observe") != "write":
        return []
    ratio = written.tpot_p50_ns / asked.tpot_p50_ns
    return [_claim("gpu/write_to_query_tpot_ratio", ratio, "ratio", _MOST_ADDED, "<=", OUTPUT)]


def _claims_about_bulk(by_cell: dict[Cell, Row]) -> list[Claim]:
    """Bulk from where it lies costs a step no more than bulk from pageable memory."""
    spin = Cell(2, "sync", "write", "spin")
    registered = by_cell.get(spin._replace(bulk="registered"))
    pageable = by_cell.get(spin._replace(bulk="pageable"))
    if registered is None or pageable is None:
        return []
    ratio = registered.tpot_p50_ns / pageable.tpot_p50_ns
    return [_claim("gpu/bulk_registered_to_pageable_tpot", ratio, "ratio", 1.0, "<=", OUTPUT)]


def _claims_about_the_step(rows: list[Row]) -> list[Claim]:
    """The step against its roofline, by kernels, where the datasheet of the GPU is known."""
    claims: dict[str, Claim] = {}
    for row in rows:
        name = str(row.device.get("name", "")).lower()
        known = [gpu for gpu in gpu_names() if gpu.partition("-")[0] in name]
        if row.cell.batch == 2 and known:
            law = RooflineStepTime(load_model(MODEL), load_gpu(known[0]))
            floor_ns = law.mean_ns(2, 0, 2 * (PROMPT + OUTPUT // 2))
            ratio = row.step_p50_ns / floor_ns
            ending = "" if row.cell.kernels == "eager" else f"_{row.cell.kernels}"
            name = f"gpu/step_over_floor{ending}"
            claim = _claim(name, ratio, "ratio", _MOST_OVER_FLOOR, "<=", OUTPUT)
            claims.setdefault(name, claim)
    return list(claims.values())


def _claims_about_copies(copies: dict[str, Any]) -> list[Claim]:
    """Registered memory is as fast as pinned memory, and its copies wait for nobody."""
    claims = []
    end_ns = {(memory, n_bytes): end for memory, n_bytes, _, end in copies.get("rows", [])}
    sizes = sorted(n_bytes for memory, n_bytes in end_ns if memory == "registered")
    if sizes:
        ratio = end_ns["pinned", sizes[-1]] / end_ns["registered", sizes[-1]]
        name = "gpu/h2d_registered_of_pinned_speed"
        claims.append(_claim(name, ratio, "ratio", _LEAST_OF_PINNED, ">=", 1))
    busy = [(back, n) for memory, _, _, back, n in copies.get("busy", []) if memory == "registered"]
    if busy:
        n_back, n = (sum(counts) for counts in zip(*busy, strict=True))
        name = "gpu/h2d_registered_returned_while_busy"
        claims.append(_claim(name, n_back / n, "share", 1.0, ">=", n))
    return claims


def _claims_about_memory(answers: dict[str, Any]) -> list[Claim]:
    """Shared memory is to the GPU what the hand-off takes it for."""
    kept = [name for name in NEEDED if name in answers]
    return [
        _claim(f"gpu/memory_{name}", float(answers[name] is True), "yes", 1.0, ">=", 1)
        for name in kept
    ]


def _claims_about_waits(ways: list[dict[str, Any]]) -> list[Claim]:
    """A word is seen no later than by asking the driver; to sleep in it takes next to no CPU."""
    spins = {row["way"]: row for row in ways if row["mode"] == "spin"}
    claims = []
    if "write" in spins and "query" in spins:
        later_ns = float(spins["write"]["late_ns"] - spins["query"]["late_ns"])
        n = min(spins[way]["n"] for way in ("write", "query"))
        claims.append(_claim("gpu/write_seen_after_query", later_ns, "ns", _MOST_LATER, "<=", n))
    parks = [row for row in ways if (row["way"], row["mode"]) == ("blocking", "park")]
    if parks:
        longest = max(parks, key=lambda row: row["rest_ns"])
        share = longest["cpu_ns"] / longest["rest_ns"]
        name = "gpu/blocking_wait_cpu_share"
        claims.append(_claim(name, share, "share", _MOST_ASLEEP, "<=", longest["n"]))
    return claims


def _claim(name: str, value: float, unit: str, bound: float, direction: str, n: int) -> Claim:
    return Claim(name, value, value, value, unit, bound, direction, n, 1)
