"""What an experiment is: cells that can be run one by one, and what is made of their contents."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from shmsim.claims import Claim
from shmsim.sim.cluster import Cluster
from shmsim.sim.sweep import sweep
from shmsim.sweep.plan import SweepPlan

#: Virtual time and replays; real processes on the real clock; the same, but some device pretends.
WORLDS: Final = ("model", "machine", "emulated")
#: Those whose figures depend on the box.
MACHINE_WORLDS: Final = ("machine", "emulated")

#: The content of a ``config.toml``, or of its quick version.
Plan = dict[str, Any]
#: What came out of a cell; JSON can hold it.
Content = dict[str, Any]
#: Told what is being done, and how much of it is: 0 to 1.
Progress = Callable[[str, float], None]

_Opened = TypeVar("_Opened")


class Skipped(Exception):  # noqa: N818 - what happened, by its name
    """A cell that this box cannot run; the message says why."""


class Cell(NamedTuple):
    """The least that is run, and kept, as a whole.

    Parameters
    ----------
    name
        Unique within the experiment.
    world
        One of `WORLDS`.
    settings
        What sets it apart from the others.
    """

    name: str
    world: str
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Context:
    """What a cell may use while it runs.

    Parameters
    ----------
    plan
        What the experiment was asked for.
    folder
        For working files; gone once the experiment came to its end.
    files
        What lies here then goes into the results; small.
    progress
        Told how far the cell is.
    cluster
        Address of a Dask scheduler for sweeps of the model; empty for this machine alone.

    Attributes
    ----------
    found
        Content of the cells that ran before, by name.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        files: Path,
        progress: Progress,
        cluster: str,
        resources: ExitStack,
    ) -> None:
        """Nothing was found yet."""
        self.plan = plan
        self.folder = folder
        self.files = files
        self.progress = progress
        self.cluster = cluster
        self.found: dict[str, Content] = {}
        self._resources = resources
        self._opened: dict[str, Any] = {}

    def opened(self, name: str, make: Callable[[], AbstractContextManager[_Opened]]) -> _Opened:
        """What a context manager gives: entered when first asked for, left when all is over."""
        if name not in self._opened:
            self._opened[name] = self._resources.enter_context(make())
        found: _Opened = self._opened[name]
        return found

    def sweep(self, plan: SweepPlan) -> pa.Table:
        """Run a sweep of the model; its points are kept while the experiment is unfinished."""

        def told(done: int, n: int) -> None:
            self.progress(f"{done} of {n} runs of the model", done / max(n, 1))

        with Cluster(self.cluster) if self.cluster else nullcontext() as cluster:
            return sweep(plan, self.folder / "sweep", cluster=cluster, progress=told)


class Results:
    """What the cells of one node gave.

    Parameters
    ----------
    plan
        What was asked for.
    content
        Of the cells that ran, by name, in their order.
    skipped
        Why the others did not, by name.
    worlds
        Of all cells.
    """

    def __init__(
        self,
        plan: Plan,
        content: dict[str, Content],
        skipped: dict[str, str],
        worlds: dict[str, str],
    ) -> None:
        """Keep them."""
        self.plan = plan
        self.content = content
        self.skipped = skipped
        self._worlds = worlds

    def of(self, world: str) -> dict[str, Content]:
        """The content of the cells of one world: no claim is made of several at once."""
        return {name: row for name, row in self.content.items() if self._worlds[name] == world}


class Findings(NamedTuple):
    """What an experiment says.

    Parameters
    ----------
    claims
        Numbers with a bound each.
    summary
        The figures that a text may quote; JSON can hold it.
    """

    claims: list[Claim]
    summary: dict[str, Any]


class Experiment(NamedTuple):
    """What the ``run.py`` of an experiment exposes as ``EXPERIMENT``.

    Parameters
    ----------
    cells
        What a plan asks for, in the order in which it is run.
    run
        Runs one cell; may raise `Skipped`.
    report
        Tells what came out, writes further files into a folder if it has any.
    quick
        The same plan in little: done within half a minute.
    sweeps
        Whether a cell calls `Context.sweep`, which is all that a cluster helps with.
    """

    cells: Callable[[Plan], Iterable[Cell]]
    run: Callable[[Cell, Context], Content]
    report: Callable[[Results, Path], Findings]
    quick: Callable[[Plan], Plan]
    sweeps: bool = False
