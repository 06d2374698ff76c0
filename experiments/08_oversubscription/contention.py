"""Compiles and calls contention.c, and tells what its samples say."""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SOURCE: Final = Path(__file__).with_suffix(".c")
_QUANTILES: Final = (10, 50, 90, 99)
_GRACE_S: Final = 60.0


class CannotMeasureError(RuntimeError):
    """Why a part of the experiment is left out on this box."""


class Contention(NamedTuple):
    """The compiled program.

    Parameters
    ----------
    program
        Its path.
    cores
        The two cores on which everything happens.
    """

    program: Path
    cores: tuple[int, int]

    def ring(self, wait: str, n_threads: int, work_ns: int, seconds: float) -> NDArray[np.int64]:
        """Round trips of a turn among threads on both cores, nanoseconds."""
        arguments = [wait, str(n_threads), str(work_ns), str(seconds)]
        return self._samples(["ring", *arguments], seconds)

    def stays(self, other: str, seconds: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How long a spinner stays on a core that it shares, and how long off it; nanoseconds."""
        found = self._samples(["stays", other, str(self.cores[1]), str(seconds)], seconds)
        return found[::2], found[1::2]

    def wakes(self, other: str, gap_ns: int, work_ns: int, n: int) -> NDArray[np.int64]:
        """Futex wake to the first instruction of a sleeper on a core that somebody holds."""
        waker, core = self.cores
        numbers = [str(core), str(waker), str(gap_ns), str(work_ns), str(n)]
        return self._samples(["wakes", other, *numbers], n * (gap_ns + work_ns) / 1e9)

    def _samples(self, arguments: list[str], seconds: float) -> NDArray[np.int64]:
        affinity = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)  # the program inherits it
        try:
            done = subprocess.run(
                [str(self.program), *arguments],
                capture_output=True,
                check=True,
                timeout=seconds + _GRACE_S,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{' '.join(arguments)}: {error.stderr.decode().strip()}") from None
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"this box is too busy: '{' '.join(arguments)}' wants {seconds:g} s and had no end "
                f"after {error.timeout:.0f} s; stop what runs beside ('top' shows it) and try again"
            ) from None
        finally:
            os.sched_setaffinity(0, affinity)
        return np.frombuffer(done.stdout, dtype=np.int64)


@contextmanager
def compiled() -> Iterator[Contention]:
    """Compile afresh, so that it fits the box it runs on.

    Raises
    ------
    CannotMeasureError
        If there is no compiler, or there are not two cores.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    cores = sorted(os.sched_getaffinity(0))
    if compiler is None:
        raise CannotMeasureError("no C compiler: install gcc")
    if len(cores) < 2:
        raise CannotMeasureError("one usable core: two are needed")
    with TemporaryDirectory() as folder:
        program = Path(folder) / "contention"
        command = [compiler, "-O2", "-pthread", "-o", str(program), str(_SOURCE)]
        subprocess.run(command, check=True)
        yield Contention(program, (cores[0], cores[1]))


def describe(samples_ns: NDArray[np.int64]) -> dict[str, Any]:
    """Number, quantiles, mean and greatest of samples, nanoseconds."""
    if not len(samples_ns):
        return {"n": 0}
    quantiles = np.percentile(samples_ns, _QUANTILES)
    return {
        "n": len(samples_ns),
        **{f"p{q}_ns": float(value) for q, value in zip(_QUANTILES, quantiles, strict=True)},
        "mean_ns": float(samples_ns.mean()),
        "max_ns": int(samples_ns.max()),
    }


def kernel_facts() -> dict[str, Any]:
    """What the kernel says about how it shares a core; None where it does not.

    ``tick_ns`` is one period of CONFIG_HZ, ``base_slice_ns`` what a thread may run before it is
    looked at, ``preemption`` the model of the running kernel.
    """
    hz = _config_hz()
    base = _read(Path("/sys/kernel/debug/sched/base_slice_ns"))
    modes = _read(Path("/sys/kernel/debug/sched/preempt"))
    chosen = modes[modes.find("(") + 1 : modes.find(")")] if "(" in modes else None
    return {
        "tick_ns": 1_000_000_000 // hz if hz else None,
        "base_slice_ns": int(base) if base.isdecimal() else None,
        "preemption": chosen,
    }


def _config_hz() -> int | None:
    texts = [_read(Path(f"/boot/config-{os.uname().release}"))]
    try:
        texts.append(gzip.decompress(Path("/proc/config.gz").read_bytes()).decode())
    except OSError as error:
        print(f"no CONFIG_HZ from /proc/config.gz: {error.strerror}", file=sys.stderr)
    for text in texts:
        for line in text.splitlines():
            if line.startswith("CONFIG_HZ="):
                return int(line.partition("=")[2])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
