"""Which starts of a comparison count; no engine here."""

import numpy as np
import pytest

from realrun.vllm.ab import CONTROL_ARM, REFERENCE, Comparison, blocks_that_count, summarize
from realrun.vllm.quiet import disturbance, most_starts, starts_that_count
from realrun.vllm.report import comparison_table
from realrun.vllm.stored import Stored, read_comparison, write_comparison
from tests.vllm.comparisons import MACHINE, PLAN, TPOT_S, block_of

ORDER = REFERENCE, "park", "ahead", CONTROL_ARM
ROUNDS = 10


def start(number=0, seed=1, noise=0.05, park=1.0, again=1.0):
    """Generations of one start in the order of their making."""
    rng = np.random.default_rng(seed)
    slower = {"park": park, CONTROL_ARM: again}
    return [
        block_of(number, arm, TPOT_S * slower.get(arm, 1.0) * rng.lognormal(0.0, noise))
        for _ in range(ROUNDS)
        for arm in (*ORDER, *reversed(ORDER))
    ]


def disturbed(blocks):
    return disturbance(blocks, REFERENCE, CONTROL_ARM)


def changed(blocks, n, **fields):
    """The first n of them otherwise."""
    return [block._replace(**fields) for block in blocks[:n]] + blocks[n:]


def test_a_quiet_start_counts_however_slow_an_arm_is():
    assert disturbed(start()) == ""
    assert disturbed(start(park=3.0)) == ""


@pytest.mark.parametrize(
    ("n_loud", "said"), [(8, ""), (9, "others used more than 0.1 cores in 9 of 80")]
)
def test_others_disturb_a_start_if_more_than_a_tenth_of_it_was_theirs(n_loud, said):
    found = disturbed(changed(start(), n_loud, foreign_cores=1.3))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_what_a_hypervisor_took_counts_in_vllms_own_generations_only():
    def taken(arms):
        return [b._replace(stolen_cores=0.5 if b.arm in arms else 0.0) for b in start()]

    assert disturbed(taken({"park", "ahead"})) == ""
    assert disturbed(taken({REFERENCE, CONTROL_ARM})) == "the hypervisor took 0.50 cores"


def test_a_record_of_before_the_hypervisor_was_looked_at_is_judged_by_the_rest():
    blocks = changed(start(), 80, stolen_cores=float("nan"))
    assert disturbed(blocks) == ""
    assert disturbed(changed(blocks, 40, foreign_cores=0.2)) != ""


@pytest.mark.parametrize(("again", "noise", "counts"), [(1.02, 0.001, True), (1.2, 0.02, False)])
def test_vllm_against_itself_has_to_be_apart_by_the_margin_and_beyond_chance(again, noise, counts):
    assert (disturbed(start(again=again, noise=noise)) == "") is counts


def test_of_quiet_starts_one_in_a_hundred_is_lost_by_chance():
    n = 1000
    lost = sum(disturbed(start(seed=seed, noise=0.3)) != "" for seed in range(n))
    assert lost < 0.02 * n


def test_what_is_left_out_favours_no_arm():
    """Of starts with noise of their own the mean ratio of an arm stays what it was."""
    ratios = {True: [], False: []}
    for seed in range(600):
        blocks = start(seed=seed, noise=0.3, park=1.1)
        means = [np.mean([b.tpot_s for b in blocks if b.arm == a]) for a in (REFERENCE, "park")]
        ratios[disturbed(blocks) == ""].append(means[1] / means[0])
    quiet, everything = ratios[True], ratios[True] + ratios[False]
    assert np.mean(quiet) == pytest.approx(np.mean(everything), rel=2e-3)


def test_half_as_many_starts_again_are_made_at_most():
    assert [most_starts(n) for n in (2, 3, 4)] == [3, 5, 6]


@pytest.mark.parametrize(
    ("loud", "counted"), [((), [0, 1, 2]), ((1,), [0, 2]), ((0, 1), [0, 1, 2])]
)
def test_fewer_than_two_quiet_starts_are_too_few_to_leave_the_others_out(loud, counted):
    assert starts_that_count(range(3), dict.fromkeys(loud, "others")) == counted


def compared(loud):
    blocks = [block for number in range(3) for block in start(number, seed=number)]
    return Comparison(PLAN, blocks, dict.fromkeys(loud, "others came"))


@pytest.mark.parametrize(
    ("loud", "said"),
    [
        ((), None),
        ((1,), "left out: start 2: others came"),
        ((0, 1), "counted since fewer than two starts were quiet: start 1: others came; start 2"),
    ],
)
def test_the_table_says_who_was_left_out_and_why(loud, said):
    comparison = compared(loud)
    counted = blocks_that_count(comparison.blocks, comparison.disturbed)
    table = comparison_table(comparison, summarize(counted, "park"))
    assert f"{len({b.start for b in counted})} starts" in table.title
    assert (said in table.caption) if said else ("Disturbed" not in table.caption)


def test_the_record_keeps_every_generation_and_why_a_start_does_not_count(tmp_path):
    comparison = compared((1,))
    write_comparison(tmp_path, Stored(*comparison, "vllm 0", MACHINE))
    back = read_comparison(tmp_path)
    assert back.disturbed == {1: "others came"}
    assert len(back.blocks) == len(comparison.blocks)
    assert {b.start for b in blocks_that_count(back.blocks, back.disturbed)} == {0, 2}
