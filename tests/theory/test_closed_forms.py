"""The model against queueing theory and probability, where a closed form exists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.metrics import Quantiles, Summary, ttft_ns, wait_delay_ns
from shmsim.policies import BusySpin, Park, SpinThenPark
from shmsim.profile import Curve, Distribution
from shmsim.sim.draws import Draws
from shmsim.sim.waiter import VirtualWait
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.theory import run_cost, spin_then_park_cost_ns, wait_cost
from shmsim.units import MS, US, S
from shmsim.wait import SCHEDULER_RECV, WaitContext, block_penalty_ns
from shmsim.workload import Lengths, open_loop
from tests.theory.runs import one_request, run
from tests.toy import toy_profile

ONE = Lengths(1, 1, 1)
AROUND_NS = 70 * US  # work around a step, see test_critical_path
AFTER_SEEN_NS = 14 * US  # the part of it that follows the token


def normal_cdf(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


def test_share_of_waits_that_park_matches_the_exponential_tail():
    n, mean_ns, window_ns = 20_000, 80 * US, 50 * US
    profile = toy_profile()
    plan = SpinThenPark(window_ns).plan(
        WaitContext(0, 0, 0, True, 1, 0, 0, 0.5, profile.wait_costs(1.0))
    )
    draws = Draws(profile, Tape(1), "worker0")
    waits_ns = np.random.default_rng(20240607).exponential(mean_ns, n)
    parked = sum(VirtualWait(plan, draws, i).see(int(w)).belled for i, w in enumerate(waits_ns))
    p = math.exp(-window_ns / mean_ns)
    assert abs(parked / n - p) < 4 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("window_ns", [1_850 * US, 2_000 * US, 2_150 * US])
def test_share_of_steps_that_park_matches_the_log_normal_tail(window_ns):
    """In a whole run: the scheduler waits for the step and for the work of the worker round it."""
    n, mean_ns, cv = 3_000, 2 * MS, 0.1
    records = run(SpinThenPark(window_ns), one_request(n), step_time=StepTime(mean_ns, jitter=cv))
    parked = [w.belled for w in records.waits if w.site == SCHEDULER_RECV]
    assert len(parked) == n
    # From the publication, where the wait starts: read, decode, launch, step, encode, publish. The
    # worker never parks, for its own waits are well within the window.
    work_ns = (3 + 8 + 4 + 7 + 2) * US
    sigma = math.sqrt(math.log1p(cv * cv))
    share = 1 - normal_cdf(math.log((window_ns - work_ns) / mean_ns) / sigma + sigma / 2)
    assert abs(np.mean(parked) - share) < 4 * math.sqrt(share * (1 - share) / n)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_waiting_for_a_lone_server_is_that_of_the_m_d_1_queue(load):
    """One sequence at a time, one token each, arrivals by Poisson: Pollaczek and Khinchine."""
    n = 8_000
    service_ns = AROUND_NS + 200 * US
    workload = open_loop(n, load / (service_ns / S), 1.0, ONE, ONE, Tape(1))
    profile = toy_profile(timer_overshoot=0)
    records = run(
        BusySpin(), workload, profile=profile, step_time=StepTime(200 * US), max_sequences=1
    )
    waited_ns = ttft_ns(records.requests) - (service_ns - AFTER_SEEN_NS)
    expected_ns = load * service_ns / (2 * (1 - load))
    # Waits of neighbours are alike: the error comes from the means of batches far longer than a
    # busy period.
    means = waited_ns.reshape(20, -1).mean(axis=1)
    standard_error = means.std(ddof=1) / math.sqrt(len(means))
    assert abs(waited_ns.mean() - expected_ns) < 4 * standard_error
    # An arrival waits for nobody with the probability that the server is free.
    free = (waited_ns == 0).reshape(20, -1).mean(axis=1)
    assert abs(free.mean() - (1 - load)) < 4 * free.std(ddof=1) / math.sqrt(len(free))


def test_requests_in_the_engine_are_arrival_rate_times_time_in_it():
    """Little's law, the number in the engine being counted by arrivals that look (PASTA)."""
    n, rate_per_s = 3_000, 300.0
    workload = open_loop(n, rate_per_s, 1.0, Lengths(20, 20, 20), Lengths(4, 8, 20), Tape(3))
    records = run(BusySpin(), workload, step_time=StepTime(500 * US, 10 * US))
    arrivals = np.array([r.arrival_ns for r in records.requests])
    ends = np.sort([r.token_ns[-1] for r in records.requests])
    found = np.arange(n) - np.searchsorted(ends, arrivals)
    stayed_s = np.array([r.token_ns[-1] - r.arrival_ns for r in records.requests]) / S
    difference = (found - rate_per_s * stayed_s).reshape(20, -1).mean(axis=1)
    standard_error = difference.std(ddof=1) / math.sqrt(len(difference))
    assert found.mean() > 0.5
    assert abs(difference.mean()) < 4 * standard_error


