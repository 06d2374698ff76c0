"""Writes into a folder what every part of the model makes: ``makes_everything.py FOLDER``.

Run twice, in processes that differ in all that must not matter, it must leave the same bytes. With
``--store`` it also writes ``digests.json``, with which any machine can compare.
"""

import gzip
import hashlib
import io
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq

from shmsim.bounds.compare import ground, report
from shmsim.bounds.recorded import recorded_waits
from shmsim.config import NamedPolicy, RunConfig, WorkloadConfig, parse_config
from shmsim.figures import summarize_with_intervals
from shmsim.plots import frontier, frontier_of_estimates, write_svg
from shmsim.policies import PRESETS
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from shmsim.sim.engine import summarize_with
from shmsim.sim.run import simulate
from shmsim.sim.sweep import sweep
from shmsim.sim.tune import QUICK, tune
from shmsim.sim.tune_picture import write_picture
from shmsim.sim.tune_report import found_of
from shmsim.sweep.plan import plan_of
from shmsim.sweep.tables import results, write_tables
from shmsim.tape import Tape
from shmsim.timeline import write_timeline
from shmsim.tuner import parse_goal
from shmsim.wait import SCHEDULER_RECV

WORKLOAD = WorkloadConfig(
    kind="open",
    requests=6,
    rate_per_s=20.0,
    burstiness=0.5,
    prompt_p50=16,
    prompt_p95=90,
    output_p50=20,
    output_p95=60,
)
PLAIN = RunConfig(workload=WORKLOAD, policies=(NamedPolicy("spin", PRESETS["spin"]),))
#: Two engines of two workers on three cores with a quota, asynchronous.
CROWDED = replace(
    parse_config(
        {
            "engine": {"workers": 2, "scheduling": "async"},
            "cores": {"n": 3, "engines": 2, "quota": 2.5, "steal_every": "20ms", "steal": "300us"},
        }
    ),
    workload=WORKLOAD,
)
PROFILE = MachineProfile.shipped("vm-2cpu")


def make(folder: Path) -> None:
    """Write everything."""
    for name, config in (("plain", PLAIN), ("crowded", CROWDED)):
        for policy in ("spin", "step-ahead", "karlin"):
            run = simulate(config, PRESETS[policy], PROFILE)
            run.write(folder / f"{name}-{policy}")
            write_timeline(run, folder / f"{name}-{policy}.json.gz")
    names = ("spin", "park", "hazard-bayes")
    asked = plan_of(
        PLAIN, [NamedPolicy(n, PRESETS[n]) for n in names], {"vm": PROFILE}, replications=3
    )
    points = sweep(asked, folder / "sweep", jobs=2)
    write_tables(folder / "sweep", asked, points)
    estimates = results(asked, points)[0].estimates
    picture = frontier(frontier_of_estimates(estimates, 1), "all")
    write_svg(picture, folder / "frontier.svg")
    tuned = tune(
        PLAIN, PROFILE, parse_goal("price 10"), budget=QUICK._replace(steps=150, profiles=1), jobs=1
    )
    chosen = NamedPolicy("tuned", tuned.chosen.policy)
    write_policy(folder / "policy.json", chosen, found_of(tuned, PROFILE))
    write_picture(folder / "policy.svg", tuned)
    spun = simulate(PLAIN, PRESETS["spin"], PROFILE)
    on = ground(recorded_waits(spun, "scheduler", SCHEDULER_RECV, 1), PROFILE, Tape(1), 10.0)
    found = {
        "estimates": summarize_with_intervals([spun, spun]),
        "bounds": report(PRESETS["step-ahead"], on),
    }
    (folder / "found.json").write_text(json.dumps(found, indent=1))
    compiled = {
        engine: summarize_with(config, PRESETS["step-ahead"], PROFILE, engine=engine)
        for engine, config in (("recurrence", PLAIN), ("events", CROWDED))
    }
    (folder / "compiled.json").write_text(json.dumps(compiled, indent=1, default=asdict))


DIGESTS = Path(__file__).with_name("digests.json")


def digests(folder: Path) -> dict[str, str]:
    """Of every file what it says, whichever library compressed it.

    A sweep's points are left out, whose names are hashes of the model's source, its lock, and
    pictures, which change their looks without the model.
    """
    paths = [
        path
        for path in folder.rglob("*.*")
        if path.is_file() and "points" not in path.parts and path.suffix != ".svg"
    ]
    found = {}
    for path in sorted(paths):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        elif path.suffix == ".parquet":
            content = repr(pq.read_table(io.BytesIO(content)).to_pydict()).encode()
        name = path.relative_to(folder).as_posix()
        found[name] = hashlib.sha256(content).hexdigest()[:16]
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    make(place)
    if "--store" in sys.argv[2:]:
        DIGESTS.write_text(json.dumps(digests(place), indent=1) + "\n")
