import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.export.alike import awake_until, plan_alike, window_of
from shmsim.export.choose import offers_for, window_ns_of
from shmsim.export.engines import GENERIC, engine_names, load_engine
from shmsim.export.idle import ParkWhenIdle
from shmsim.export.pause import Round, round_of
from shmsim.export.price import context, price_of_wait, typical_price
from shmsim.policies import PRESETS, BusySpin, GraceThenPark, Park, SpinThenPark, WakeAhead
from shmsim.profile import MachineProfile
from shmsim.theory import spin_then_park_cost_ns
from shmsim.units import FOREVER_NS, MS, US, S
from shmsim.wait import TYPICAL_COSTS as COSTS
from shmsim.wait import block_penalty_ns, doze_spin_park
from tests.toy import toy_profile

ZEN = Round(30, "assumed")
LLAMA = load_engine("llama.cpp").at("b12014")
GOMP = load_engine("libgomp").at("13")
VLLM = load_engine("vllm")


def offered(engine, policy, spin_round=ZEN):
    return offers_for(engine, policy, COSTS, spin_round)


# Units.


@pytest.mark.parametrize(("cycles", "ghz", "ms"), [(10, 3, 22), (65, 4, 106), (140, 3, 306)])
def test_a_level_of_llama_cpp_is_as_long_as_its_pauses(cycles, ghz, ms):
    # engines.md, replay case R15.
    assert window_ns_of(LLAMA.window, "50", Round(cycles / ghz, "")) == pytest.approx(
        ms * MS, rel=0.01
    )


def test_the_default_of_libgomp_is_9_ms_at_30_ns_a_round():
    default = offered(GOMP, Park()).default
    assert default.policy == SpinThenPark(9 * MS)


@given(window_ns=st.integers(0, 10 * S), round_ns=st.floats(1, 200))
def test_a_window_comes_back_from_spins_within_half_a_round(window_ns, round_ns):
    found = offers_for(GOMP, SpinThenPark(window_ns), COSTS, Round(round_ns, ""))
    values = [dict(c.values)["GOMP_SPINCOUNT"] for c in found.candidates]
    back_ns = [window_ns_of(GOMP.window, v, Round(round_ns, "")) for v in values]
    assert min(abs(ns - window_ns) for ns in back_ns) <= round_ns / 2 + 1


