"""The instruments of experiments/08_oversubscription, on this machine."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.conftest import eventually
from tests.scripts import EXPERIMENTS, imported

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

FOLDER = EXPERIMENTS / "08_oversubscription"
WORK_NS = 20_000


@pytest.fixture(scope="module", autouse=True)
def experiment():
    """The modules of the experiment by name."""
    with imported([FOLDER], "contention", "facts", "findings", "quota") as modules:
        yield modules


# Threads that share cores.


@pytest.fixture(scope="module")
def tools(experiment):
    try:
        with experiment["contention"].compiled() as tools:
            yield tools
    except experiment["contention"].CannotMeasureError as error:
        pytest.skip(str(error))


def test_what_has_no_end_on_a_busy_box_is_said_and_no_traceback(tools, experiment, monkeypatch):
    monkeypatch.setattr(experiment["contention"], "_GRACE_S", -0.19)
    with pytest.raises(RuntimeError, match=r"too busy: 'ring spin 2 20000 0\.2' wants 0\.2 s"):
        tools.ring("spin", 2, WORK_NS, 0.2)


@pytest.mark.parametrize("n_threads", [2, 3])
@pytest.mark.parametrize("wait", ["spin", "yield", "park"])
def test_a_turn_takes_at_least_the_work_of_everybody_it_passes(tools, wait, n_threads):
    round_trips_ns = tools.ring(wait, n_threads, WORK_NS, 0.1)
    assert len(round_trips_ns) > 0
    assert round_trips_ns.min() >= n_threads * WORK_NS


def test_two_spinners_take_turns_on_the_core_they_share(tools):
    on_ns, off_ns = tools.stays("spin", 0.3)
    assert len(on_ns) == len(off_ns) > 0
    assert on_ns.min() >= 0
    assert off_ns.min() > 0


@pytest.mark.parametrize("other", ["none", "spin", "yield"])
def test_every_wake_up_is_measured_once(tools, other):
    latencies_ns = tools.wakes(other, 500_000, WORK_NS, 20)
    assert len(latencies_ns) == 20
    assert latencies_ns.min() > 0


def test_an_unknown_way_to_wait_is_refused(tools):
    with pytest.raises(RuntimeError, match="unknown way to wait: doze"):
        tools.ring("doze", 2, WORK_NS, 0.1)


# A quota.


@pytest.fixture
def group(experiment):
    quota = experiment["quota"]
    try:
        with quota.child_group() as group:
            yield group
    except experiment["contention"].CannotMeasureError as error:
        pytest.skip(str(error))
    assert not group.folder.exists()


def spin_in(group) -> subprocess.Popen:
    """A process that moves into a group and spins there."""
    code = f"open({str(group.procs)!r}, 'w').write('0')\nprint(flush=True)\nwhile True: pass"
    spinner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    spinner.stdout.readline()
    return spinner


def test_a_spinner_under_a_quota_is_throttled_and_without_one_is_not(group, experiment):
    read = experiment["quota"].Throttling.read
    with spin_in(group) as spinner:
        assert read(group.stat).throttled_ns == 0
        group.limit(0.1)
        eventually(lambda: read(group.stat).throttled_ns > 100_000_000)
        group.limit(None)
        spinner.kill()


def test_who_is_left_in_the_group_is_ended_with_it(experiment):
    try:
        with experiment["quota"].child_group() as group:
            spinner = spin_in(group)
    except experiment["contention"].CannotMeasureError as error:
        pytest.skip(str(error))
    assert not group.folder.exists()
    assert spinner.wait(5) == -signal.SIGKILL
    spinner.stdout.close()


def test_an_exception_removes_the_group_too(experiment):
    try:
        with pytest.raises(KeyboardInterrupt), experiment["quota"].child_group() as group:
            raise KeyboardInterrupt
    except experiment["contention"].CannotMeasureError as error:
        pytest.skip(str(error))
    assert not group.folder.exists()


@pytest.mark.parametrize(
    ("text", "throttled_ns"),
    [
        ("nr_periods 7\nnr_throttled 3\nthrottled_time 5000000\nnr_bursts 0\n", 5_000_000),
        ("usage_usec 9\nnr_periods 7\nnr_throttled 3\nthrottled_usec 5000\n", 5_000_000),
    ],
    ids=["version 1", "version 2"],
)
def test_both_versions_of_cgroups_tell_the_same(experiment, tmp_path, text, throttled_ns):
    (tmp_path / "cpu.stat").write_text(text)
    found = experiment["quota"].Throttling.read(tmp_path / "cpu.stat")
    assert found == (7, 3, throttled_ns)


# What is made of it.


def facts_record() -> dict:
    wake = {"gap_ns": 2_000_000, "repeat": 0, "p90_ns": 90_000.0}
    return {
        "kernel": {"tick_ns": 4_000_000},
        "stays": [
            {"other": "spin", "on": {"p50_ns": 3_900_000.0}, "share": 0.5},
            {"other": "spin", "on": {"p50_ns": 4_100_000.0}, "share": 0.5},
            {"other": "yield", "on": {"p50_ns": 1e9}, "share": 0.99},
        ],
        "wakes": [
            {**wake, "other": other, "load": load, "p50_ns": p50_ns, "at_once": at_once}
            for other, load, p50_ns, at_once in (
                ("none", "light", 30_000.0, 1.0),
                ("spin", "light", 25_000.0, 0.8),
                ("spin", "heavy", 28_000.0, 0.6),
                ("yield", "light", 20_000.0, 1.0),
            )
        ],
    }


def test_the_facts_are_read_as_numbers_for_a_model(experiment, tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(facts_record()))
    facts = experiment["facts"].read_core_facts(path)
    assert facts.stay_beside_spinner_ns == 4_000_000.0
    assert facts.tick_ns == 4_000_000
    assert facts.wake_idle_ns == (30_000.0, 90_000.0)
    assert facts.wake_beside_spinner_ns == (25_000.0, 90_000.0)
    assert (facts.preempts_share, facts.preempts_share_heavy) == (0.8, 0.6)


def test_a_record_without_a_kind_of_measurement_is_refused(experiment, tmp_path):
    path = tmp_path / "facts.json"
    record = facts_record()
    record["wakes"] = [w for w in record["wakes"] if w["other"] != "yield"]
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="holds no facts about cores"):
        experiment["facts"].read_core_facts(path)
    with pytest.raises(ValueError, match="cannot read"):
        experiment["facts"].read_core_facts(Path("nowhere.json"))


def test_the_collapse_is_claimed_as_the_median_of_the_repeats(experiment, tmp_path):
    rows = [
        {"wait": wait, "threads": n, "repeat": i, "mean_ns": mean_ns * (1 + i / 10)}
        for i in range(3)
        for wait in ("spin", "yield", "park")
        for n, mean_ns in ((2, 20_000.0), (3, 8_000_000.0 if wait == "spin" else 30_000.0))
    ]
    (tmp_path / "ring.json").write_text(json.dumps({"rows": rows}))
    found = {claim.id: claim for claim in experiment["findings"].claims(tmp_path)}
    assert found["oversubscription/ring/spin_3_over_2"].value == pytest.approx(400)
    assert all(claim.holds for claim in found.values())
    assert len(found) == 3
