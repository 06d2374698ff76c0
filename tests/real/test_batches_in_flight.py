"""As many batches are in flight as the config says, in both worlds alike."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from realrun.run import run_once
from shmsim.config import HandoffConfig
from shmsim.laws import check_laws
from shmsim.policies import PRESETS
from shmsim.sim.run import simulate
from shmsim.units import MS
from tests.real.runs import N_REQUESTS, N_TOKENS, config, spec
from tests.toy import toy_profile

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


def in_flight(records):
    """How many batches were in flight with each that was scheduled, itself included."""
    scheduled_ns = np.array([step.scheduled_ns for step in records.steps])
    seen_ns = [step.seen_ns for step in records.steps]
    return 1 + np.arange(len(scheduled_ns)) - np.searchsorted(seen_ns, scheduled_ns, "right")


@pytest.mark.parametrize(
    ("workers", "calls", "n"), [*product((1, 2), (1, 2), (3,)), (1, 2, 2), (1, 1, 16)]
)
def test_the_machine_and_the_model_have_the_same_number_in_flight(workers, calls, n):
    """The first ones are sent before a reply is waited for, whatever takes how long."""
    asked = config(workers, calls, "async", in_flight=n)
    records = run_once(spec(asked, PRESETS["park"]))
    check_laws(records, n_workers=workers, n_threads=2)
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS
    modelled = simulate(asked, PRESETS["park"], toy_profile())
    for world in (records, modelled):
        assert in_flight(world)[:n].tolist() == list(range(1, n + 1))
        assert in_flight(world).max() == n


@pytest.mark.parametrize("workers", [1, 2])
def test_more_in_flight_than_the_rings_hold_finishes(workers):
    asked = config(workers, 2, "async", step_ns=2 * MS, in_flight=6)
    asked = replace(asked, handoff=HandoffConfig(slots=2))
    records = run_once(spec(asked, PRESETS["park"]))
    check_laws(records, n_workers=workers, n_threads=2)
    assert [len(request.token_ns) for request in records.requests] == [N_TOKENS] * N_REQUESTS
    assert in_flight(records).max() <= 6
