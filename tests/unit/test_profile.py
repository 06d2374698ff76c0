import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.profile import (
    COSTS,
    OPTIONAL_COSTS,
    QUANTILE_GRID,
    VERSION,
    Curve,
    Distribution,
    MachineProfile,
)
from shmsim.provenance import CALIBRATED, Source
from shmsim.units import US
from tests.toy import constant, toy_profile

VALUES = st.lists(st.integers(0, 10**9), min_size=1, max_size=300)


# Distributions.


@pytest.mark.parametrize("n", [25, 100, 401])
def test_the_interval_covers_the_median_as_often_as_it_says(n):
    # False alarms: beyond 4 standard errors on either side, once in 15,000 seeds.
    n_intervals, true_median = 2_000, math.log(2)
    standard_error = math.sqrt(0.95 * 0.05 / n_intervals)
    intervals = [
        Distribution.of([values])
        for values in np.random.default_rng(n).exponential(1.0, (n_intervals, n))
    ]
    covered = sum(d.low <= true_median <= d.high for d in intervals) / n_intervals
    assert covered > 0.95 - 4 * standard_error
    # Ranks are whole, so up to three more than needed lie inside, each with the probability that
    # the normal approximation to the binomial gives an edge: 0.117 / sqrt(n).
    assert covered < 0.95 + 3 * 0.117 / math.sqrt(n) + 4 * standard_error


@given(VALUES)
def test_quantiles_ascend_from_the_least_to_the_greatest_value(values):
    d = Distribution.of([values])
    assert d.n == len(values)
    assert d.at(0.0) == min(values)
    assert d.at(1.0) == pytest.approx(max(values), rel=1e-12)
    drawn = [d.at(u) for u in np.linspace(0, 1, 500)]
    assert all(a <= b + 1e-9 * abs(b) for a, b in pairwise(drawn))
    assert d.low <= d.median <= d.high


def test_drawing_by_uniform_numbers_gives_the_measured_distribution_back():
    rng = np.random.default_rng(3)
    values = rng.lognormal(3.0, 0.5, 5_000)
    d = Distribution.of([values])
    drawn = np.array([d.at(u) for u in rng.random(5_000)])
    # Between grid points a line stands in for the law, whose bend moves the mean by less than
    # the standard error of either sample.
    standard_error = values.std() * math.sqrt(2 / 5_000)
    assert abs(drawn.mean() - values.mean()) < 4 * standard_error
    for p in (0.1, 0.5, 0.9, 0.99):
        share = (drawn <= np.quantile(values, p)).mean()
        assert abs(share - p) < 4 * math.sqrt(2 * p * (1 - p) / 5_000)


def test_the_tail_is_resolved_to_a_tenth_of_a_percent():
    values = np.arange(10_001, dtype=float) ** 2
    d = Distribution.of([values])
    for u in QUANTILE_GRID:
        assert d.at(min(u, 1.0)) == pytest.approx(np.quantile(values, min(u, 1.0)), abs=0.1)


def test_replicates_are_pooled_and_their_medians_kept():
    d = Distribution.of([[1.0, 2.0, 3.0], [], [10.0, 20.0]])
    assert d.n == 5
    assert d.median == 3.0
    assert d.replicates == (2.0, 15.0)


def test_a_distribution_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        Distribution.of([[], []])


# Curves.

RISING = Curve("bytes", (10.0, 20.0, 40.0), (constant(100), constant(300), constant(200)))


