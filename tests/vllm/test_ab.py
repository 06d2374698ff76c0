"""How arms of a live engine are held against each other; no engine here."""

import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from realrun.equivalence import Verdict
from realrun.vllm.ab import (
    CONTROL_ARM,
    REFERENCE,
    Block,
    Comparison,
    Plan,
    _check_in_force,
    _check_tokens,
    summarize,
)
from realrun.vllm.control import Counters
from realrun.vllm.report import (
    comparison_claims,
    comparison_table,
    print_others,
    recorder_claim,
    recorder_sentence,
    threads_table,
)
from shmsim.claims import read_claims, write_claims

PLAN = Plan(1, True, 1, 100, 4, 2, 0.0)
NOTHING = Counters(1, 0, 0)
QUIET = Comparison(PLAN, [], {})


def blocks(tpot_s, scheduler_cores, noise=0.002, seed=1):
    """Of every arm, four a start; a start has a speed of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for start in range(PLAN.starts):
        speed = rng.uniform(0.8, 1.2)
        for arm, seconds in tpot_s.items():
            rows += [
                Block(
                    start,
                    arm,
                    speed * seconds * rng.normal(1, noise),
                    math.nan,
                    {"scheduler": scheduler_cores[arm], "worker0": 1.0},
                    {"scheduler": {"main": scheduler_cores[arm]}, "worker0": {"main": 1.0}},
                    0.0,
                    0.0,
                    0,
                    0.01,
                    "abc",
                    {"scheduler": NOTHING},
                )
                for _ in range(4)
            ]
    return rows


def printed(table):
    out = io.StringIO()
    Console(file=out, width=400).print(table)
    return out.getvalue()


TPOT_S = {REFERENCE: 4e-3, "park": 4.8e-3, "ahead": 4e-3, CONTROL_ARM: 4e-3}
CORES = {REFERENCE: 0.95, "park": 0.15, "ahead": 0.25, CONTROL_ARM: 0.95}


def by_arm(noise=0.002):
    return {r.arm: r for r in summarize(blocks(TPOT_S, CORES, noise), "park")}


def test_what_differs_between_starts_falls_out_of_the_ratios():
    results = by_arm()
    assert results["park"].tpot_ratio.value == pytest.approx(1.2, abs=0.005)
    assert results["ahead"].verdict is Verdict.HOLDS
    assert results["park"].verdict is Verdict.MISSES


def test_to_be_faster_is_no_fault():
    faster = {r.arm: r for r in summarize(blocks({**TPOT_S, "ahead": 3e-3}, CORES), "park")}
    assert faster["ahead"].verdict is Verdict.HOLDS


def test_noise_leads_to_no_verdict_not_to_a_good_one():
    assert by_arm(noise=0.2)["ahead"].verdict is Verdict.CANNOT_TELL


def test_waiting_is_one_for_vllm_and_nothing_for_parking():
    results = by_arm()
    assert results[REFERENCE].wait_cpu_ratio.value == pytest.approx(1.0)
    assert results["park"].wait_cpu_ratio.value == pytest.approx(0.0)
    expected = (0.25 * 4.0 - 0.15 * 4.8) / (0.95 * 4.0 - 0.15 * 4.8)
    assert results["ahead"].wait_cpu_ratio.value == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    "parked",
    [
        pytest.param(0.19 * 4e-3 / 4.8e-3, id="the same for each token"),
        pytest.param(0.3, id="more"),
    ],
)
def test_where_parking_saves_nothing_there_is_no_share_of_it(parked):
    cores = {REFERENCE: 0.19, "park": parked, "ahead": 0.2, CONTROL_ARM: 0.19}
    results = summarize(blocks(TPOT_S, cores), "park")
    assert {result.wait_cpu_ratio for result in results} == {None}
    assert not any("wait_cpu" in claim.id for claim in comparison_claims(PLAN, results))
    rows = printed(comparison_table(QUIET, results)).split("Ratio:")[0]
    assert rows.count("nothing to save") == len(results)


def test_without_an_arm_that_parks_nothing_is_said_of_what_it_saves():
    results = summarize(blocks(TPOT_S, CORES), None)
    assert {result.parking_saves_s for result in results} == {None}
    assert "nothing to save" not in printed(comparison_table(QUIET, results)).split("Ratio:")[0]


def test_threads_have_their_mean_over_all_generations_also_where_one_had_none_of_a_name():
    rows = blocks(TPOT_S, CORES)
    rows = [
        row._replace(threads={"scheduler": {"main": 0.8, **({"ZMQ": 0.1} if n % 2 else {})}})
        for n, row in enumerate(rows)
    ]
    results = summarize(rows, "park")
    assert results[0].threads["scheduler"] == pytest.approx({"main": 0.8, "ZMQ": 0.05})
    said = printed(threads_table(results))
    assert re.search(r"scheduler +ZMQ +0\.050", said)
    faint = [row._replace(threads={"scheduler": {"main": 0.8, "ZMQ": 0.001}}) for row in rows]
    assert "ZMQ" not in printed(threads_table(summarize(faint, "park")))


def test_claims_can_be_read_back_and_name_every_arm(tmp_path):
    results = summarize(blocks(TPOT_S, CORES), "park")
    write_claims(tmp_path / "c.json", {}, comparison_claims(PLAN, results))
    claims = {claim.id: claim for claim in read_claims(tmp_path / "c.json")}
    assert claims["vllm/tpot_ratio/tp1-async-1-ahead"].holds
    assert not claims["vllm/tpot_ratio/tp1-async-1-park"].holds
    ahead = next(result for result in results if result.arm == "ahead")
    waiting = claims["vllm/wait_cpu_ratio/tp1-async-1-ahead"]
    assert waiting.value == waiting.high == ahead.wait_cpu_ratio.high > ahead.wait_cpu_ratio.value
    assert "vllm/tokens_identical/tp1-async-1" in claims
    assert comparison_table(QUIET, results).row_count == len(TPOT_S)


def test_other_tokens_stop_the_comparison():
    rows = blocks(TPOT_S, CORES)
    with pytest.raises(RuntimeError, match="other tokens"):
        _check_tokens([*rows, rows[0]._replace(tokens_sha256="abd")])


@pytest.mark.parametrize(
    ("changed", "n_same"),
    [({}, 4), ({"arm": "ahead", "tokens_sha256": "abd"}, 3), ({"tokens_sha256": ""}, 0)],
)
def test_only_arms_whose_every_generation_was_the_same_are_said_to_be(changed, n_same):
    rows = blocks(TPOT_S, CORES)
    if "arm" in changed:
        n = next(n for n, row in enumerate(rows) if row.arm == changed["arm"])
        rows[n] = rows[n]._replace(**changed)
    else:  # of all, as where hashes were not stored
        rows = [row._replace(**changed) for row in rows]
    (claim,) = (
        claim
        for claim in comparison_claims(PLAN, summarize(rows, "park"))
        if claim.id.startswith("vllm/tokens_identical")
    )
    assert (claim.value, claim.bound, claim.n) == (n_same, 4, len(rows))
    assert claim.holds is (n_same == 4)


@pytest.mark.parametrize(
    ("arm", "moved", "is_fine"),
    [
        ("ahead", {"sent": 600, "waits": 590, "at_once": 10}, True),
        ("ahead", {"sent": 600, "vllm_waits": 590, "pinged": 600}, False),
        ("window=2ms", {"sent": 600, "vllm_waits": 590, "pinged": 600}, True),
    ],
)
def test_an_arm_counts_only_if_its_counters_moved(arm, moved, is_fine):
    counted = NOTHING._replace(**moved)
    block = blocks({arm: 1.0}, {arm: 1.0})[0]._replace(
        moved={"scheduler": counted, "worker0": counted}
    )
    arms = {"ahead": "ahead.json", "window=2ms": "window=2ms"}
    if is_fine:
        _check_in_force(block, arms, 1)
    else:
        with pytest.raises(RuntimeError, match="in force"):
            _check_in_force(block, arms, 1)


def test_recording_is_charged_for_every_message_and_once_for_what_is_beside_them():
    results = summarize(blocks(dict.fromkeys((REFERENCE, CONTROL_ARM), 1e-3), CORES, 0.0), None)
    took = {
        "plain": 20e3,
        "plain_beside": 1e3,
        "recorded": 25e3,
        "recorded_beside": 7e3,
        "switchable": 28e3,
        "switchable_beside": 3e3,
    }
    claim = recorder_claim(PLAN, results, took)
    tpot_ns = 1e6 * results[0].tpot_ms
    assert claim.value == pytest.approx((4 * 5e3 + 6e3) / tpot_ns)
    assert not claim.holds
    sentence = recorder_sentence(PLAN, results, took)
    assert "5.0 µs on the way" in sentence
    assert "6.0 µs beside it" in sentence
    assert "8.0 µs" in sentence


@pytest.mark.parametrize(("cores", "said"), [(0.02, False), (0.5, True)])
def test_others_on_the_machine_are_named_if_they_disturb(cores, said, capsys):
    print_others([0.0, cores])
    assert (f"{cores:.2f} cores meanwhile" in capsys.readouterr().err) is said
