"""The mechanisms of the model against closed forms of queueing theory."""

import math

import numpy as np
import pytest

from shmsim.policies import BusySpin, Park, SpinThenPark
from shmsim.records import column
from shmsim.routing import MIB, ROUTE_PRESETS, ArenaPlan, SlotClass
from shmsim.sim.arena import VirtualArena
from shmsim.sim.clock import VirtualClock
from shmsim.sim.payload import place
from shmsim.stats import (
    against_reference,
    batch_means,
    cycles,
    mean_of_replications,
    ratio_of_cycles,
)
from shmsim.steptime import StepTime
from shmsim.units import MS, US
from tests.theory.oracles import (
    SURE,
    Bench,
    always,
    assert_agrees,
    erlang_b,
    exponential,
    free_profile,
    mm1k_shares,
)
from tests.theory.runs import one_request, run

# The barrier of tensor parallelism.


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_step_waits_for_the_slowest_of_w_exponential_workers(workers):
    """The mean of the greatest of W exponentials is the mean of one times 1 + 1/2 + ... + 1/W."""
    mean_ns = 100 * US
    records = run(
        BusySpin(),
        one_request(2_000),
        profile=free_profile(launch=exponential(mean_ns)),
        workers=workers,
    )
    until_launch_ns = column(records.steps, "launched_ns") - column(records.steps, "published_ns")
    expected_ns = mean_ns * sum(1 / k for k in range(1, workers + 1))
    # Costs are cut to whole nanoseconds, half of one each in the mean.
    found = mean_of_replications(until_launch_ns + 0.5, confidence=SURE)
    assert_agrees(found, expected_ns)


# A server that spins before it sleeps: M/G/1 with delayed off and set-up.

VAR = math.log(3)  # of the logarithm
#: How services are drawn, and their mean square over the square of their mean.
SERVICES = {
    "constant": (lambda rng, n: np.full(n, 100.0 * US), 1.0),
    "exponential": (lambda rng, n: rng.exponential(100 * US, n), 2.0),
    "log-normal": (lambda rng, n: 100 * US * rng.lognormal(-VAR / 2, math.sqrt(VAR), n), 3.0),
}
WAKE_NS = 60 * US
WAKES = {"constant": (always(WAKE_NS), 1.0), "exponential": (exponential(WAKE_NS), 2.0)}


def serve(policy, gaps_ns, services_ns, wake):
    """Jobs by Poisson at one worker: the wait of each, and the rows of the worker's waits."""
    bench = Bench(free_profile(wake_latency=wake), policy)
    waited_ns = []

    def arrivals():
        for index, gap_ns in enumerate(gaps_ns):
            yield bench.env.timeout(gap_ns)
            bench.publish_now(index)

    def server():
        for index, service_ns in enumerate(services_ns):
            message, _ = yield from bench.receive(index)
            waited_ns.append(bench.env.now_ns - message.published_ns)
            yield from bench.reader.busy(service_ns)

    bench.run(arrivals(), server())
    return np.array(waited_ns, dtype=float), bench.reader.rows


@pytest.mark.slow
@pytest.mark.parametrize("wake", WAKES)
@pytest.mark.parametrize("load", [0.3, 0.6])
@pytest.mark.parametrize("service", SERVICES)
def test_a_waiter_that_spins_and_then_sleeps_is_a_queue_with_delayed_off_and_set_up(
    service, load, wake
):
    """Mean wait, wake-ups and spinning for each job, from theta, the wake time D and Poisson.

    With p = exp(-lambda theta): E[W] = lambda E[S^2] / (2 (1 - rho))
    + (2 p E[D] + lambda p E[D^2]) / (2 (1 + lambda p E[D])), p (1 - rho) / (1 + lambda p E[D])
    wake-ups, and (1 - rho) (1 - p) / (lambda (1 + lambda p E[D])) of spinning.
    """
    n, window_ns, mean_ns = 16_000, 150 * US, 100 * US
    rng = np.random.default_rng(20261130)
    draw, second = SERVICES[service]
    law, wake_second = WAKES[wake]
    rate = load / mean_ns
    gaps_ns = np.rint(rng.exponential(1 / rate, n)).astype(int).tolist()
    services_ns = np.rint(draw(rng, n)).astype(int).tolist()
    waited_ns, rows = serve(SpinThenPark(window_ns), gaps_ns, services_ns, law)

    p = math.exp(-rate * window_ns)
    set_up = 1 + rate * p * WAKE_NS
    mean_wait_ns = rate * second * mean_ns**2 / (2 * (1 - load)) + (
        2 * p * WAKE_NS + rate * p * wake_second * WAKE_NS**2
    ) / (2 * set_up)

    # Whoever finds the worker waiting begins a cycle: all before is forgotten.
    begins = column(rows, "published_ns") > column(rows, "started_ns")
    for values, expected in (
        (waited_ns, mean_wait_ns),
        ([row.belled for row in rows], p * (1 - load) / set_up),
        (column(rows, "cpu_ns"), (1 - load) * (1 - p) / (rate * set_up)),
    ):
        sums, lengths = cycles(values, begins)
        assert_agrees(ratio_of_cycles(sums, lengths, confidence=SURE), expected)


