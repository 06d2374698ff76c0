"""Ways to wait beside real decode steps, in blocks A B B A, on the GPUs of one node."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from rich.table import Table

from realrun.causes import reason_in
from realrun.gpu_check import asked
from realrun.model.geometry import check_shares, geometry_of, model_of
from realrun.run import make_spec, run_once
from runner import Cell, Content, Context, Experiment, Findings, Plan, Results, Skipped
from runner.profiles import profile_of
from shmsim.claims import Claim
from shmsim.config import DeviceConfig, RunConfig, parse_policy
from shmsim.console import console

_GPUS: Final = "gpus"
#: A B B A: a drift that goes on evenly meets both alike.
_ORDER: Final = (False, True, True, False)
_CLOCK: Final = "clocks.sm"
_FELL: Final = 0.95
_COUNT: Final = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


class Block(NamedTuple):
    """A policy against the reference, A B B A.

    Parameters
    ----------
    ratio
        TPOT of the policy over that of the reference, means of two runs each.
    cores
        Of scheduler and workers with the policy.
    fell, unknown
        In how many of the four runs the clock of the GPU fell, and in how many nobody can say.
    """

    ratio: float
    cores: float
    fell: int
    unknown: int


def quick(plan: Plan) -> Plan:
    """The same in little: one block of two arms at batch 2."""
    return plan | {"pairs": 1, "policies": plan["policies"][:2], "run": plan["run"][:1]}


def world_of(plan: Plan) -> str:
    """Whether workers have GPUs."""
    return "machine" if plan["device"]["kind"] == "cuda" else "emulated"


def cells(plan: Plan) -> Iterator[Cell]:
    """How many GPUs there are; then every block, in rounds."""
    world = world_of(plan)
    yield Cell(_GPUS, world)
    for pair in range(plan["pairs"]):
        for run_ in plan["run"]:
            for policy in plan["policies"]:
                settings = {"run": run_["name"], "policy": policy, "pair": pair}
                yield Cell(f"{run_['name']}, {policy}, {pair}", world, settings)


def run(cell: Cell, context: Context) -> Content:
    """Count GPUs, or run one block."""
    plan = context.plan
    if cell.name == _GPUS:
        return {"count": _count_gpus() if world_of(plan) == "machine" else 1}
    n_gpus = context.found.get(_GPUS, {"count": 0})["count"]
    table = next(t for t in plan["run"] if t["name"] == cell.settings["run"])
    if table["workers"] == 0 and n_gpus < 2:
        raise Skipped(f"it asks for every GPU of several, and there are {n_gpus}")
    if n_gpus == 0:
        raise Skipped("no GPU that torch can use; the first cell says more")
    workers = table["workers"] or n_gpus
    _check_workers(plan, workers)
    profile = profile_of(context)
    arms = [plan["reference"], cell.settings["policy"]]
    rows = []
    for i, is_policy in enumerate(_ORDER):
        name = arms[is_policy]
        context.progress(name, i / len(_ORDER))
        way = asked.Cell(table["batch"], table["scheduling"], "write", name)
        config = config_of(plan, way, workers)
        spec = make_spec(config, parse_policy(name).policy, profile, 0)
        records = run_once(spec, logs=context.folder / "logs")
        row = asked.row_of(way, records)._asdict() | {"is_policy": is_policy}
        del row["cell"]
        # Nothing that no GPU computed is ever taken for measured.
        emulated = bool(records.meta["emulated"]) or config.device.kind != "cuda"
        rows.append({**row, "emulated": emulated})
    return {"rows": rows, "emulated": any(row["emulated"] for row in rows)}


def config_of(plan: Plan, way: asked.Cell, workers: int) -> RunConfig:
    """The run of `realrun gpu-check`, on so many GPUs."""
    config = asked.config_of(way, _device_of(plan))
    return replace(config, engine=replace(config.engine, workers=workers))


def _device_of(plan: Plan) -> DeviceConfig:
    kind, model = plan["device"]["kind"], plan["device"]["model"]
    return DeviceConfig(kind=kind, model=model) if kind == "cuda" else DeviceConfig()


def _check_workers(plan: Plan, workers: int) -> None:
    """Leave out so many workers as cannot share the model.

    Raises
    ------
    Skipped
        Says what does not divide.
    """
    device = _device_of(plan)
    if device.kind != "cuda":
        return
    try:
        check_shares(geometry_of(model_of(device)), workers)
    except ValueError as error:
        raise Skipped(f"{error}; --gpus 0,1 chooses two of those here") from None


def _count_gpus() -> int:
    """In a process of its own: this one shall have no context on a GPU.

    Raises
    ------
    Skipped
        If there is none; says what torch says.
    """
    done = subprocess.run(
        [sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = reason_in(done.stderr) or "it said nothing"
        raise Skipped(f"torch cannot be asked for GPUs: {said}")
    n = int(done.stdout)
    if n == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f"; CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else ""
        raise Skipped(f"torch finds no GPU here{hint}")
    return n


def block_of(rows: list[Content]) -> Block:
    """The figures of one block."""
    tpot: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        tpot[row["is_policy"]].append(row["tpot_p50_ns"])
    cores = [row["cores"] for row in rows if row["is_policy"]]
    ratio = float(np.mean(tpot[True]) / np.mean(tpot[False]))
    falls = [fell(row["device"]) for row in rows]
    return Block(ratio, float(np.mean(cores)), falls.count(True), falls.count(None))


def fell(device: dict[str, Any]) -> bool | None:
    """Whether the clock of a GPU fell during a run; None where nobody can say.

    nvidia-smi may not be there, and says ``[N/A]`` of a part of a GPU (MIG, vGPU).
    """
    clocks = (device.get(f"clocks_{when}", {}).get(_CLOCK, "") for when in ("before", "after"))
    try:
        before, after = map(float, clocks)
    except ValueError:
        return None
    return after < _FELL * before


def report(results: Results, _out: Path) -> Findings:
    """Tell each arm against the reference, the noise first."""
    plan = results.plan
    blocks: dict[tuple[str, str], list[Block]] = {}
    first: dict[str, Content] = {}
    for content in results.of(world_of(plan)).values():
        for row in content.get("rows", [])[:1]:
            first.setdefault("device", row["device"])
    for table in plan["run"]:
        for policy in plan["policies"]:
            for pair in range(plan["pairs"]):
                content = results.content.get(f"{table['name']}, {policy}, {pair}")
                if content is not None:
                    place = blocks.setdefault((table["name"], policy), [])
                    place.append(block_of(content["rows"]))
    if not blocks:
        return Findings([], {"blocks": [], "device": {}})
    told = Table("run", "policy", "TPOT over the reference", "range", "cores", "clock fell")
    for (name, policy), found in blocks.items():
        ratios = [block.ratio for block in found]
        told.add_row(
            name,
            policy + (" (A/A)" if policy == plan["reference"] else ""),
            f"{np.mean(ratios):.4f}",
            f"{min(ratios):.4f} to {max(ratios):.4f}",
            f"{np.mean([block.cores for block in found]):.2f}",
            _falls(found),
        )
    console.print(told)
    if world_of(plan) == "emulated":
        console.print("emulated: no GPU computed any of these")
    summary = {
        "blocks": [
            {"run": name, "policy": policy, "blocks": [block._asdict() for block in found]}
            for (name, policy), found in blocks.items()
        ],
        **first,
    }
    # What was emulated claims nothing about GPUs.
    found = claims(plan, blocks) if world_of(plan) == "machine" else []
    return Findings(found, summary)


def _falls(blocks: list[Block]) -> str:
    """In how many of the runs whose clock is known it fell."""
    n_known = sum(len(_ORDER) - block.unknown for block in blocks)
    return f"{sum(block.fell for block in blocks)} of {n_known}" if n_known else "nobody can say"


def claims(plan: Plan, blocks: dict[tuple[str, str], list[Block]]) -> list[Claim]:
    """The predictions that numbers decide, of the first run of the plan."""
    name, reference = plan["run"][0]["name"], plan["reference"]
    found = []

    def claim(key: str, values: list[float], unit: str, bound: float) -> None:
        middle = float(np.mean(values))
        ends = min(values), max(values)
        found.append(
            Claim(f"gpu/{key}", middle, *ends, unit, bound, "<=", len(values), plan["seed"])
        )

    noise = 0.0
    if (name, reference) in blocks:
        away = [abs(block.ratio - 1.0) for block in blocks[name, reference]]
        noise = float(np.mean(away))
        claim("a_a_tpot_ratio_from_1", away, "ratio", 0.01)
    ours = blocks.get((name, "step-ahead-rehearsed"))
    if ours is not None:
        claim("step_ahead_tpot_over_spin", [b.ratio for b in ours], "ratio", 1.005 + noise)
        claim("step_ahead_cores", [b.cores for b in ours], "cores", 0.3)
    n_known = [len(_ORDER) - block.unknown for found_ in blocks.values() for block in found_]
    n_fell = [block.fell for found_ in blocks.values() for block in found_]
    every = [n / known for n, known in zip(n_fell, n_known, strict=True) if known]
    if every:
        claim("clock_fell_share", every, "share", 0.25)
    return found


EXPERIMENT: Final = Experiment(cells, run, report, quick)
