"""What a sleep costs the work behind it, read off a trace; no engine here."""

import numpy as np
import pytest

from realrun.vllm.model import engine_facts, engine_profile
from realrun.vllm.rests import slow_after_park
from realrun.vllm.trace import WAIT, Row, Trace
from realrun.vllm.traces import read_traces
from shmsim.profile import MachineProfile
from shmsim.units import MS, US
from shmsim.wait import PARK, SCHEDULER_RECV, WORKER_RECV, YIELD
from tests.vllm.traces import write_engine

N = 60
ASLEEP_NS = 400 * US, 200 * US  # before the first call, and before the second
WORK_NS = 3 * MS, 300 * US
LOST_NS = 350 * US, 70 * US


def write_waits(folder, site, lost=(LOST_NS,), n=N, kind=PARK, prompt=0, gap=0):
    """Processes with n steps of vLLM's own waiting, then n that parked; work varies by itself."""
    for rank, lost_ns in enumerate(lost):
        trace = Trace(folder, {"vllm": "vllm 0", "arms": []}, n_rows=4096)
        rng = np.random.default_rng(3)
        sequence, between_ns, at_ns = 0, 0, MS
        for arm in 0, 1:
            for step in range(n):
                for call in 0, 1:
                    sequence += 1 + (gap if arm else 0)
                    trace.write(
                        Row(
                            site,
                            rank=rank,
                            thread=1 + rank,
                            call=call,
                            step=arm * n + step,
                            sequence=sequence,
                            arm=arm,
                            started_ns=at_ns,
                            published_ns=at_ns + ASLEEP_NS[call] - US,
                            seen_ns=at_ns + ASLEEP_NS[call],
                            ended_ns=at_ns + ASLEEP_NS[call] + US,
                            stage_kind=kind if arm else YIELD,
                            work_cpu_ns=20 * US,
                            between_cpu_ns=between_ns,
                            n_decode=1,
                            n_prefill_tokens=prompt,
                            kind=WAIT,
                        )
                    )
                    between_ns = int(WORK_NS[call] * rng.uniform(0.9, 1.1)) + arm * lost_ns[call]
                    at_ns += 5 * MS


def curves(folder, **how):
    write_waits(folder, SCHEDULER_RECV)
    write_waits(folder, WORKER_RECV, **how)
    return slow_after_park(read_traces(folder))


def test_each_call_has_what_it_lost_at_the_length_of_its_sleeps(tmp_path):
    found = curves(tmp_path)
    assert list(found) == ["slow_after_park", "worker_slow_after_park"]
    for curve in found.values():
        assert curve.xs == tuple(sorted(ASLEEP_NS))
        assert curve.at(0.5, ASLEEP_NS[0]) == pytest.approx(LOST_NS[0], abs=50 * US)
        assert curve.at(0.5, ASLEEP_NS[1]) == pytest.approx(LOST_NS[1], abs=10 * US)


def test_how_steps_vary_by_themselves_is_not_counted_twice(tmp_path):
    curve = curves(tmp_path)["worker_slow_after_park"]
    spread = curve.at(0.9, ASLEEP_NS[0]) - curve.at(0.1, ASLEEP_NS[0])
    assert spread < 0.1 * WORK_NS[0]  # that of the work is 0.16 of it


def test_of_several_workers_the_one_that_lost_least_counts(tmp_path):
    more = tuple(2 * ns for ns in LOST_NS)
    curve = curves(tmp_path, lost=(more, LOST_NS))["worker_slow_after_park"]
    assert curve.at(0.5, ASLEEP_NS[0]) == pytest.approx(LOST_NS[0], abs=50 * US)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"n": 40}, id="too few"),
        pytest.param({"kind": YIELD}, id="none slept"),
        pytest.param({"prompt": 16}, id="prompts"),
        pytest.param({"gap": 1}, id="rows missing in between"),
    ],
)
def test_nothing_is_said_of_what_was_not_recorded(how, tmp_path):
    assert list(curves(tmp_path, **how)) == ["slow_after_park"]


def test_a_profile_of_the_engine_has_it_in_place_of_the_boxs_own(tmp_path):
    write_engine(tmp_path, 80)
    facts = engine_facts(read_traces(tmp_path))
    assert facts.slow_after == {}
    box = MachineProfile.shipped("vm-2cpu")
    assert engine_profile(box, facts).costs["slow_after_park"] == box.costs["slow_after_park"]
    found = curves(tmp_path / "slept")
    profile = engine_profile(box, facts._replace(slow_after=found))
    assert profile.costs["worker_slow_after_park"] == found["worker_slow_after_park"]
    assert "live vLLM" in profile.source_of("worker_slow_after_park").text
