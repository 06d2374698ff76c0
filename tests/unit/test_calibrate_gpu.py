"""What a GPU reported becomes costs, and the model predicts runs on it from the profile alone."""

from dataclasses import replace

import pytest

from realrun.calibrate_gpu import (
    clock_fell,
    curves_of,
    gpu_notes,
    origin_of,
    per_prefill_token_ns,
    wait_samples,
    with_gpu,
)
from realrun.cuda.parts import Measured, Reported
from realrun.validate import predict
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.inputs.measured_steps import read_measured_steps
from shmsim.inputs.rows import InputError
from shmsim.metrics import step_time_ns
from shmsim.policies import BusySpin
from shmsim.profile import MachineProfile
from shmsim.units import MS, US
from tests.toy import toy_profile

KERNEL_NS = 2 * MS
ASKED_NS = 8_874  # from a call to the kernel's begin, and from its end to a word that is seen


def waits(*late_us, cpu_us=0.0, overshoot_us=0.0):
    """Waits for a kernel whose end was seen so much later than the earliest."""
    return [
        (
            KERNEL_NS + ASKED_NS + round(late * US),
            KERNEL_NS,
            round(cpu_us * US),
            round(overshoot_us * US),
            7 * US,
        )
        for late in late_us
    ]


#: As one H200 had it (shared/research/h200.md, section 4): against the word, a query was 6.2 us
#: late, synchronising with a blocking event 114 us for 80 us of CPU.
RESTS = [
    ("write", "spin", KERNEL_NS, waits(*[0.0] * 19, 5.7)),
    ("write", "park", KERNEL_NS, waits(110.0, 120.0, cpu_us=90)),
    ("write", "doze", KERNEL_NS, waits(1.0, overshoot_us=31)),
    ("query", "spin", KERNEL_NS, waits(6.2, 6.2, 11.4)),
    ("blocking", "spin", KERNEL_NS, waits(100.0)),
    ("blocking", "park", KERNEL_NS, waits(114.1, cpu_us=79.9)),
    ("blocking", "doze", KERNEL_NS, waits(1.0)),
    ("blocking", "yield", KERNEL_NS, waits(2.0)),
]
COPIES = [("h2d_registered", 8.0, [15_712]), ("h2d_registered", 4096.0, [17_277])]
STEPS = [
    ("device_step", 1.0, [1_870_000, 1_880_000, 1_890_000]),
    ("device_step", 8.0, [2_220_000] * 5),
    ("device_prefill", 64.0, [3_200_000]),
    ("device_launch", 0.0, [21_000, 23_000]),
]


def reported(**parts):
    return [Reported(name, 1.0, found) for name, found in parts.items()]


@pytest.fixture
def profile():
    parts = reported(
        copies=Measured(COPIES, {"rows": [], "not_registered": ""}),
        rests=Measured([], {"rests": RESTS, "not_observed": {"copy": "no counter"}}),
        steps=Measured(STEPS, {"gaps": []}),
    )
    left_out = Reported("rooms", 0.0, None, "no time: 3 s were left and it may take 30")
    return with_gpu(toy_profile(), [*parts, left_out])


def test_lateness_is_counted_from_the_earliest_sight_of_an_end():
    assert origin_of([r[3] for r in RESTS if r[1] == "spin"]) == ASKED_NS
    samples = wait_samples(RESTS)
    assert sorted(samples["device_spin_detection", 0.0]) == [*[0] * 19, 5_700]
    assert samples["device_spin_detection@query", 0.0] == [6_200, 6_200, 11_400]
    assert samples["device_wake_latency@blocking", float(KERNEL_NS)] == [114_100]
    assert samples["device_park_cpu@blocking", float(KERNEL_NS)] == [79_900]
    assert samples["device_yield_detection@blocking", 0.0] == [2_000]


def test_how_late_each_way_is_and_what_it_costs_stays_beside_the_costs(profile):
    ways = {(row["way"], row["mode"]): row for row in profile.machine["gpu"]["rests"]["ways"]}
    assert ways["write", "spin"]["late_ns"] == 0
    assert ways["query", "spin"]["late_ns"] == 6_200
    blocking = ways["blocking", "park"]
    assert (blocking["late_ns"], blocking["cpu_ns"], blocking["n"]) == (114_100, 79_900, 1)


def test_a_doze_counts_only_where_its_timer_ended_it():
    samples = wait_samples(RESTS)
    assert samples["device_timer_overshoot", float(KERNEL_NS)] == [31_000]
    assert samples["device_doze_cpu", float(KERNEL_NS)] == [7_000]
    assert not [cost for cost, _ in samples if cost == "device_timer_overshoot@blocking"]


def test_where_no_stream_may_write_the_next_best_way_has_the_plain_names():
    without = [row for row in RESTS if row[0] != "write"]
    names = {cost for cost, _ in wait_samples(without)}
    assert "device_wake_latency" in names
    assert "device_spin_detection@query" in names
    assert not any("@blocking" in name for name in names)


def test_rests_that_nobody_spun_say_nothing():
    assert wait_samples([]) == {}
    with pytest.raises(ValueError, match="nothing says when a kernel ends"):
        wait_samples([("write", "park", KERNEL_NS, waits(1.0))])


def test_a_cost_that_no_profile_has_is_refused():
    with pytest.raises(ValueError, match="a profile has no cost 'device_lunch'"):
        curves_of({("device_lunch", 0.0): [1]})