@given(st.floats(0, 1), st.floats(-100, 1000))
def test_between_two_points_a_curve_is_a_straight_line_and_outside_it_is_level(u, x):
    expected = np.interp(x, [10, 20, 40], [100, 300, 200])
    assert RISING.at(u, x) == pytest.approx(expected, rel=1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_curve_interpolates_quantile_by_quantile(u, share):
    left, right = Distribution.of([[0.0, 10.0]]), Distribution.of([[100.0, 200.0]])
    curve = Curve("bytes", (0.0, 1.0), (left, right))
    expected = left.at(u) + share * (right.at(u) - left.at(u))
    assert curve.at(u, share) == pytest.approx(expected, rel=1e-12, abs=1e-12)


# Profiles.


def test_a_profile_reads_back_as_it_was_written(tmp_path):
    profile = toy_profile()
    noisy = Distribution.of([np.random.default_rng(1).exponential(100.0, 500)])
    profile.costs["ring_read"] = Curve("bytes", (64.0, 4096.0), (noisy, constant(7)))
    profile.write(tmp_path / "new" / "profile.json")
    assert MachineProfile.read(tmp_path / "new" / "profile.json") == profile


def test_policies_are_told_medians_and_the_late_tail_of_the_timer():
    profile = toy_profile()
    profile.costs["timer_overshoot"] = Curve(
        "asleep_ns", (0.0,), (Distribution.of([np.arange(1_001) * 1_000.0]),)
    )
    assert profile.wait_costs(3.0)[:4] == (50 * US, 15 * US, 990 * US, 60 * US)
    assert profile.wait_costs(3.0).delay_price == 3.0


def test_policies_are_told_by_how_much_a_decision_is_dearer_than_none():
    profile = toy_profile()
    cold = Curve("asleep_ns", (0.0, 4e6), (constant(5 * US), constant(45 * US)))
    profile.policy_costs["StepAhead"] = {"plan": cold, "after": cold}
    hot = Curve("asleep_ns", (0.0,), (constant(7 * US),))
    profile.policy_costs["AtRest"] = {"plan": hot, "after": cold}
    assert profile.wait_costs(10.0).deciding_ns == 18 * US
    profile.policy_costs["StepAhead"] = {"plan": hot, "after": hot}
    assert profile.wait_costs(10.0).deciding_ns == 0


def test_a_wait_left_undecided_takes_what_parking_takes_where_nobody_measured_it():
    profile = toy_profile()
    profile.policy_costs["Park"] = {what: constant(7 * US) for what in ("plan", "after")}
    assert profile.costs_of_policy("AtRest") is profile.policy_costs["Park"]


@pytest.fixture
def stored(tmp_path):
    """Write a profile with something changed in it."""
    path = tmp_path / "profile.json"
    toy_profile().write(path)

    def change(how):
        content = json.loads(path.read_text())
        how(content)
        path.write_text(json.dumps(content))
        return path

    return change


def spoil(keys, value):
    def how(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return how


def forget(*keys):
    def how(content):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return how


POINT = ("costs", "launch", "points", 0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (spoil(["format"], "else"), 'is not a profile: it lacks "format": "shmsim-profile"'),
        (spoil(["version"], VERSION + 1), f"reads version {VERSION}; update this program"),
        (spoil(["version"], VERSION - 1), f"reads version {VERSION}; calibrate again"),
        (forget("costs", "launch"), "lacks launch; calibrate again"),
        (forget("costs"), "is damaged: .*calibrate again"),
        (spoil(["costs"], 7), "is damaged: .*calibrate again"),
        (forget("machine"), "is damaged: .*calibrate again"),
        (spoil([*POINT, "quantiles"], [1.0, 2.0]), "is damaged: .*2 quantiles instead of"),
        (
            spoil([*POINT, "quantiles"], [float("nan")] * len(QUANTILE_GRID)),
            "is damaged: .*not ascending",
        ),
        (
            spoil([*POINT, "quantiles"], [-float(i) for i in range(len(QUANTILE_GRID))]),
            "is damaged: .*not ascending",
        ),
        (spoil([*POINT, "median"], None), "is damaged: .*calibrate again"),
        (spoil(["costs", "launch", "points"], []), "launch needs points along ascending x, got"),
        (forget("policy_costs", "Park", "after"), "is damaged: .*after"),
    ],
)
def test_a_profile_that_is_damaged_or_of_another_version_is_refused(stored, how, message):
    path = stored(how)
    with pytest.raises(ValueError, match=rf"profile\.json.*{message}"):
        MachineProfile.read(path)


def test_points_out_of_order_are_refused(stored):
    def how(content):
        points = content["costs"]["ring_read"]["points"]
        points.append(dict(points[0]))  # twice at the same x

    with pytest.raises(ValueError, match="ring_read needs points along ascending x"):
        MachineProfile.read(stored(how))


def test_a_missing_profile_says_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read profile .*; make one with 'realrun calibra"):
        MachineProfile.read(tmp_path / "profile.json")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"profile"'])
def test_what_is_no_profile_at_all_is_refused(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"is not (JSON|a profile)"):
        MachineProfile.read(path)


# Sources.


def test_sources_are_stored_and_absent_ones_were_calibrated(tmp_path):
    profile = toy_profile()
    assert profile.source_of("launch") == CALIBRATED
    profile.sources["launch"] = Source("assumed", "as elsewhere")
    profile.write(tmp_path / "profile.json")
    again = MachineProfile.read(tmp_path / "profile.json")
    assert again == profile
    assert again.source_of("launch") == Source("assumed", "as elsewhere")
    assert again.source_of("pickle").mark == "measured"


def test_a_profile_without_sources_is_stored_as_ever(tmp_path):
    toy_profile().write(tmp_path / "profile.json")
    assert "sources" not in json.loads((tmp_path / "profile.json").read_text())
    assert VERSION == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"mark": "guessed", "text": "x"}, "mark must be one of measured, published, assumed; got"),
        ({"mark": "", "text": "x"}, "mark must be one of"),
        ({"mark": "assumed", "text": " "}, "marked assumed needs a text that says where it comes"),
        ({"mark": "assumed"}, "KeyError.*text"),
    ],
)
def test_a_source_that_says_nothing_is_refused(stored, source, message):
    path = stored(spoil(["sources"], {"launch": source}))
    with pytest.raises(ValueError, match=f"is damaged: .*{message}"):
        MachineProfile.read(path)


def test_every_cost_says_between_which_two_points_it_is_measured():
    assert all(between for _, between in (COSTS | OPTIONAL_COSTS).values())
    assert not COSTS.keys() & OPTIONAL_COSTS.keys()


def test_a_cost_that_is_optional_is_kept_and_missed_by_nobody(tmp_path):
    profile = toy_profile()
    profile.write(tmp_path / "without.json")
    profile.costs["h2d_registered"] = Curve("bytes", (8.0,), (constant(15_712),))
    profile.write(tmp_path / "with.json")
    assert MachineProfile.read(tmp_path / "with.json") == profile
    stored = json.loads((tmp_path / "with.json").read_text())["costs"]["h2d_registered"]
    assert stored["between"] == OPTIONAL_COSTS["h2d_registered"][1]
    assert "h2d_registered" not in MachineProfile.read(tmp_path / "without.json").costs


def test_what_a_gpu_costs_can_be_left_out_and_nothing_else():
    profile = MachineProfile.shipped("h200")
    plain = profile.without_device()
    left_out = set(profile.costs) - set(plain.costs)
    assert "device_wake_latency" in left_out
    assert all(name.startswith("device_") for name in left_out)
    assert set(COSTS) - {"plan", "after"} <= set(plain.costs)
