"""A Dask scheduler and workers on this machine, each a process of its own that can be killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.real.conftest import eventually

REPOSITORY = Path(__file__).parents[2]


class Machines:
    """Starts the processes, and ends those that are still there.

    Parameters
    ----------
    folder
        Where they keep what they write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(self.file)
        )
        self.workers = []
        try:
            eventually(lambda: self.file.exists() and self.file.stat().st_size, 60)
            self.address = json.loads(self.file.read_text())["address"]
        except BaseException:
            self.end()
            raise

    def work(self, python_path: Path = REPOSITORY):
        """Start one more worker: one process, one thread, and nobody who starts it again."""
        worker = self._start(
            "worker", self.address, "--no-nanny", "--nthreads", "1", "--memory-limit", "0",
            "--local-directory", str(self.folder), python_path=python_path,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def _start(self, what, *arguments, python_path=REPOSITORY):
        environment = os.environ | {
            "PYTHONPATH": str(python_path),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
        }
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", what, "--no-dashboard", *arguments],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def kill(self, process) -> None:
        """End a process at once, and wait until it is gone."""
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def end(self) -> None:
        """Kill whoever is left."""
        for process in (*self.workers, self.scheduler):
            self.kill(process)
