"""Runs the engine once, within a cgroup if told to, and says what came out as JSON.

Usage: python pair.py CONFIG.json PROFILE POLICY [CGROUP]

The throttling is that between the first and the last step: the start of the processes takes more
CPU than many a run.
"""

import json
import sys
from pathlib import Path
from typing import Any

from contention import describe
from quota import Group, Throttling

from realrun.run import make_spec, run_once
from shmsim.config import parse_config, parse_policy
from shmsim.metrics import itl_ns, summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords


def figures(records: RunRecords) -> dict[str, Any]:
    """What a run says about its tokens and its CPU."""
    found = summarize(records)
    return {
        "n_steps": found.n_steps,
        "duration_s": found.duration_s,
        "tpot_p50_ns": found.tpot.p50,
        "tpot_mean_ns": found.tpot.mean,
        "itl": describe(itl_ns(records.requests).astype("int64")),
        "cores": {p.process: p.cpu_ns / p.wall_ns for p in records.processes},
        "emulation_cores": {p.process: p.emulation_cpu_ns / p.wall_ns for p in records.processes},
        "queue_share": {p.process: p.run_queue_ns / p.wall_ns for p in records.processes},
    }


def main() -> None:
    """Run and tell."""
    config_path, profile_path, policy, *where = sys.argv[1:]
    config = parse_config(json.loads(Path(config_path).read_text()))
    spec = make_spec(
        config, parse_policy(policy).policy, MachineProfile.read(Path(profile_path)), 0
    )
    seen: list[Throttling] = []
    group = Group(Path(where[0])) if where else None
    if group is not None:
        group.procs.write_text("0")

    def note(step: int) -> None:
        if group is not None and step > 0:
            seen[1:] = [Throttling.read(group.stat)]
            if len(seen) == 1:
                seen.append(seen[0])

    content = figures(run_once(spec, note))
    if seen:
        content["throttling"] = seen[-1].since(seen[0])._asdict()
    json.dump(content, sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
