"""Pass or fail, claim by claim, of what was measured."""

from typing import Any, Final

from realrun.gpu_check.asked import MODEL, OUTPUT, PROMPT, Cell, Row
from realrun.gpu_check.flow import Found
from realrun.gpu_check.predictions import prediction_claims
from shmsim.claims import Claim
from shmsim.inputs.catalog import gpu_names, load_gpu, load_model
from shmsim.roofline import RooflineStepTime

_MOST_ADDED: Final = 1.005
_MOST_CORES: Final = 0.3
_MOST_OVER_FLOOR: Final = 1.3
_LEAST_OF_PINNED: Final = 0.9


def claims_of(found: Found) -> list[Claim]:
    """Every claim that what was found can decide."""
    claims = []
    if found.tests >= 0:
        claims.append(_claim("gpu/tests_exit_code", float(found.tests), "code", 0.0, "<=", 1))
    by_cell = {row.cell: row for row in found.rows}
    # With other batches a product has another shape, another kernel and other roundings, and in
    # bf16 the two likeliest tokens are often equal; with the same batches everything is the same.
    batches = sorted({(row.cell.batch, row.cell.scheduling) for row in found.rows})
    for batch in batches:
        crcs = [r.tokens_crc32 for r in found.rows if (r.cell.batch, r.cell.scheduling) == batch]
        name = f"gpu/batch{batch[0]}_{batch[1]}_token_streams"
        claims.append(_claim(name, float(len(set(crcs))), "streams", 1.0, "<=", len(crcs)))
    for row in found.rows:
        cell = row.cell
        reference = by_cell.get(cell._replace(policy="spin"))
        if cell.policy != "step-ahead-rehearsed" or reference is None:
            continue
        name = f"gpu/batch{cell.batch}_{cell.scheduling}_{cell.observe}_step_ahead"
        ratio = row.tpot_p50_ns / reference.tpot_p50_ns
        claims.append(_claim(f"{name}_tpot_ratio", ratio, "ratio", _MOST_ADDED, "<=", OUTPUT))
        claims.append(_claim(f"{name}_cores", row.cores, "cores", _MOST_CORES, "<=", OUTPUT))
    claims += _claims_about_ways(by_cell)
    claims += _claims_about_the_step(found.rows)
    claims += _claims_about_copies(found.gpu.get("copies", {}))
    return claims + prediction_claims(found.rows, found.predicted)


def _claims_about_ways(by_cell: dict[Cell, Row]) -> list[Claim]:
    """The word that the GPU writes is seen no later than by asking the driver."""
    written = by_cell.get(Cell(2, "sync", "write", "spin"))
    asked = by_cell.get(Cell(2, "sync", "query", "spin"))
    if written is None or asked is None or written.device.get("observe") != "write":
        return []
    ratio = written.tpot_p50_ns / asked.tpot_p50_ns
    return [_claim("gpu/write_to_query_tpot_ratio", ratio, "ratio", _MOST_ADDED, "<=", OUTPUT)]


def _claims_about_the_step(rows: list[Row]) -> list[Claim]:
    """The step against its roofline, where the datasheet of the GPU is known."""
    for row in rows:
        name = str(row.device.get("name", "")).lower()
        known = [gpu for gpu in gpu_names() if gpu.partition("-")[0] in name]
        if row.cell.batch == 2 and known:
            law = RooflineStepTime(load_model(MODEL), load_gpu(known[0]))
            floor_ns = law.mean_ns(2, 0, 2 * (PROMPT + OUTPUT // 2))
            ratio = row.step_p50_ns / floor_ns
            return [_claim("gpu/step_over_floor", ratio, "ratio", _MOST_OVER_FLOOR, "<=", OUTPUT)]
    return []


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


def _claim(name: str, value: float, unit: str, bound: float, direction: str, n: int) -> Claim:
    return Claim(name, value, value, value, unit, bound, direction, n, 1)
