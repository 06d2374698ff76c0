"""A full ring makes its writer wait, by policy; and no two full rings wait for each other."""

import threading
import time
from dataclasses import replace

import pytest

from realrun.doorbell import KINDS
from realrun.layout import SegmentLayout
from realrun.publisher import Publisher
from realrun.ring import RingReader, RingWriter, SlotWatch
from realrun.run import run_once
from realrun.segment import Segment
from realrun.waiter import Known, Waiter
from realrun.waiting import Stopped
from shmsim.config import HandoffConfig
from shmsim.policies import PRESETS
from shmsim.tape import Tape
from shmsim.units import FOREVER_NS, MS, US
from shmsim.wait import PARK, SCHEDULER_SLOT, SITE_NAMES, SPIN, WaitCosts
from tests.conformance.carriers import CARRIERS, carry_by
from tests.real import runs

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

SPIN_PLAN = (SPIN, FOREVER_NS, 0, *(PARK, FOREVER_NS, 0) * 3)
COSTS = WaitCosts(50 * US, 15 * US, 60 * US, 100 * US, 30 * US, 10.0)
KNOWN = Known(0, True, 1, 0, 10)
N_MESSAGES = 200


@pytest.fixture(params=CARRIERS)
def carrier(request, monkeypatch):
    carry_by(request.param, monkeypatch.setattr)


def publisher(segment: Segment, policy) -> Publisher:
    writer = RingWriter(segment, segment.layout.request)
    watch = SlotWatch(writer, segment)
    uniform = Tape(1).uniform("writer", "policy")
    return Publisher(writer, Waiter("writer", SCHEDULER_SLOT, watch, policy, COSTS, uniform))


@pytest.mark.parametrize("preset", ["spin", "yield", "forks-2ms", "park", "wake-ahead"])
@pytest.mark.parametrize("n_readers", [1, 2])
@pytest.mark.parametrize("doorbell", KINDS)
@pytest.mark.usefixtures("carrier")
def test_a_writer_that_is_faster_than_its_readers_waits_and_loses_nothing(
    preset, n_readers, doorbell
):
    with Segment.create(SegmentLayout(n_readers, n_slots=2), doorbell) as segment:
        ends = publisher(segment, PRESETS[preset])
        got = [[] for _ in range(n_readers)]

        def read_slowly(reader: int) -> None:
            ring = RingReader(segment, segment.layout.request, reader)
            while len(got[reader]) < N_MESSAGES:
                ring.wait(SPIN_PLAN)
                if len(got[reader]) % 10 == 0:
                    time.sleep(1e-3)
                got[reader].append(ring.read().call_id)

        threads = [threading.Thread(target=read_slowly, args=(r,)) for r in range(n_readers)]
        for thread in threads:
            thread.start()
        for call_id in range(N_MESSAGES):
            ends.send(call_id, 0, [b""], KNOWN)
        for thread in threads:
            thread.join()
        assert got == [list(range(N_MESSAGES))] * n_readers
        rows = ends.waiter.rows
        assert rows, "two slots and two hundred messages: the writer must have waited"
        assert all(row.seen_ns >= row.published_ns for row in rows)


@pytest.mark.parametrize("doorbell", KINDS)
@pytest.mark.usefixtures("carrier")
def test_a_writer_asleep_on_a_full_ring_leaves_when_the_run_is_stopped(doorbell):
    with Segment.create(SegmentLayout(1, n_slots=2), doorbell) as segment:
        ends = publisher(segment, PRESETS["park"])
        for call_id in range(2):
            ends.send(call_id, 0, [b""], KNOWN)

        stop = threading.Timer(0.05, segment.stop)
        stop.start()
        with pytest.raises(Stopped):
            ends.send(2, 0, [b""], KNOWN)
        stop.join()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_can_rehearse(workers):
    config = runs.config(workers=workers, step_ns=3 * MS)
    records = run_once(runs.spec(config, PRESETS["rehearse-ahead"]))
    # Doze, rehearse, spin: the third stage is the one behind a rehearsal.
    assert any(w.stage == 2 and w.process == "scheduler" for w in records.waits)
    assert [len(r.token_ns) for r in records.requests] == [runs.N_TOKENS] * runs.N_REQUESTS


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_on_rings_of_two_slots_finishes_and_says_who_waited(scheduling, workers):
    spec = runs.spec(runs.config(workers=workers, scheduling=scheduling))
    spec = replace(spec, handoff=HandoffConfig(slots=2))
    records = run_once(spec)
    assert [len(r.token_ns) for r in records.requests] == [runs.N_TOKENS] * runs.N_REQUESTS
    slot_waits = [w for w in records.waits if SITE_NAMES[w.site] == "worker_slot"]
    # The reply ring has a slot for each step in flight: that is why nobody can wait for ever.
    assert slot_waits == []


def test_a_step_longer_than_the_ring_is_deep_pushes_back_on_an_asynchronous_scheduler():
    config = runs.config(scheduling="async", step_ns=5 * MS)
    records = run_once(replace(runs.spec(config), handoff=HandoffConfig(slots=2)))
    waits = [w for w in records.waits if SITE_NAMES[w.site] == "scheduler_slot"]
    assert all(w.seen_ns >= max(w.published_ns, w.started_ns) for w in waits)
    assert [len(r.token_ns) for r in records.requests] == [runs.N_TOKENS] * runs.N_REQUESTS