# A ring of few slots.


@pytest.mark.parametrize(("n_slots", "load"), [(2, 0.5), (4, 0.8), (8, 1.0), (3, 1.5)])
def test_messages_that_find_the_ring_full_are_those_lost_by_the_m_m_1_k_queue(n_slots, load):
    """Poisson messages, a slot held for an exponential read, no waiting for one: K slots."""
    n, read_ns = 24_000, 100 * US
    bench = Bench(free_profile(ring_read=exponential(read_ns)), BusySpin(), n_slots)
    gaps_ns = np.rint(np.random.default_rng(7).exponential(read_ns / load, n)).astype(int)
    is_lost = []

    def arrivals():
        for index, gap_ns in enumerate(gaps_ns.tolist()):
            yield bench.env.timeout(gap_ns)
            is_lost.append(bench.ring.is_full)
            if not bench.ring.is_full:
                bench.publish_now(index)

    def reader():
        for index in range(n):
            _, slowness_ns = yield from bench.receive(index)
            yield from bench.reader.read(bench.ring, bench.inbox, 0, slowness_ns)

    arriving = bench.env.process(arrivals())
    bench.env.process(reader())
    bench.env.run(until=arriving)
    found = batch_means(is_lost, confidence=SURE)
    assert_agrees(found, mm1k_shares(load, n_slots)[-1])


@pytest.mark.parametrize("policy", [BusySpin(), Park()], ids=["spin", "park"])
@pytest.mark.parametrize(("n_slots", "load"), [(2, 0.8), (4, 1.0), (8, 2.0)])
def test_a_writer_that_waits_for_slots_is_the_m_m_1_k_queue_that_loses_none(n_slots, load, policy):
    """It works on one message while the ring fills, so it is blocked at one more than the slots.

    Messages go through at the rate of a reader that is idle with the probability of state 0.
    """
    n, read_ns = 8_000, 100 * US
    bench = Bench(free_profile(ring_read=exponential(read_ns)), policy, n_slots)
    works_ns = np.rint(np.random.default_rng(8).exponential(read_ns / load, n)).astype(int)
    published_ns = []

    def writer():
        for index, work_ns in enumerate(works_ns.tolist()):
            message = bench.message(index)
            published_ns.append(
                (yield from bench.writer.publish(bench.ring, bench.slots, message, 0, work_ns))
            )

    def reader():
        for index in range(n):
            _, slowness_ns = yield from bench.receive(index)
            yield from bench.reader.read(bench.ring, bench.inbox, 0, slowness_ns)

    bench.run(writer(), reader())
    idle = mm1k_shares(load, n_slots + 1)[0]
    found = batch_means(np.diff(published_ns), confidence=SURE)
    assert_agrees(found, read_ns / (1 - idle))


# The arena as a loss system.


@pytest.mark.parametrize(
    ("classes", "n_readers", "load"),
    [
        ((SlotClass(MIB, 1),), 1, 0.5),
        ((SlotClass(MIB, 8),), 1, 6.0),
        ((SlotClass(MIB, 4),), 2, 3.0),
        ((SlotClass(MIB, 2), SlotClass(4 * MIB, 3)), 1, 4.0),
    ],
    ids=["one slot", "eight slots", "two readers", "a larger class takes what spills"],
)
def test_payloads_that_fall_back_from_the_arena_are_erlangs_share(classes, n_readers, load):
    """Poisson payloads, each held until the last of its readers lets go after exponential times."""
    n, held_ns = 12_000, 1 * MS
    slots_ns = held_ns / sum(1 / k for k in range(1, n_readers + 1))  # of each reader, in the mean
    env = VirtualClock()
    arena = VirtualArena(ArenaPlan(classes, MIB), n_readers)
    rng = np.random.default_rng(9)
    gaps_ns = np.rint(rng.exponential(held_ns / load, n)).astype(int).tolist()
    holds_ns = np.rint(rng.exponential(slots_ns, (n, n_readers))).astype(int).tolist()
    fell_back = []

    def arrivals():
        for gap_ns, times_ns in zip(gaps_ns, holds_ns, strict=True):
            yield env.timeout(gap_ns)
            placement = place((200, MIB), MIB, ROUTE_PRESETS["flipped"], 2 * MIB, arena)
            fell_back.append(placement.n_fallbacks)
            hold = placement.parts[1].hold
            if hold is not None:
                for time_ns in times_ns:
                    env.after(time_ns, lambda hold=hold: arena.let_go(hold))

    env.run(until=env.process(arrivals()))
    filling = 200  # payloads, many mean times of holding
    found = batch_means(fell_back[filling:], confidence=SURE)
    assert_agrees(found, erlang_b(load, sum(c.n_slots for c in classes)))


