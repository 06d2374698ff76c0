"""The harness's end of one driver: start it, stop it while others are measured, ask it, end it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from candidates import Candidate
from system import segment_prefix

_DRIVER: Final = Path(__file__).with_name("driver.py")
_SHM: Final = Path("/dev/shm")
_START_S: Final = 120.0
_ANSWER_S: Final = 60.0
_LEAVE_S: Final = 20.0
#: One that is still importing hears nothing yet.
_LEAVE_UNREADY_S: Final = 1.0


class BrokenSystemError(Exception):
    """The system cannot be measured; the message says why."""


class Remote:
    """A driver and its readers: one process group.

    Parameters
    ----------
    candidate
        What it drives.
    n_readers
        How many readers it starts.
    interpreter
        The Python that runs it.
    pin
        Whether writer and reader get a core each.
    folder
        Where it keeps its log and its temporary files; the caller removes it.
    """

    def __init__(
        self, candidate: Candidate, n_readers: int, interpreter: Path, pin: bool, folder: Path
    ) -> None:
        self.candidate = candidate
        self.n_readers = n_readers
        self.ready: dict[str, Any] = {}
        self._log = folder / "log"
        options = json.dumps(candidate.options)
        arguments = [candidate.module, candidate.cls, str(n_readers), options, str(int(pin))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [interpreter, _DRIVER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A group of its own, so that it can be stopped as a whole and Ctrl-C spares it;
                # nothing more of its own, so that the kernel wakes it should the harness vanish.
                process_group=0,
                env=os.environ | {"TMPDIR": str(folder)},
            )
        self._unread = b""

    def wait_until_ready(self) -> None:
        """Wait for the readers, then stop everybody.

        Raises
        ------
        BrokenSystemError
            If the system is not available here or does not start.
        """
        answer = self._receive(_START_S)
        if "unavailable" in answer:
            raise BrokenSystemError(answer["unavailable"])
        self.ready = answer["ready"]
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the processes run inside the block, and only there."""
        self.resume()
        yield
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes run until they are dismissed."""
        self._signal(signal.SIGCONT)

    def measure(self, scenario: str, n: int, **command: Any) -> dict[str, Any]:
        """One burst; `driver` explains command and answer.

        Raises
        ------
        BrokenSystemError
            If no answer comes.
        """
        line = json.dumps({"measure": scenario, "n": n, **command}) + "\n"
        try:
            os.write(self._process.stdin.fileno(), line.encode())
        except BrokenPipeError:
            raise BrokenSystemError(self._last_words("died")) from None
        return self._receive(_ANSWER_S)

    def dismiss(self) -> None:
        """Ask it to close; it does so at the end of its input."""
        self.resume()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def see_off(self) -> None:
        """Wait until a dismissed driver is gone, and end it by force where it stays."""
        try:
            self._process.wait(_LEAVE_S if self.ready else _LEAVE_UNREADY_S)
        except subprocess.TimeoutExpired:
            segments = {path for pid in _members(self._process.pid) for path in _segments(pid)}
            segments.update(_SHM.glob(f"{segment_prefix(self._process.pid)}*"))
            self._signal(signal.SIGKILL)
            self._process.wait()
            for path in segments:
                path.unlink(missing_ok=True)
        self._signal(signal.SIGKILL)  # whoever is left of the group after a crash
        self._process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                raise BrokenSystemError(self._last_words(f"gave no answer within {timeout_s:g} s"))
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise BrokenSystemError(self._last_words("died"))
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _last_words(self, fate: str) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{fate}; it last said: {lines[-1] if lines else 'nothing'}"


def _members(group: int) -> list[int]:
    """Processes of a group."""
    members = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(path.name)) == group:
                members.append(int(path.name))
    return members


def _segments(pid: int) -> list[Path]:
    """Shared-memory files that a process has mapped."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines())
    return [Path(path) for path in paths if path.startswith(f"{_SHM}/")]
