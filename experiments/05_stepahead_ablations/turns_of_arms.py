"""The arms in runs of the model and of the machine: figures of each, turn by turn."""

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from arms import ARMS, charged_alike

from realrun.calibrate import calibrate
from realrun.run import make_spec, run_once
from runner import Context, Plan
from shmsim.config import RunConfig, parse_config
from shmsim.metrics import cores_of, summarize, wait_delay_ns
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.sim.run import simulate
from shmsim.wait import SCHEDULER_RECV

HERE: Final = Path(__file__).parent


def config_of(plan: Plan, name: str) -> RunConfig:
    """The config of one set of runs."""
    run = plan["runs"][name]
    sections = {key: run[key] for key in ("device", "workload")}
    return parse_config({**sections, "run": {"seed": plan["seed"]}})


def doorbells(plan: Plan) -> list[str]:
    """Those that the arms sleep on."""
    names = {arm for run in plan["runs"].values() for arm in run["arms"]}
    return sorted({ARMS[name].doorbell for name in names}, reverse=True)


def costs_of(doorbell: str, context: Context) -> dict[str, Any]:
    """Calibrate with a doorbell; the profile stays in the folder.

    Without replicates policies are told the costs that came along, of another box and the futex:
    StepAhead learns from its own waits what it needs of them.
    """
    replicates = context.plan["replicates"]
    if replicates:
        profile = calibrate(context.progress, doorbell, replicates)
    else:
        shipped = MachineProfile.shipped(context.plan["profile"])
        profile = replace(shipped, machine={**shipped.machine, "doorbell": doorbell})
    profile.write(_profile_path(doorbell, context))
    return dict(profile.wait_costs(10.0)._asdict())


def model_turns(name: str, context: Context) -> dict[str, Any]:
    """Every arm in the model, where the profile has its doorbell: a list of turns."""
    plan = context.plan
    profile = charged_alike(MachineProfile.shipped(plan["profile"]))
    config, turns = config_of(plan, name), plan["runs"][name]["turns"]
    arms = [arm for arm in plan["runs"][name]["arms"] if ARMS[arm].doorbell == "futex"]
    found = []
    for turn in range(turns):
        row = {}
        for index, arm in enumerate(arms):
            context.progress(f"model, {arm}", (turn + index / len(arms)) / turns)
            priced = replace(config, delay_price=ARMS[arm].price)
            row[arm] = figures(simulate(priced, ARMS[arm].policy, profile, turn))
        found.append(row)
    return {"turns": found}


def machine_turn(name: str, turn: int, context: Context) -> dict[str, Any]:
    """Every arm once, for real, in an order of this turn."""
    plan = context.plan
    config, arms = config_of(plan, name), list(plan["runs"][name]["arms"])
    random.Random(f"{plan['seed']} {name} {turn}").shuffle(arms)
    found = {}
    with _importable():
        for index, arm in enumerate(arms):
            policy, price, doorbell = ARMS[arm]
            context.progress(arm, index / len(arms))
            profile = MachineProfile.read(_profile_path(doorbell, context))
            handoff = replace(config.handoff, doorbell=doorbell)
            priced = replace(config, delay_price=price, handoff=handoff)
            found[arm] = figures(run_once(make_spec(priced, policy, profile, turn)))
    return found


def figures(records: RunRecords) -> dict[str, float]:
    """What a run comes to; the delay is that of the scheduler's waits for the end of a step."""
    summary = summarize(records)
    delay_ns = wait_delay_ns(records, SCHEDULER_RECV, call=1)
    return {
        "tpot_ns": round(summary.tpot.mean),
        "itl_p99_ns": round(summary.itl.p99),
        "cores": round(sum(cores_of(records).values()), 4),
        "delay_p50_ns": round(float(np.median(delay_ns))),
        "delay_p99_ns": round(float(np.quantile(delay_ns, 0.99))),
    }


def _profile_path(doorbell: str, context: Context) -> Path:
    return context.folder / f"profile-{doorbell}.json"


class _importable:  # noqa: N801 - used like a function
    """While this lasts, processes started find the ablated policies, which lie in this folder."""

    def __enter__(self) -> None:
        """Put the folder in front."""
        self._before = os.environ.get("PYTHONPATH")
        parts = [str(HERE), *([self._before] if self._before else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(parts)

    def __exit__(self, *_: object) -> None:
        """As it was."""
        if self._before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = self._before
