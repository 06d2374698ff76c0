"""Sweeps as a cell of an experiment does, and writes what came; told a folder and an address."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "experiments"))

from runner import Context  # noqa: E402 - found by the line above
from shmsim.config import RunConfig, WorkloadConfig, parse_policy  # noqa: E402
from shmsim.profile import MachineProfile  # noqa: E402
from shmsim.sweep.plan import plan_of  # noqa: E402


def main() -> None:
    """Sweep two policies on four tapes."""
    folder, *address = sys.argv[1:]
    workload = WorkloadConfig(requests=2, output_p50=40, output_p95=40)
    policies = [parse_policy(name) for name in ("spin", "park")]
    profiles = {"vm": MachineProfile.shipped("vm-2cpu")}
    plan = plan_of({"few": RunConfig(workload=workload)}, policies, profiles, replications=4)
    place = Path(folder)
    with ExitStack() as resources:
        context = Context(
            {}, place, place, lambda _label, _share: None, "".join(address), resources
        )
        json.dump(context.sweep(plan).to_pydict(), sys.stdout)


if __name__ == "__main__":
    main()