def test_a_window_between_two_levels_is_not_taken_for_one_of_them():
    step_ns = 131072 * 30
    assert offered(LLAMA, SpinThenPark(5 * step_ns)).exact.values == (("--poll", "5"),)
    assert offered(LLAMA, SpinThenPark(step_ns // 2)).exact is None


def test_spinning_for_ever_has_a_word_in_libgomp_and_none_in_llama_cpp():
    assert offered(GOMP, BusySpin()).exact.values == (("GOMP_SPINCOUNT", "INFINITE"),)
    assert offered(LLAMA, BusySpin()).exact is None
    assert ("--poll", "100") in [c.values[0] for c in offered(LLAMA, BusySpin()).candidates]


def test_who_counts_spins_needs_to_know_how_long_one_takes():
    with pytest.raises(ValueError, match=r"llama\.cpp counts how often it looks.*--round 30ns"):
        offered(LLAMA, Park(), None)
    assert offered(VLLM.at("0.33.0"), Park(), None).default is not None


def test_a_round_is_as_given_else_measured_else_assumed_from_the_cpu_else_not_known():
    profile = MachineProfile.shipped("vm-2cpu")
    assert round_of(12, profile).ns == 12
    del profile.machine["round_ns"]
    assert "assumed, not measured" in round_of(0, profile).source
    profile.machine["round_ns"] = 28.5
    assert round_of(0, profile) == (28.5, "one round takes 28.5 ns, by the profile")
    assert round_of(0, toy_profile()) is None
    assert round_of(0, None) is None


# What an engine can do.


def test_vllm_spins_for_a_second_by_itself_and_can_be_told_no_window():
    newest = VLLM.at("0.33.0")
    assert offered(newest, PRESETS["vllm-1s"]).exact.is_default
    assert offered(newest, PRESETS["forks-2ms"]).exact is None
    assert offered(newest, WakeAhead()).exact is None


def test_sleeping_when_idle_could_be_had_until_vllm_lost_it():
    asked = PRESETS["sleep-100ms"]
    assert offered(VLLM.at("0.17.1"), asked).exact.values == (("VLLM_SLEEP_WHEN_IDLE", "1"),)
    assert offered(VLLM.at("0.18.0"), asked).exact is None
    assert offered(VLLM.at("0.8.5"), asked).exact is None


def test_a_step_loop_that_sleeps_when_idle_is_what_sglang_can_be_told():
    sglang = load_engine("sglang").at("0.5.23")
    assert offered(sglang, ParkWhenIdle()).exact.values == (("--sleep-on-idle", "1"),)
    assert offered(sglang, BusySpin()).exact.is_default
    assert offered(sglang, Park()).nearest(COSTS).policy == ParkWhenIdle()


def test_a_hand_off_of_your_own_can_do_everything():
    assert offered(load_engine(GENERIC), WakeAhead()).exact.policy == WakeAhead()


@pytest.mark.parametrize("name", [n for n in engine_names() if n != GENERIC])
def test_whatever_is_asked_of_whichever_version_only_settings_it_has_are_offered(name):
    engine = load_engine(name)
    rows = [*engine.settings, *engine.offers]
    for version in {engine.oldest, engine.newest, *(r.since for r in rows)}:
        there = engine.at(version)
        for policy in PRESETS.values():
            found = offered(there, policy)
            for candidate in (*found.candidates, found.nearest(COSTS)):
                for setting, _ in candidate.values:
                    assert there.setting(setting)


# Alike, and the price.


def test_policies_are_alike_by_what_they_do_and_not_by_their_names():
    penalty_ns = block_penalty_ns(COSTS)
    assert plan_alike(SpinThenPark(penalty_ns), PRESETS["competitive"], COSTS)
    assert plan_alike(GraceThenPark(S, 0), GraceThenPark(S, 5 * S), COSTS)  # rechecks aside
    assert not plan_alike(GraceThenPark(S), GraceThenPark(2 * MS), COSTS)
    assert not plan_alike(WakeAhead(100 * US), WakeAhead(200 * US), COSTS)  # once trained


def test_the_window_of_a_policy_is_how_long_it_looks_in_every_wait():
    assert window_of(Park(), COSTS) == 0
    assert window_of(SpinThenPark(3 * MS), COSTS) == 3 * MS
    assert window_of(BusySpin(), COSTS) == FOREVER_NS
    assert window_of(GraceThenPark(2 * MS), COSTS) is None  # counts from the last read
    assert window_of(WakeAhead(), COSTS) is None
    assert awake_until(WakeAhead(100 * US), COSTS) == 2 * MS + 200 * US


@given(wait_ns=st.integers(1, 10**8), window_ns=st.integers(0, 10**8))
def test_the_price_of_spin_then_park_is_that_of_ski_rental(wait_ns, window_ns):
    plan = SpinThenPark(window_ns).plan(context(COSTS))
    # An event at the very end of the window is seen asleep here, by the spinner there.
    expected = spin_then_park_cost_ns(wait_ns, window_ns, block_penalty_ns(COSTS))
    if wait_ns != window_ns:
        assert price_of_wait(plan, wait_ns, COSTS) == expected


def test_the_price_of_dozing_is_a_timer_and_the_spin_after_it_or_a_wake_up():
    plan = doze_spin_park(1_900 * US, 2_200 * US)
    assert price_of_wait(plan, 2 * MS, COSTS) == COSTS.block_cpu_ns + 100 * US
    asleep = COSTS.block_cpu_ns + COSTS.delay_price * COSTS.wake_latency_ns
    assert price_of_wait(plan, 1 * MS, COSTS) == asleep
    assert price_of_wait(plan, 5 * MS, COSTS) == asleep + COSTS.block_cpu_ns + 300 * US


def test_on_typical_waits_prediction_is_cheaper_than_parking_and_parking_than_spinning():
    prices = [typical_price(PRESETS[n], COSTS) for n in ("wake-ahead", "park", "vllm-1s")]
    assert prices == sorted(prices)
