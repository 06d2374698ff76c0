"""A comparison as `realrun vllm-ab --recorder` stores it, without an engine."""

import math
from pathlib import Path

from realrun.vllm.ab import CONTROL_ARM, RECORDING, REFERENCE, Block, Plan
from realrun.vllm.control import Counters
from realrun.vllm.stored import PROFILE, TRACE_FOLDER, Stored, write_comparison
from shmsim.config import NamedPolicy
from shmsim.policies import PRESETS
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from tests.vllm.traces import write_engine

PLAN = Plan(1, False, 3, 20, 2, 1, 0.0)
MACHINE = {"affinity": [0, 1]}
ARMS = (REFERENCE, "park", "window=2ms", RECORDING, CONTROL_ARM)
TPOT_S = 4e-3
N_STEPS = 60


def block_of(start: int, arm: str, tpot_s: float = TPOT_S) -> Block:
    """One generation."""
    cores = {"scheduler": 0.9, "worker0": 0.8, "front end": 0.1}
    threads = {name: {"main": used} for name, used in cores.items()}
    counters = {"scheduler": Counters(1, 0, 0, sent=80)}
    return Block(start, arm, tpot_s, math.nan, cores, threads, 0.0, 0.0, 0, 0.01, "abc", counters)


def write_stored(folder: Path, n_by_policy: int = 0) -> Stored:
    """Two starts of an engine with one worker and three streams."""
    folder.mkdir(parents=True)
    blocks = [block_of(start, arm) for start in range(PLAN.starts) for arm in ARMS]
    stored = Stored(PLAN, blocks, {}, "vllm 0", MACHINE)
    write_comparison(folder, stored)
    write_policy(folder / "arm1.json", NamedPolicy("park", PRESETS["park"]), {})
    MachineProfile.shipped("vm-2cpu").write(folder / PROFILE)
    for start in range(PLAN.starts):
        write_engine(folder / TRACE_FOLDER / f"start{start}", N_STEPS, n_by_policy)
    return stored
