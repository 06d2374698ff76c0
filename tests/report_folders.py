"""Folders of results as the commands leave them, small, and with any names in them."""

import json

from realrun.equivalence import Verdict
from realrun.validate import FIGURES
from shmsim.policies import PRESETS
from shmsim.profile import MachineProfile
from shmsim.units import MS, US
from shmsim.workload import Request, Workload
from tests.theory.runs import run

WORKLOAD = Workload((Request(0, 10, 12), Request(1 * MS, 20, 9)), 0)
MACHINE = {
    "cpu": "A CPU", "cores": 2, "affinity": [0, 1], "quota_cores": None, "kernel": "6.1",
    "virtual": True, "clocksource": "tsc", "shm_bytes": 1 << 30, "shm_free_bytes": 1 << 30,
    "implementation": "native",
}  # fmt: skip
#: What somebody might write into a file so that it does something in a browser.
HOSTILE = (
    "<script>window.hit=1</script>",
    '"><img src=x onerror="window.hit=2">',
    "</style></svg></title><svg onload=window.hit=3>",
    "--><b>$\\frac{1}{0}$ \x00\u202e{{7*7}}",
    "_under & over",
    "a" * 500,
)


def records_of(policy="rehearse-ahead", **more):
    """Records of a run on a machine, as far as a report can tell."""
    value = PRESETS[policy]
    records = run(value, WORKLOAD, calls=2, profile=MachineProfile.shipped("vm-2cpu"), **more)
    records.meta = {
        "world": "machine",
        "policy": {
            "module": type(value).__module__,
            "name": type(value).__name__,
            "fields": value._asdict(),
        },
        "seed": 1,
        "replication": 0,
        "machine": MACHINE,
    }
    return records


def comparison(measured, share=0.01):
    return {
        "simulated": measured * (1 + share),
        "measured": measured,
        "spread": measured * share / 2,
    }


def table(names):
    """Every policy a little slower than the one before, on a little less CPU."""
    found = {}
    for index, name in enumerate(names):
        figures = {f: 2 * MS * (1 + index / 50) for f in FIGURES if f.endswith("_ns")}
        figures |= {"scheduler_cores": 0.5 / (1 + index), "worker_cores": 0.4 / (1 + index)}
        found[name] = {figure: comparison(value) for figure, value in figures.items()}
        found[name]["scheduler_delay_p50_ns"] = comparison(3 * US)
    return found


def write_validation(folder, names=("spin", "tuned"), machine=MACHINE, **changes):
    """A validation, with the records of a run of the last policy."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "finished_at": "2026-01-02T03:04:05+00:00",
        "machine": machine,
        "profile_measured_at": "2026-01-02T03:00:00+00:00",
        "config": {
            "engine": {"workers": 1},
            "device": {"kind": "echo"},
            "repeats": 2,
            "seed": 1,
            "delay_price": 10.0,
        },
        "table": table(names),
        **changes,
    }
    (folder / "validation.json").write_text(json.dumps(content))
    (folder / "verdict.txt").write_text(f"{names[-1]} saves much.\n")
    (folder / "config.toml").write_text(f"# {names[-1]}\n".replace("\x00", ""))
    MachineProfile.shipped("vm-2cpu").write(folder / "profile.json")
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in names[-1])
    records_of().write(folder / "records" / f"{safe[:200]}-0-machine")
    return folder


def write_grid(folder, names=("tp1-spin", "tp2-park")):
    """A grid of cells, each with a finding of every kind."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [
        {
            "name": name,
            "findings": [
                {
                    "quantity": quantity,
                    "process": process,
                    "error": {"value": error, "low": error - 0.01, "high": error + 0.01, "n": 3},
                    "margin": 0.03,
                    "verdict": verdict,
                }
                for quantity, process, error, verdict in (
                    ("tpot_p50", "", 0.01, Verdict.HOLDS),
                    ("itl_p99", "", 0.05, Verdict.MISSES),
                    ("cpu", "scheduler", 0.03, Verdict.CANNOT_TELL),
                )
            ],
        }
        for name in names
    ]
    content = {
        "finished_at": "2026-01-02T03:04:05+00:00",
        "machine": MACHINE,
        "profiles": [{"measured_at": "2026-01-02T03:00:00+00:00", "replicates": 9}],
        "cells": cells,
    }
    (folder / "grid.json").write_text(json.dumps(content))
    return folder


def write_run(folder):
    """The records of one run."""
    records_of().write(folder)
    return folder
