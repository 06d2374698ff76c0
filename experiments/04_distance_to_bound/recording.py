"""Runs the real loop once, and takes the waits of its scheduler and its first worker."""

from pathlib import Path
from typing import Any, Final

from realrun.run import make_spec, run_once
from runner import Skipped
from shmsim.bounds.recorded import recorded_waits
from shmsim.bounds.trace import WaitTrace
from shmsim.config import RunConfig, parse_config
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV

HERE: Final = Path(__file__).parent


def config_of(plan: dict[str, Any], name: str) -> RunConfig:
    """The config of one recording."""
    sections = {key: value for key, value in plan["record"][name].items() if key != "worker"}
    return parse_config({**sections, "run": {"seed": plan["seed"]}}, HERE)


def recorded(plan: dict[str, Any], name: str, profile: MachineProfile) -> dict[str, WaitTrace]:
    """The traces of one recording, by name.

    Raises
    ------
    Skipped
        If the requests to serve are not on this machine.
    """
    config = config_of(plan, name)
    if config.workload.kind == "trace" and not Path(config.workload.trace).exists():
        raise Skipped(f"there is no {config.workload.trace}; docs/inputs.md says where to get it")
    records = run_once(make_spec(config, PRESETS[plan["recorder"]], profile, 0))
    call = config.engine.calls_per_step - 1
    found = {name: recorded_waits(records, "scheduler", SCHEDULER_RECV, call)}
    if plan["record"][name].get("worker"):
        found[f"{name}_worker"] = recorded_waits(records, "worker0", WORKER_RECV, 0)
    return found
