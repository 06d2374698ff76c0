"""One wake-up call serves all readers that sleep, but it wakes them one after another."""

from typing import NamedTuple

import pytest

from shmsim.config import CoresConfig, DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.policies import Park
from shmsim.profile import Curve
from shmsim.sim.actor import Actor
from shmsim.sim.clock import VirtualClock
from shmsim.sim.contended import Lane
from shmsim.sim.cores import Host, Schedule
from shmsim.sim.events import simulate_events
from shmsim.sim.recurrence import refuses, simulate_recurrence
from shmsim.sim.run import simulate
from shmsim.sim.source import Message, Ring
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import (
    ASLEEP,
    DOZE,
    PARK,
    SPIN,
    WORKER_RECV,
    Stage,
    WaitContext,
    WaitOutcome,
    WaitPlan,
)
from tests.events_runs import first_difference
from tests.toy import constant, toy_profile


class Always(NamedTuple):
    """One plan, a last stage behind one of any kind."""

    kind: int
    until_ns: int
    period_ns: int = 0

    def plan(self, ctx: WaitContext) -> WaitPlan:
        first = Stage(self.kind, self.until_ns, self.period_ns)
        return WaitPlan(first, Stage(SPIN, FOREVER_NS, 0), ASLEEP, ASLEEP)

    def after(self, ctx: WaitContext, outcome: WaitOutcome) -> "Always":
        return self


def slow_profile(further_ns):
    profile = toy_profile(spin_detection=1 * US)
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0,), (constant(further_ns),))
    return profile


def waits_of(policies, published_ns, further_ns, *, on_cores):
    """How readers, a policy each, see one message; all of them begin to wait at 0."""
    env, profile, tape = VirtualClock(), slow_profile(further_ns), Tape(1)
    costs = profile.wait_costs(1.0)
    ring = Ring(env, len(policies), 2, 1)
    host = Host(env, Schedule(len(policies)), len(policies), None)
    actors = []

    def reads(actor, site, inbox):
        actor.wake()
        yield from actor.receive(site, inbox, 0, 0, None, True)

    def writes():
        yield env.timeout(published_ns)
        message = Message(0, 0, None, True, env.now_ns)
        ring.publish(message, None, lambda _: further_ns)

    for rank, policy in enumerate(policies):
        name = f"worker{rank}"
        lane = Lane(host.thread(name) if on_cores else None)
        actors.append(Actor(env, profile, tape, costs, name, WORKER_RECV, lane))
        site = actors[-1].site(WORKER_RECV, name, policy)
        env.process(reads(actors[-1], site, ring.inboxes[rank]))
    env.process(writes())
    env.run(until=100 * MS)
    return [actor.rows[0] for actor in actors]


PARKS = Always(PARK, FOREVER_NS)


@pytest.mark.parametrize("on_cores", [False, True])
def test_sleepers_wake_in_the_order_of_rank_and_spinners_at_once(on_cores):
    spins = Always(SPIN, FOREVER_NS)
    rows = waits_of([PARKS, spins, PARKS, PARKS], 90 * US, 20 * US, on_cores=on_cores)
    assert [row.seen_ns // US for row in rows] == [140, 91, 160, 180]
    assert {row.published_ns for row in rows} == {90 * US}
    assert [row.belled for row in rows] == [True, False, True, True]
    assert len({row.cpu_ns for row in rows if row.belled}) == 1


@pytest.mark.parametrize("on_cores", [False, True])
@pytest.mark.parametrize(
    ("until_us", "seen_us", "belled"),
    [
        (100, [140, 130, 130], [True, False, False]),  # rings at 90, 110 and 130
        (109, [140, 139, 139], [True, False, False]),
        (110, [140, 160, 140], [True, True, False]),  # what comes with the timer came in time
        (130, [140, 160, 180], [True, True, True]),
    ],
)
def test_a_timer_that_ends_before_the_ring_comes_wakes_instead(until_us, seen_us, belled, on_cores):
    dozes = Always(DOZE, until_us * US)
    rows = waits_of([dozes] * 3, 90 * US, 20 * US, on_cores=on_cores)
    assert [row.seen_ns // US for row in rows] == seen_us
    assert [row.belled for row in rows] == belled
    assert {row.stage for row in rows} == {0}
    assert [row.overshoot_ns // US for row in rows] == [0 if rang else 30 for rang in belled]
    assert [row.cpu_ns // US for row in rows] == [15 if rang else 12 for rang in belled]


@pytest.mark.parametrize("on_cores", [False, True])
def test_a_sleeper_that_looks_by_itself_waits_for_no_ring_longer_than_to_its_next_look(on_cores):
    looks = Always(PARK, FOREVER_NS, 30 * US)
    rows = waits_of([looks] * 4, 100 * US, 15 * US, on_cores=on_cores)
    assert [row.seen_ns // US for row in rows] == [150, 165, 170, 170]
    assert {row.cpu_ns for row in rows} == {15 * US + 3 * 12 * US}


# Every engine.


def config_of(cores):
    return RunConfig(
        EngineConfig(workers=4),
        workload=WorkloadConfig("closed", 1, 1.0, 1.0, 1, 9, 9, 12, 12),
        device=DeviceConfig(step_ns=2 * MS),
        cores=CoresConfig(n=cores),
    )


@pytest.mark.timeout(400)  # engines compile
@pytest.mark.parametrize("cores", [0, 9, 2])
def test_every_engine_lets_the_timer_wake_who_would_be_rung_for_too_late(cores):
    config, profile = config_of(cores), slow_profile(300 * US)
    waits = [w for w in simulate(config, Park(), profile).waits if w.process == "worker1"]
    rested_ns = sorted(w.published_ns - w.started_ns for w in waits)[len(waits) // 2]
    policy = Always(DOZE, rested_ns + 50 * US)
    expected = simulate(config, policy, profile)
    woken_by_timer = [
        w
        for w in expected.waits
        if w.stage_kind == DOZE
        and not w.belled
        and 0 < w.published_ns - w.started_ns <= policy.until_ns
    ]
    assert len(woken_by_timer) > 5
    assert {w.process for w in woken_by_timer} <= {"worker1", "worker2", "worker3"}
    assert first_difference(expected, simulate_events(config, policy, profile)) is None
    if cores == 0:
        assert refuses(config, profile) is None
        assert first_difference(expected, simulate_recurrence(config, policy, profile)) is None
