import pytest

from shmsim.tuner import parse_goal
from shmsim.tuner.goal import CORES, Limit
from shmsim.units import MS, US

GOAL = "tpot-p99 <= +1%, ttft-idle <= +1ms, then cpu"
DEFAULT = {
    CORES: 1.0,
    "memory_bytes": 100.0,
    "tpot_mean_ns": 2e6,
    "tpot_p99_ns": 2e6,
    "ttft_after_idle_p50_ns": 9e6,
}


def test_a_goal_of_limits_judges_against_the_default_of_the_same_tape():
    goal = parse_goal(GOAL)
    run = DEFAULT | {CORES: 0.3, "tpot_p99_ns": 2.03e6, "ttft_after_idle_p50_ns": 9.25e6}
    objective, (tpot, ttft) = goal.judge(run, DEFAULT)
    assert objective == 0.3
    assert tpot == pytest.approx(0.005)  # 1.5 % more, 1 % allowed
    assert ttft == pytest.approx(-0.75 * MS)


def test_a_price_adds_delay_to_cores():
    goal = parse_goal("price 10")
    run = DEFAULT | {CORES: 0.3, "tpot_mean_ns": 2.04e6}
    assert goal.judge(run, DEFAULT).objective == pytest.approx(0.3 + 10 * 0.02)
    assert goal.judge(DEFAULT, DEFAULT).objective == 1.0
    assert parse_goal("price=10") == goal


def test_any_other_figure_is_a_share_of_the_defaults():
    goal = parse_goal("cpu <= +10%, then tpot-p99")
    objective, (cpu,) = goal.judge(DEFAULT | {CORES: 1.2, "tpot_p99_ns": 1.9e6}, DEFAULT)
    assert objective == pytest.approx(0.95)
    assert cpu == pytest.approx(0.1)


def test_whoever_breaks_a_limit_comes_last_and_those_alike_by_what_is_left():
    goal = parse_goal(GOAL)

    def judged(cores, tpot_p99_ns):
        return goal.judge(DEFAULT | {CORES: cores, "tpot_p99_ns": tpot_p99_ns}, DEFAULT)

    breaks, dear = judged(0.1, 2.04e6), judged(0.9, 2.0e6)
    at_limit, with_slack = judged(0.2, 2.018e6), judged(0.202, 2.005e6)
    ranked = sorted([breaks, dear, at_limit, with_slack], key=goal.rank)
    assert ranked == [with_slack, at_limit, dear, breaks]


def test_a_limit_is_broken_beyond_its_tolerance():
    goal = parse_goal(GOAL)
    assert not goal.breaks(goal.judge(DEFAULT | {"tpot_p99_ns": 2.024e6}, DEFAULT))
    assert goal.breaks(goal.judge(DEFAULT | {"tpot_p99_ns": 2.026e6}, DEFAULT))


@pytest.mark.parametrize(
    "text",
    [
        GOAL,
        "price 10",
        "tpot",
        "memory <= +0%, itl-p99 <= +250us, then ttft-mean",
        "cpu <= +2.5%, then ttft-idle-p99",
    ],
)
def test_a_goal_reads_what_it_writes(text):
    assert parse_goal(text).text() == text
    assert parse_goal(parse_goal(text).text()) == parse_goal(text)


def test_tolerances_are_a_quarter_of_the_limit_and_never_nothing():
    assert Limit("tpot_p99_ns", 0.01, True).tolerance == 0.0025
    assert Limit("tpot_p99_ns", 0.0, True).tolerance == 0.001
    assert Limit("tpot_p99_ns", 4.0 * MS, False).tolerance == 1.0 * MS
    assert Limit("tpot_p99_ns", 0.0, False).tolerance == 10.0 * US


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpot-p99 <= +1%", "ends in a limit; add what is to be least: 'then cpu'"),
        ("tpot-p99 <= 2ms, then cpu", r"write it as 'tpot-p99 <= \+1%'"),
        ("tpot-p98 <= +1%, then cpu", "unknown figure 'tpot-p98'; did you mean tpot-p"),
        ("cpu <= +1ms, then tpot", r"must be a percentage, as in 'cpu <= \+10%'"),
        ("tpot <= +1, then cpu", "has no unit"),
        ("tpot <= +x%, then cpu", "needs a percentage of at least 0"),
        ("tpot <= +-1%, then cpu", "needs a percentage of at least 0"),
        ("price -1", "the price must be a number from 0 to 1e6, got '-1'"),
        ("price much", "the price must be a number from 0 to 1e6, got 'much'"),
        ("", "unknown figure ''"),
    ],
)
def test_what_cannot_be_read_is_explained(text, said):
    with pytest.raises(ValueError, match=said):
        parse_goal(text)
