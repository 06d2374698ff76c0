"""The arms of the ablations, by the names that config.toml and the tables use."""

from dataclasses import replace
from typing import Final, NamedTuple

from ablated import Deaf, NoFeatures, NoPendingFlag, SelfMeasured

from shmsim.policies import BusySpin, Park, StepAhead
from shmsim.profile import MachineProfile
from shmsim.wait import WaitPolicy

WHOLE: Final = "step-ahead"  # what all others are held against
ANNOUNCED: Final = "announced"  # a change of the trace, not of the policy


class Arm(NamedTuple):
    """A policy, the price it is told, and what its sleepers sleep on."""

    policy: WaitPolicy
    price: float = 10.0
    doorbell: str = "futex"


ARMS: Final = {
    "spin": Arm(BusySpin()),
    "park": Arm(Park()),
    WHOLE: Arm(StepAhead()),
    "rehearsal": Arm(StepAhead(rehearse=True)),
    "no features": Arm(NoFeatures()),
    "no pending flag": Arm(NoPendingFlag()),
    "no clamp": Arm(StepAhead(clamp=1e-3)),
    "deaf": Arm(Deaf()),
    "self-measured": Arm(SelfMeasured()),
    "deaf, self-measured": Arm(Deaf(stamped=False)),
    ANNOUNCED: Arm(StepAhead()),
    "r = 1": Arm(StepAhead(), 1.0),
    "r = 100": Arm(StepAhead(), 100.0),
    "eventfd": Arm(StepAhead(), doorbell="eventfd"),
    "zmq": Arm(StepAhead(), doorbell="zmq"),
    "park, eventfd": Arm(Park(), doorbell="eventfd"),
    "park, zmq": Arm(Park(), doorbell="zmq"),
}


def charged_alike(profile: MachineProfile) -> MachineProfile:
    """The profile, in which deciding costs the ablated policies what it costs the whole one."""
    whole = profile.costs_of_policy(StepAhead.__name__)
    names = {type(arm.policy).__name__ for arm in ARMS.values()} - set(profile.policy_costs)
    return replace(profile, policy_costs={**profile.policy_costs, **dict.fromkeys(names, whole)})
