"""What a sweep runs: cells, each a workload on a machine, times policies, times replications."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shmsim.config import NamedPolicy, RunConfig
from shmsim.figures import FIGURES
from shmsim.nearest import instead
from shmsim.profile import MachineProfile
from shmsim.run_costs import costs_of_run
from shmsim.stats.estimate import CONFIDENCE
from shmsim.stats.stopping import Precision

#: Figures that are compared unless others are named.
COMPARED: Final = ("tpot_p50_ns", "itl_p99_ns", "scheduler_cores", "worker_cores")
REPLICATIONS: Final = 10


class Cell(NamedTuple):
    """One workload and engine on one machine.

    Parameters
    ----------
    name
        Of the workload, unique together with the profile's.
    settings
        Keys of the config that differ from cell to cell, such as ``"workload.concurrency"``.
    config
        What runs; its own policies play no part.
    profile_name, profile
        The machine.
    """

    name: str
    settings: dict[str, Any]
    config: RunConfig
    profile_name: str
    profile: MachineProfile


class Point(NamedTuple):
    """One run: indices of its cell and policy in the plan, and its replication."""

    cell: int
    policy: int
    replication: int


@dataclass(frozen=True)
class SweepPlan:
    """A sweep.

    Parameters
    ----------
    cells, policies
        What is run: each policy in each cell.
    reference
        Name of the policy that the others are compared with; empty takes the first.
    replications
        Of each point; with a `precision`, so many at least. Replication i of every policy of a cell
        has the same tape.
    precision, stop_figure
        Until when replications are added, for every policy of a cell at once, and by which figure.
    figures
        Figures that are compared.
    confidence
        Of every interval.
    """

    cells: tuple[Cell, ...]
    policies: tuple[NamedPolicy, ...]
    reference: str = ""
    replications: int = REPLICATIONS
    precision: Precision | None = None
    stop_figure: str = COMPARED[0]
    figures: tuple[str, ...] = COMPARED
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        """Refuse what would silently mean something else, and cells of which the costs lack."""
        if not self.cells or not self.policies:
            raise ValueError("a sweep needs at least one cell and one policy")
        for cell in self.cells:
            try:
                costs_of_run(cell.config, cell.profile)
            except ValueError as error:
                raise ValueError(f"{cell.name} on {cell.profile_name}: {error}") from None
        names = [policy.name for policy in self.policies]
        places = [f"{cell.name} on {cell.profile_name}" for cell in self.cells]
        for many, what in ((names, "policies"), (places, "cells")):
            doubled = [name for name in many if many.count(name) > 1]
            if doubled:
                raise ValueError(f"two {what} are called {doubled[0]!r}; rename one of them")
        if self.reference and self.reference not in names:
            raise ValueError(
                f"the reference {self.reference!r} is none of the policies"
                + instead(self.reference, names)
            )
        for figure in (*self.figures, self.stop_figure):
            if figure not in FIGURES:
                raise ValueError(f"unknown figure {figure!r}{instead(figure, FIGURES)}")
        if self.replications < 1:
            raise ValueError(f"replications must be at least 1, got {self.replications}")
        if self.precision is not None:
            self.precision.check()

    @property
    def reference_name(self) -> str:
        """Name of the policy that the others are compared with."""
        return self.reference or self.policies[0].name

    def points(self, cell: int, first: int, last: int) -> list[Point]:
        """All policies of a cell at replications from ``first`` up to, not including, ``last``."""
        policies = range(len(self.policies))
        return [Point(cell, policy, i) for policy in policies for i in range(first, last)]


def cells_of(
    configs: Mapping[str, RunConfig], profiles: Mapping[str, MachineProfile]
) -> tuple[Cell, ...]:
    """Every config on every profile, both by name."""
    return tuple(
        Cell(name, {}, config, profile_name, profile)
        for name, config in configs.items()
        for profile_name, profile in profiles.items()
    )


def plan_of(
    configs: Mapping[str, RunConfig] | RunConfig,
    policies: Sequence[NamedPolicy],
    profiles: Mapping[str, MachineProfile] | MachineProfile,
    **more: Any,
) -> SweepPlan:
    """A plan from values, as a notebook has them; ``more`` are fields of `SweepPlan`."""
    if isinstance(configs, RunConfig):
        configs = {"run": configs}
    if isinstance(profiles, MachineProfile):
        profiles = {str(profiles.machine.get("cpu", "profile")): profiles}
    return SweepPlan(cells_of(configs, profiles), tuple(policies), **more)
