"""A comparison of ways to wait as a folder, which can be judged again.

``tp1-async-1.json`` has every generation, ``arm1.json`` and so on the policies, ``trace/start0``
and so on what was recorded of each start.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.host import machine_facts
from realrun.vllm.ab import CONTROL_ARM, LOG, RECORDING, REFERENCE, Block, Plan
from realrun.vllm.arms import WINDOW
from realrun.vllm.control import Counters
from realrun.vllm.engine import MAIN
from realrun.vllm.trace import SUFFIX
from realrun.vllm.traces import read_header
from shmsim.policies import PRESETS, GraceThenPark
from shmsim.policy_file import read_policy
from shmsim.profile import MachineProfile
from shmsim.units import parse_duration_ns
from shmsim.wait import TYPICAL_COSTS, WaitPolicy
from shmsim.whole import write_whole

TRACE_FOLDER: Final = "trace"
PROFILE: Final = "profile.json"
COSTS: Final = "costs.json"
PREDICTIONS: Final = "predictions.json"
_CELLS: Final = "tp*.json"
_ARMS: Final = "arm*.json"
_TRACES: Final = f"{TRACE_FOLDER}/start*/*{SUFFIX}"


class Stored(NamedTuple):
    """A comparison.

    Parameters
    ----------
    plan, blocks, disturbed
        As of `realrun.vllm.ab.Comparison`.
    engine
        Which vLLM; ``"unknown"`` if neither the comparison nor a record beside it says.
    machine
        Facts about the box.
    """

    plan: Plan
    blocks: list[Block]
    disturbed: dict[int, str]
    engine: str
    machine: dict[str, Any]


def clear(folder: Path) -> None:
    """Remove what an earlier comparison left here, so that nobody takes it for part of the next.

    Raises
    ------
    ValueError
        If there are policy files, and nothing says that they are those of a comparison.
    """
    ours = any(folder.glob(_CELLS)) or (folder / LOG).exists()
    theirs = sorted(folder.glob(_ARMS))
    if theirs and not ours:
        raise ValueError(
            f"{theirs[0]} is no file of an earlier comparison, and would be overwritten; name "
            "another folder with --out"
        )
    for pattern in _CELLS, _ARMS, _TRACES, PROFILE, COSTS, PREDICTIONS:
        for path in folder.glob(pattern):
            path.unlink()


def write_costs(folder: Path, profile: MachineProfile | None, delay_price: float) -> Path:
    """Store what policies are told: costs of a profile, or typical ones, and the price of delay."""
    told = TYPICAL_COSTS if profile is None else profile.wait_costs(delay_price)
    path = (folder / COSTS).absolute()
    write_whole(path, json.dumps(told._replace(delay_price=delay_price)._asdict()))
    return path


def write_comparison(folder: Path, stored: Stored) -> None:
    """Store plan and blocks; policies and records are in the folder already."""
    rows = [{**block._asdict(), "moved": _moved(block)} for block in stored.blocks]
    content = {**stored._asdict(), "plan": stored.plan._asdict(), "blocks": rows}
    path = folder / f"{stored.plan.cell}.json"
    write_whole(path, json.dumps(content, indent=1) + "\n")


def _moved(block: Block) -> dict[str, dict[str, int]]:
    return {name: counters._asdict() for name, counters in block.moved.items()}


def read_comparison(folder: Path) -> Stored:
    """Read what `write_comparison` stored.

    Raises
    ------
    ValueError
        If there is none, or more than one, or it is damaged.
    """
    paths = list(folder.glob(_CELLS))
    if len(paths) != 1:
        raise ValueError(
            f"{folder} holds {len(paths)} comparisons ({_CELLS}), not 1; name a folder that "
            "'realrun vllm-ab --out' was given"
        )
    try:
        content = json.loads(paths[0].read_text())
        blocks = [_read_block(row) for row in content["blocks"]]
        plan = Plan(**content["plan"])
        # The first ones left out by hand whom others disturbed.
        disturbed = {int(start): why for start, why in content.get("disturbed", {}).items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{paths[0]} is no comparison of 'realrun vllm-ab': {error!r}") from None
    # The first ones did not say where they ran, nor in which vLLM; they are judged there.
    machine = content.get("machine") or machine_facts()
    engine = content.get("engine") or _recorded_engine(folder)
    return Stored(plan, blocks, disturbed, engine, machine)


def _read_block(row: dict[str, Any]) -> Block:
    counters = {name: Counters(**counted) for name, counted in row["moved"].items()}
    known = {"stolen_cores": math.nan, **row, "moved": counters}
    if "main_share" in row:  # as stored before threads had names, and tokens a hash
        main_share = known.pop("main_share")
        del known["tokens"]
        cores = row["cores"]["scheduler"]
        threads = {MAIN: main_share * cores, "others": (1 - main_share) * cores}
        known |= {"threads": {"scheduler": threads}, "tokens_sha256": ""}
    return Block(**known)


def _recorded_engine(folder: Path) -> str:
    for path in sorted(folder.glob(_TRACES)):
        return str(read_header(path)["vllm"])
    return "unknown"


def arm_policies(folder: Path, arms: Iterable[str]) -> dict[str, WaitPolicy]:
    """What each arm is in the model, by its name.

    vLLM's own waiting is a window of 1 s, ``window=2ms`` one of 2 ms. In the model they ring the
    bell of the profile, not vLLM's socket.

    Raises
    ------
    ValueError
        If the folder does not have the policy of an arm.
    """
    named = [read_policy(path) for path in folder.glob(_ARMS)]
    policies: dict[str, WaitPolicy] = {policy.name: policy.policy for policy in named}
    policies |= dict.fromkeys((REFERENCE, CONTROL_ARM, RECORDING), PRESETS["vllm-1s"])
    found: dict[str, WaitPolicy] = {}
    for arm in arms:
        if arm.startswith(WINDOW):
            found[arm] = GraceThenPark(parse_duration_ns(arm.removeprefix(WINDOW)))
        elif arm in policies:
            found[arm] = policies[arm]
        else:
            raise ValueError(f"{folder} has no policy file ({_ARMS}) of arm {arm!r}")
    return found


def has_records(folder: Path) -> bool:
    """Whether something was recorded of vLLM's own waiting."""
    return any(folder.glob(_TRACES))
