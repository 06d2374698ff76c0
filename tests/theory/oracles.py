"""What the oracles share: laws without a table, parts of the model by themselves, a false alarm.

A test compares the model with a closed form. Its tolerance is the interval of the estimate at a
confidence of one less `FALSE_ALARM`: with another seed a correct model fails once in ten thousand.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from shmsim.profile import Curve
from shmsim.sim.actor import Actor
from shmsim.sim.clock import VirtualClock
from shmsim.sim.contended import Lane
from shmsim.sim.source import Message, Ring
from shmsim.tape import Tape
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV
from tests.toy import TOY_COSTS_NS, toy_profile

FALSE_ALARM = 1e-4
SURE = 1 - FALSE_ALARM


class Law(NamedTuple):
    """A distribution by its inverse: exact where a measured one has a grid of quantiles."""

    inverse: Callable[[np.ndarray], np.ndarray]

    def all_at(self, u):
        return self.inverse(np.asarray(u))

    def at(self, u):
        return float(self.inverse(np.asarray(u)))


def exponential(mean_ns):
    return Law(lambda u: -mean_ns * np.log1p(-u))


def always(ns):
    return Law(lambda u: np.full(np.shape(u), float(ns)))


def free_profile(**laws):
    """A profile in which all is free but what is named."""
    profile = toy_profile(**dict.fromkeys(TOY_COSTS_NS, 0))
    for name, law in laws.items():
        profile.costs[name] = Curve(profile.costs[name].by, (0.0,), (law,))
    return profile


def z_score(estimate, expected):
    """By how many standard errors an estimate is off."""
    t = stats.t.ppf((1 + estimate.confidence) / 2, estimate.n - 1)
    return (estimate.value - expected) / (estimate.half_width / t)


def assert_agrees(estimate, expected):
    assert estimate.confidence == SURE
    assert not estimate.caveat
    assert estimate.half_width < 0.25 * abs(expected), "the oracle is too blunt to prove anything"
    z = z_score(estimate, expected)
    assert estimate.low <= expected <= estimate.high, (
        f"{estimate.value:.6g} against {expected:.6g}: off by {z:+.1f} standard errors"
    )


class Bench:
    """A ring with one writer and one reader, which a test drives by processes of its own.

    Parameters
    ----------
    profile, policy
        Costs, and how both sides wait.
    n_slots
        Of the ring; 0 for one that cannot fill.
    """

    def __init__(self, profile, policy, n_slots=0, seed=1):
        self.env = VirtualClock()
        self.ring = Ring(self.env, 1, n_slots or 2, n_slots or 1)
        self.inbox = self.ring.inboxes[0]
        tape, costs = Tape(seed), profile.wait_costs(1.0)
        parts = self.env, profile, tape, costs
        self.writer = Actor(*parts, "scheduler", SCHEDULER_RECV, Lane())
        self.reader = Actor(*parts, "worker0", WORKER_RECV, Lane())
        self.site = self.reader.site(WORKER_RECV, "worker0", policy)
        self.slots = self.writer.site(2, "scheduler slots", policy)

    def message(self, index):
        return Message(index, 0, None, True, self.env.now_ns)

    def publish_now(self, index):
        """A message out of thin air: nobody works for it."""
        self.ring.publish(self.message(index), None, lambda _: 0)

    def receive(self, index):
        return self.reader.receive(self.site, self.inbox, 0, index, None, True)

    def run(self, *processes):
        started = [self.env.process(process) for process in processes]
        self.env.run(until=self.env.all_of(started))


def erlang_b(load, n_slots):
    """Share of Poisson arrivals that find all slots in use (Erlang 1917), by its recursion."""
    blocked = 1.0
    for k in range(1, n_slots + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


def mm1k_shares(load, capacity):
    """Probability of each number in the M/M/1/K queue, 0 to K."""
    weights = np.array([load**k for k in range(capacity + 1)])
    return weights / math.fsum(weights)