def test_the_delay_of_a_parked_scheduler_has_the_law_of_the_wake_latency():
    n = 2_000
    profile = toy_profile()
    latency = Distribution.of([np.random.default_rng(1).exponential(40 * US, 5_000)])
    profile.costs["wake_latency"] = Curve("asleep_ns", (0.0,), (latency,))
    delays = np.sort(wait_delay_ns(run(Park(), one_request(n), profile=profile), SCHEDULER_RECV))
    assert len(delays) == n
    for u in (0.1, 0.5, 0.9):
        share = (delays <= latency.at(u)).mean()
        assert abs(share - u) < 4 * math.sqrt(u * (1 - u) / n)


# Ski rental.


@given(st.integers(0, 10**10), st.integers(1, 10**7))
def test_spinning_for_one_block_penalty_costs_at_most_twice_the_clairvoyant(wait_ns, penalty_ns):
    online = spin_then_park_cost_ns(wait_ns, penalty_ns, penalty_ns)
    offline = min(wait_ns, penalty_ns)
    assert online <= 2 * offline


@pytest.mark.parametrize("window_ns", [0, 30 * US, 80 * US, 1 * MS])
def test_for_memoryless_waits_the_mean_cost_of_a_window_is_that_of_the_closed_form(window_ns):
    """``m (1 - e^(-w/m)) + B e^(-w/m)``: monotone in w, so no window in between is best."""
    n, mean_ns, penalty_ns = 20_000, 80 * US, 200 * US
    waits_ns = np.random.default_rng(5).exponential(mean_ns, n).astype(np.int64)
    costs = np.array([spin_then_park_cost_ns(int(w), window_ns, penalty_ns) for w in waits_ns])
    tail = math.exp(-window_ns / mean_ns)
    expected = mean_ns * (1 - tail) + penalty_ns * tail
    # A wait is cut to whole nanoseconds, so half of one is missing on average.
    assert abs(costs.mean() - expected) < 4 * costs.std() / math.sqrt(n) + 0.5


def test_the_price_of_a_wait_in_the_model_is_the_ski_rental_price():
    """Detection free: the CPU of a spin is its length, that of a park its wake-up; delay is priced.

    Which makes a parked wait cost the window and ``B = r W + C`` more.
    """
    profile, price, window_ns = toy_profile(), 3.0, 100 * US
    costs = profile.wait_costs(price)
    plan = SpinThenPark(window_ns).plan(WaitContext(0, 0, 0, True, 1, 0, 0, 0.5, costs))
    for wait_ns in (1, 99 * US, 100 * US, 101 * US, 5 * MS):
        seen = VirtualWait(plan, Draws(profile, Tape(1), "w"), 0).see(wait_ns)
        paid_ns = sum(seen.cpu_ns) + price * (seen.seen_after_ns - wait_ns)
        assert paid_ns == spin_then_park_cost_ns(wait_ns, window_ns, block_penalty_ns(costs))


def summary(tpot_ns, scheduler_cores, worker_cores):
    nothing, tpot = Quantiles(0, 0.0, 0.0, 0.0), Quantiles(9, tpot_ns, tpot_ns, tpot_ns)
    return Summary(
        nothing, nothing, tpot, nothing, scheduler_cores, worker_cores, 1.0, 1.0, 1.0, 1.0, 9
    )


def test_the_price_of_a_run_is_its_cores_and_its_priced_delay():
    reference, tried = summary(2e6, 1.0, 1.0), summary(2.02e6, 0.1, 0.2)
    assert wait_cost(0.5, 0.01, 10.0) == pytest.approx(0.6)
    assert run_cost(reference, reference, 2, 10.0) == pytest.approx(3.0)
    assert run_cost(tried, reference, 2, 10.0) == pytest.approx(0.1 + 2 * 0.2 + 10 * 0.01)