def test_costs_run_along_what_the_profile_says(profile):
    assert profile.costs["h2d_registered"].xs == (8.0, 4096.0)
    assert profile.costs["h2d_registered"].by == "bytes"
    assert profile.costs["device_step"].by == "sequences"
    assert profile.costs["device_wake_latency@blocking"].by == "asleep_ns"
    assert profile.costs["device_launch"].by == ""
    assert profile.costs["wake_latency"] == toy_profile().costs["wake_latency"]


def test_a_profile_with_a_gpu_is_stored_and_read_back(profile, tmp_path):
    path = tmp_path / "profile.json"
    profile.write(path)
    read = MachineProfile.read(path)
    assert read.costs == profile.costs
    gpu = read.machine["gpu"]
    assert gpu["left_out"] == {"rooms": "no time: 3 s were left and it may take 30"}
    assert gpu["seconds"]["copies"] == 1.0
    assert "rests" not in gpu["rests"], "raw figures stay out"
    assert read.machine["observe"] == "write", "has the plain names"
    assert set(read.ways) == {"write", "query", "blocking"}
    assert read.machine["cpu"] == "toy"


def test_the_costs_of_a_way_to_observe_take_the_place_of_the_plain_ones(profile):
    plain = profile.at_device("write").costs
    assert plain["device_wake_latency"].at(0.0, KERNEL_NS) == pytest.approx(110 * US)
    blocking = profile.at_device("blocking").costs
    assert blocking["device_wake_latency"].at(0.5, KERNEL_NS) == pytest.approx(114.1 * US)
    for costs in (plain, blocking):
        assert costs["launch"].at(0.5) == pytest.approx(22 * US)
        assert not any("@" in name for name in costs)
    assert profile.at_device("write").at_device("write").costs == plain


def test_steps_are_read_out_of_the_profile(profile, tmp_path):
    path = tmp_path / "profile.json"
    profile.write(path)
    law = read_measured_steps(path).value
    assert law.buckets == (1, 8)
    assert law.mean_ns(5, 0, 0) == pytest.approx(2_220_000)
    assert law.draw_ns(1, 0, 0, 0.0) == pytest.approx(1_880_000, abs=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "says nothing about steps of a GPU; measure them with 'realrun calibrate --gpu 0"),
        ("{", "is no profile"),
        ("[]", "is no profile"),
        ('{"costs": {"device_step": {"points": [{"x": 1, "quantiles": [1]}]}}}', "is damaged"),
        ('{"costs": {"device_step": {"points": [{"x": 1}]}}}', "is no profile: KeyError"),
    ],
)
def test_a_profile_without_steps_says_how_to_get_them(text, message, tmp_path):
    path = tmp_path / "profile.json"
    if text is None:
        toy_profile().write(path)
    else:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_measured_steps(path)
    with pytest.raises(InputError, match="cannot read"):
        read_measured_steps(tmp_path / "none.json")


def test_the_model_predicts_a_run_on_the_gpu_from_the_profile_alone(profile, tmp_path):
    path = tmp_path / "profile.json"
    profile.write(path)
    token_ns = per_prefill_token_ns(profile, 64)
    assert token_ns == 50_000
    config = RunConfig(
        engine=EngineConfig(max_sequences=1, device_wait="spin"),
        device=DeviceConfig(kind="cuda", file=str(path), per_prefill_token_ns=token_ns),
        workload=WorkloadConfig(requests=1, concurrency=1, output_p50=40, output_p95=40),
    )
    slower = replace(config, device=replace(config.device, observe="blocking"))
    asleep = replace(slower, engine=replace(slower.engine, device_wait="park"))
    found = {}
    for name, asked in (("write", config), ("blocking", slower), ("asleep", asleep)):
        records = predict(asked, BusySpin(), MachineProfile.read(path), 0)
        steps = step_time_ns([s for s in records.steps if not s.n_prefill_tokens])
        assert set(steps) <= set(range(1_869_999, 1_890_001))
        (request,) = records.requests
        found[name] = request.token_ns[-1] - request.token_ns[0]
    n_steps = len(request.token_ns) - 1
    # Nothing else differs, and every draw is the same: 100 us later each step, then 114.1.
    assert found["blocking"] - found["write"] == pytest.approx(100 * US * n_steps, rel=0.05)
    assert found["asleep"] - found["write"] == pytest.approx(114.1 * US * n_steps, rel=0.05)


def test_prompts_that_nobody_measured_are_missed():
    with pytest.raises(ValueError, match="says nothing about prompts on a GPU"):
        per_prefill_token_ns(toy_profile(), 64)


def test_what_is_wrong_with_a_gpu_is_noted(profile):
    rooms, copy = gpu_notes(profile)
    assert rooms == "not measured: rooms: no time: 3 s were left and it may take 30"
    assert copy == "ends of steps cannot be observed by 'copy': no counter"
    assert gpu_notes(toy_profile()) == []


def test_that_nobody_can_say_how_busy_a_gpu_is_is_noted():
    def notes(**said):
        facts = Measured([], {"nvidia_smi": said})
        return gpu_notes(with_gpu(toy_profile(), reported(facts=facts)))

    assert notes(**{"utilization.gpu": "0"}) == []
    (note,) = notes(driver_version="575")
    assert note.startswith("nvidia-smi does not tell how busy this GPU is")


def test_a_clock_that_fell_is_told():
    hot, cool = {"clocks.sm": "1410"}, {"clocks.sm": "1980"}
    assert clock_fell(cool, hot) == "from 1980 to 1410 MHz"
    assert clock_fell(hot, cool) == clock_fell(cool, cool) == clock_fell({}, cool) == ""
    assert clock_fell({"clocks.sm": "[N/A]"}, cool) == ""
