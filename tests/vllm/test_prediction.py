"""Predictions from records of vLLM's own waiting, held against arms; no engine here."""

import json

import pytest

from realrun.equivalence import Verdict
from realrun.vllm.prediction import (
    Outcome,
    hold,
    mean_outcome,
    predict_arms,
    write_predictions,
)
from realrun.vllm.prediction_report import prediction_claims, prediction_table
from realrun.vllm.stored import PREDICTIONS, TRACE_FOLDER, read_comparison
from shmsim.claims import read_claims, write_claims
from shmsim.config import NamedPolicy
from shmsim.policies import StepAhead
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from tests.vllm.comparisons import PLAN, TPOT_S, block_of, write_stored
from tests.vllm.traces import READ_CPU_NS, WORK_CPU_NS

BOX = MachineProfile.shipped("vm-2cpu")


def predicted(folder, profile=BOX):
    told = []
    found = predict_arms(
        folder, read_comparison(folder), profile, lambda *progress: told.append(progress)
    )
    assert [done for done, _, _ in told] == list(range(told[0][1]))
    return {arm.arm: arm for arm in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "ab"
    write_stored(folder)
    return folder


def test_every_arm_that_is_not_a_control_is_predicted_in_every_start(folder):
    found = predicted(folder)
    assert list(found) == ["vllm", "park", "window=2ms"]
    for arm in found.values():
        assert len(arm.predicted) == len(arm.measured) == PLAN.starts
        assert {"scheduler", "worker0"} <= set(arm.predicted[0].cores)


def test_a_step_takes_at_least_the_work_that_was_recorded(folder):
    work_s = 3 * (WORK_CPU_NS + READ_CPU_NS) / 1e9  # one reply and two calls, one after the other
    for arm in predicted(folder).values():
        assert all(outcome.tpot_s >= work_s for outcome in arm.predicted)


def test_who_parks_uses_less_of_the_scheduler_than_who_spins(folder):
    found = predicted(folder)
    spun, parked = (mean_outcome(found[arm].predicted).cores for arm in ("vllm", "park"))
    assert parked["scheduler"] < 0.8 * spun["scheduler"]


def test_what_was_recorded_under_a_policy_has_no_part_in_it(folder, tmp_path):
    write_stored(tmp_path / "ab", n_by_policy=40)
    other, found = predicted(tmp_path / "ab"), predicted(folder)
    assert {a: p.predicted for a, p in other.items()} == {a: p.predicted for a, p in found.items()}


def test_how_an_arm_did_has_no_part_in_what_is_said_of_it(folder):
    stored = read_comparison(folder)
    blocks = [block._replace(tpot_s=9.0) for block in stored.blocks]
    again = predict_arms(folder, stored._replace(blocks=blocks), BOX, lambda *_: None)
    assert [arm.predicted for arm in again] == [arm.predicted for arm in predicted(folder).values()]


def test_the_model_is_told_the_price_of_delay_that_the_engines_policies_were_told(tmp_path):
    stored = write_stored(tmp_path / "ab")
    write_policy(tmp_path / "ab" / "arm1.json", NamedPolicy("park", StepAhead()), {})

    def waiting(price):
        plan = stored.plan._replace(delay_price=price)
        found = predict_arms(tmp_path / "ab", stored._replace(plan=plan), BOX, lambda *_: None)
        (arm,) = (arm for arm in found if arm.arm == "park")
        return mean_outcome(arm.predicted).cores["scheduler"]

    assert waiting(1000.0) > waiting(0.0)


def test_without_records_it_says_how_to_get_some(tmp_path):
    write_stored(tmp_path / "ab")
    for path in (tmp_path / "ab" / TRACE_FOLDER).rglob("*.trace"):
        path.unlink()
    with pytest.raises(ValueError, match="--recorder"):
        predicted(tmp_path / "ab")


def said_of(errors):
    """As many starts, in which the prediction is off by these shares."""
    blocks = [block_of(start, "park", TPOT_S / (1 + error)) for start, error in enumerate(errors)]
    said = {"park": [Outcome(TPOT_S, {"scheduler": 0.2}) for _ in errors]}
    return hold(said, blocks)


def test_an_error_is_predicted_over_measured_less_one_by_start():
    (arm,) = said_of([0.05, 0.07])
    assert arm.tpot_error.value == pytest.approx(0.06)
    assert arm.tpot_error.n == 2


@pytest.mark.parametrize(
    ("errors", "verdict", "holds"),
    [
        ([0.01, 0.02, 0.015], Verdict.HOLDS, True),
        ([-0.05, -0.06, -0.055], Verdict.HOLDS, True),
        ([-0.3, -0.31, -0.32], Verdict.MISSES, False),
        ([0.3, 0.31, 0.32], Verdict.MISSES, False),
        ([-0.2, 0.2, 0.05], Verdict.CANNOT_TELL, True),
    ],
)
def test_a_claim_is_about_the_size_of_the_error(errors, verdict, holds, tmp_path):
    found = said_of(errors)
    assert found[0].tpot_error.verdict(0.10) is verdict
    write_claims(tmp_path / "c.json", {}, prediction_claims(PLAN, found))
    (claim,) = read_claims(tmp_path / "c.json")
    assert claim.id == "vllm/prediction_error/tp1-sync-3-park"
    assert claim.holds is holds
    assert claim.low <= claim.value <= claim.high


def test_predictions_are_stored_and_shown(folder, tmp_path):
    found = said_of([0.01, 0.02])
    write_predictions(tmp_path, found)
    stored = json.loads((tmp_path / PREDICTIONS).read_text())
    assert stored["park"]["tpot_error"]["value"] == pytest.approx(0.015)
    assert prediction_table(PLAN, found).row_count == 1
