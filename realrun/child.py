"""Entry of a child process: ``python -m realrun.child PROCESS SPEC TICKET OUT``.

PROCESS is 0 for the scheduler and 1 + r for the worker of rank r.
"""

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from realrun.cores import stay_on
from realrun.host import prepare_process, settled_heap
from realrun.layout import OWNER_PID_AT
from realrun.rehearsal import Rehearsal
from realrun.scheduler import Scheduler
from realrun.segment import Segment, Ticket
from realrun.spec import RunSpec
from realrun.waiting import Stopped
from realrun.worker import Worker
from shmsim.routing import NO_ARENA


def main() -> None:
    """Attach, report ready, run, store the records."""
    prepare_process()
    threading.excepthook = _end_process
    process = int(sys.argv[1])
    spec = RunSpec.read(Path(sys.argv[2]))
    ticket, out = Ticket.from_json(sys.argv[3]), Path(sys.argv[4])
    # It stays mapped until the process ends: a reply thread may still be at work in it, and its
    # complaint would hide the error that ends the main thread.
    segment = Segment.attach(ticket)
    if segment.load(OWNER_PID_AT) != os.getppid():
        sys.exit("the launcher died before this process could ask to die with it")
    # One reader, whoever else reads in this run: a rehearsal plays both ends by itself.
    alone = Segment.private(replace(spec.layout, n_workers=1, n_devices=0, arena=NO_ARENA))
    rehearsal = Rehearsal(alone, spec.policy)
    actor: Scheduler | Worker
    if process == 0:
        actor = Scheduler(segment, spec, rehearsal)
    else:
        actor = Worker(segment, spec, process - 1, rehearsal)
    # Not earlier: threads of libraries (CUDA, NCCL, sockets), which were started above, would
    # inherit the core, and wait there for the spinner that waits for them.
    stay_on(spec.cores_of(process).main)
    with settled_heap():
        segment.attend(process)
        try:
            records = actor.run()
        except Stopped:
            return
    records.write(out)


def _end_process(args: threading.ExceptHookArgs) -> None:
    """End the process with its reply thread: without it a reply would be awaited for ever."""
    sys.__excepthook__(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
