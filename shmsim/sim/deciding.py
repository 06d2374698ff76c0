"""What deciding costs: by class of policies, hot or cold, and little for one that rests."""

from typing import Any, Final

from shmsim.profile import AT_REST, MachineProfile
from shmsim.sim.draws import Cost
from shmsim.sim.waiter import REHEARSED, SPUN
from shmsim.tape import Tape
from shmsim.wait import is_left_undecided

#: The field of a policy that says from what share of the waits it learns (`shmsim.wait`).
REST_FIELD: Final = "learnt_looks"


def can_rest(kind: Any) -> bool:
    """Whether policies of this class leave waits undecided where deciding costs too much."""
    return REST_FIELD in kind._fields


def looks_of(policy: Any) -> float:
    """From what share of the waits a policy learns, below 1 while it rests."""
    return float(getattr(policy, REST_FIELD, 1.0))


class Cold:
    """How cold deciding is to a thread.

    Attributes
    ----------
    plan_ns, after_ns
        The longest sleep since it last planned a wait, and since it last learnt from one.
    """

    def __init__(self) -> None:
        """Be hot."""
        self.plan_ns = self.after_ns = 0

    def rest(self, resumed_from: str, rested_ns: int) -> None:
        """Be at the end of a rest: a sleep leaves deciding cold, and a rehearsal warms it.

        A spin does neither: after one of 10 ms a decision takes a few microseconds longer.
        """
        if resumed_from == REHEARSED:
            self.plan_ns = self.after_ns = 0
        elif resumed_from != SPUN:
            if rested_ns > self.plan_ns:
                self.plan_ns = rested_ns
            if rested_ns > self.after_ns:
                self.after_ns = rested_ns


class Deciding:
    """Costs of plans and of learning, at one site.

    Parameters
    ----------
    profile
        The distributions.
    tape, entity
        The random numbers.
    policy
        Whose class it is about.
    """

    def __init__(self, profile: MachineProfile, tape: Tape, entity: str, policy: Any) -> None:
        """Nothing was decided yet."""
        own, idle = (profile.costs_of_policy(n) for n in (type(policy).__name__, AT_REST))
        self._plan, self._after = (Cost(own[w], tape, entity, w) for w in ("plan", "after"))
        self._idle_plan, self._idle_after = (
            Cost(idle[w], tape, entity, w) for w in ("plan", "after")
        )

    def plan_ns(self, looks: float, index: int, asleep_ns: int) -> int:
        """What the plan of wait ``index`` takes, by a policy that so looks, after a sleep."""
        return (self._idle_plan if looks < 1.0 else self._plan).at(index, asleep_ns)

    def after_ns(self, looks: float, uniform: float, index: int, asleep_ns: int) -> int:
        """What learning from wait ``index`` takes, by the policy and the number as they were."""
        is_left = is_left_undecided(looks, uniform)
        return (self._idle_after if is_left else self._after).at(index, asleep_ns)