# The best window of spinning.

PENALTY_PRICE = 1.0


def cost_of_waits(policy, gaps_ns, penalty_ns):
    """CPU and delay of each wait, the gap beginning when the wait does; shape ``(n_waits,)``.

    Half of the penalty of a park is its delay, half its CPU time.
    """
    profile = free_profile(wake_latency=always(penalty_ns // 2), park_cpu=always(penalty_ns // 2))
    bench = Bench(profile, policy)

    def reader():
        for index, gap_ns in enumerate(gaps_ns):
            bench.env.after(gap_ns, lambda index=index: bench.publish_now(index))
            yield from bench.receive(index)

    bench.run(reader())
    rows = bench.reader.rows
    delays_ns = column(rows, "seen_ns") - column(rows, "published_ns")
    return column(rows, "cpu_ns") + PENALTY_PRICE * delays_ns


def costs_by_window(windows_ns, gaps_ns, penalty_ns):
    """Of each window on the same gaps, shape ``(n_waits, n_windows)``."""
    found = [cost_of_waits(SpinThenPark(w), gaps_ns, penalty_ns) for w in windows_ns]
    return np.stack(found, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_memoryless_gaps_have_no_best_window_but_none_or_all(share):
    """The mean cost m (1 - e^(-w/m)) + B e^(-w/m) is monotone: sleep at once if B < m, or spin."""
    n, mean_ns = 6_000, 200 * US
    penalty_ns = int(share * mean_ns)
    windows_ns = [0, 50 * US, 100 * US, 200 * US, 400 * US, 800 * US, 100 * MS]
    rng = np.random.default_rng(11)
    gaps_ns = np.maximum(np.rint(rng.exponential(mean_ns, n)), 1).astype(int).tolist()
    costs = costs_by_window(windows_ns, gaps_ns, penalty_ns)
    for window_ns, values in zip(windows_ns, costs.T, strict=True):
        tail = math.exp(-window_ns / mean_ns)
        if np.ptp(values) == 0:  # who parks every time pays the penalty every time
            assert values[0] == penalty_ns
        else:
            found = mean_of_replications(values, confidence=SURE)
            assert_agrees(found, mean_ns * (1 - tail) + penalty_ns * tail)
    # Each step towards the better end pays, for sure and jointly, on common gaps.
    towards = costs if share < 1 else costs[:, ::-1]
    steps = against_reference(np.diff(towards, axis=1), confidence=SURE)
    assert all(step.difference.low > 0 for step in steps)


@pytest.mark.slow
def test_gaps_of_two_modes_have_their_best_window_just_above_the_first():
    """Short gaps of 80 to 120 us, long ones of 50 ms: any window up to 120 us parks in short ones,
    and what is longer spins on in the long ones for nothing.
    """
    n, penalty_ns = 5_000, 500 * US
    rng = np.random.default_rng(12)
    short_ns = rng.integers(80 * US, 120 * US, n, endpoint=True)
    gaps_ns = np.where(rng.random(n) < 0.03, 50 * MS, short_ns).tolist()
    windows_ns = [w * US for w in (0, 60, 90, 100, 110, 120, 130, 150, 300, 1_000, 100_000)]
    costs = costs_by_window(windows_ns, gaps_ns, penalty_ns)
    best = int(np.argmin(costs.mean(axis=0)))
    assert windows_ns[best] == 120 * US
    others = np.delete(costs, best, axis=1) - costs[:, [best]]
    assert all(c.difference.low > 0 for c in against_reference(others, confidence=SURE))


def test_the_step_time_itself_goes_through_the_barrier_unchanged():
    """What the device adds behind the barrier is drawn once for all workers, whoever is last."""
    profile = free_profile(launch=exponential(50 * US))
    records = run(
        BusySpin(),
        one_request(2_000),
        profile=profile,
        workers=4,
        step_time=StepTime(2 * MS, jitter=0.1),
    )
    steps_ns = column(records.steps, "done_ns") - column(records.steps, "launched_ns")
    assert_agrees(mean_of_replications(steps_ns[1:] + 0.5, confidence=SURE), 2 * MS)
