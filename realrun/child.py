"""Entry of a child process: ``python -m realrun.child PROCESS SPEC SEGMENT OUT``.

PROCESS is 0 for the scheduler and 1 + r for the worker of rank r.
"""

import os
import sys
from pathlib import Path

from realrun.host import prepare_process
from realrun.ring import Stopped
from realrun.scheduler import Scheduler
from realrun.segment import Segment
from realrun.spec import RunSpec
from realrun.worker import Worker


def main() -> None:
    """Attach, report ready, run, store the records."""
    prepare_process()
    process = int(sys.argv[1])
    spec_path, segment_path, out = map(Path, sys.argv[2:5])
    spec = RunSpec.read(spec_path)
    if spec.cores:
        os.sched_setaffinity(0, {spec.cores[process]})
    with Segment.attach(segment_path, spec.layout) as segment:
        actor = Scheduler(segment, spec) if process == 0 else Worker(segment, spec, process - 1)
        segment.store(spec.layout.ready_at(process), 1)
        try:
            records = actor.run()
        except Stopped:
            return
        records.write(out)


if __name__ == "__main__":
    main()
