"""Every policy of the library runs: in the model, on each profile, and on this machine."""

import threading
import time

import pytest

from realrun.layout import SegmentLayout
from realrun.ring import RingReader, RingWriter
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from shmsim.inputs.shipped import shipped_names
from shmsim.laws import check_laws
from shmsim.policies import POLICIES
from shmsim.profile import MachineProfile
from shmsim.sim.compiled import random_waits
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.wait import SCHEDULER_RECV, check_plan
from shmsim.workload import Request, Workload
from tests.conformance.carriers import CARRIERS, carry_by
from tests.every_policy import EVERY_POLICY, is_deaf
from tests.theory.noisy import JITTERY, noisy_profile
from tests.theory.runs import FREE, run, token_times
from tests.toy import toy_profile
from tests.unit.waits import COSTS

each = pytest.mark.parametrize("policy", EVERY_POLICY.values(), ids=EVERY_POLICY)

WORKLOAD = Workload(
    (Request(0, 30, 12), Request(2 * MS, 90, 8), Request(60 * MS, 5, 4), Request(61 * MS, 9, 3)), 0
)


def test_every_class_is_among_them():
    assert {type(policy) for policy in EVERY_POLICY.values()} == set(POLICIES.values())


@each
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_the_model_runs_it_by_the_laws(policy, scheduling):
    records = run(
        policy, WORKLOAD, profile=noisy_profile(), step_time=JITTERY, calls=2, workers=2,
        scheduling=scheduling, device_policy=policy,
    )  # fmt: skip
    records.meta["world"] = "model"
    check_laws(records, n_workers=2, n_threads=2 if scheduling == "async" else 1)
    assert [len(r.token_ns) for r in records.requests] == [12, 8, 4, 3]
    assert any(wait.stage_kind >= 0 for wait in records.waits)


@each
@pytest.mark.parametrize("name", shipped_names())
def test_the_model_runs_it_on_a_shipped_profile_with_its_own_cpu(policy, name):
    profile = MachineProfile.shipped(name)
    assert set(profile.costs_of_policy(type(policy).__name__)) == {"plan", "after"}
    records = run(policy, WORKLOAD, profile=profile, calls=2)
    assert [len(r.token_ns) for r in records.requests] == [12, 8, 4, 3]


@each
def test_where_sleeping_and_waking_are_free_it_delays_nobody_unless_it_is_deaf(policy):
    expected = token_times(run(EVERY_POLICY["spin"], WORKLOAD, profile=toy_profile(**FREE)))
    found = token_times(run(policy, WORKLOAD, profile=toy_profile(**FREE)))
    if found != expected:
        assert is_deaf(policy, random_waits(200, 1))


@pytest.mark.real
@pytest.mark.timeout(30)
@pytest.mark.parametrize("carrier", CARRIERS)
@each
def test_a_waiter_of_this_machine_carries_it_out_and_learns(policy, carrier, monkeypatch):
    carry_by(carrier, monkeypatch.setattr)
    n, gap_s = 6, 1.5e-3
    rehearsed = []
    with Segment.create(SegmentLayout(1, n_slots=n + 1)) as segment:
        layout = segment.layout.request
        writer, reader = RingWriter(segment, layout), RingReader(segment, layout, 0)
        uniform = Tape(1).uniform("reader", "policy")
        waiter = Waiter(
            "reader", SCHEDULER_RECV, reader, policy, COSTS, uniform, lambda _: rehearsed.append(1)
        )

        def publish() -> None:
            for call_id in range(n):
                time.sleep(gap_s)
                writer.publish(call_id, 0, [b""])

        thread = threading.Thread(target=publish)
        thread.start()
        got = []
        for index in range(n):
            known = Known(index, True, 4, 100 * (index % 2), 4000)
            got.append(waiter.wait(0, known)[0].call_id)
            waiter.learn()
        thread.join()
    assert got == list(range(n))
    assert len(waiter.rows) == n
    assert all(row.seen_ns >= max(row.published_ns, row.started_ns) for row in waiter.rows)
    assert type(waiter.policies[0]) is type(policy)
    check_plan(waiter._plan)
    assert not rehearsed or "rehearse" in str(policy)
