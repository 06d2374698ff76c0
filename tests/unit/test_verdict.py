"""What the demo and a validation say in words: never that a policy is best which another beats."""

from dataclasses import replace

from realrun.tables import validation_table, verdict
from realrun.validate import Outcome, Validation
from shmsim.config import NamedPolicy, RunConfig
from shmsim.metrics import Quantiles, Summary
from shmsim.policies import PRESETS
from tests.toy import toy_profile


def outcome(world, name, repeat, tpot_ms, cores):
    flat = Quantiles(1, tpot_ms * 1e6, tpot_ms * 1e6, tpot_ms * 1e6)
    summary = Summary(flat, flat, flat, flat, cores, 0.0, 1.0, 1.0, 1.0, 1.0, 1)
    return Outcome(world, name, repeat, summary, 0.0, 300.0)


def validation(figures, repeats=2, price=10.0, foreseen=None):
    """TPOT in ms and the scheduler's cores by policy, with a hair of noise; foreseen if not else.

    Parameters
    ----------
    foreseen
        What the model says otherwise.
    """
    config = replace(
        RunConfig(),
        policies=tuple(NamedPolicy(name, PRESETS["park"]) for name in figures),
        repeats=repeats,
        delay_price=price,
    )
    outcomes = [
        outcome(world, name, repeat, tpot_ms + 0.004 * repeat, cores)
        for world, told in (("model", figures | (foreseen or {})), ("machine", figures))
        for name, (tpot_ms, cores) in told.items()
        for repeat in range(repeats)
    ]
    return Validation(config, toy_profile(), tuple(outcomes))


DEMO = {"spin": (2.074, 1.0), "park": (2.180, 0.06), "tuned": (2.174, 0.12)}


def test_a_policy_that_another_one_beats_is_not_praised_alone():
    words = verdict(validation({**DEMO, "park": (2.120, 0.06)}), "tuned", "spin")
    assert "tuned saves 0.88 of the 1.00 cores that spin burns" in words
    assert "adds 4.8 % to the time per output token" in words
    assert "tuned costs 0.60 cores and spin 1.00; least costs park, 0.28." in words


def test_where_the_noise_is_larger_than_the_difference_it_says_so():
    words = verdict(validation(DEMO, repeats=12), "tuned", "spin")
    assert "tuned costs 0.60 cores and spin 1.00; least costs park, 0.57, which is within" in words


def test_the_cheapest_is_told_to_be_and_the_price_is_that_of_the_config():
    words = verdict(validation(DEMO, price=100.0), "spin", "spin")
    assert "at 100 cores for the whole critical path" in words
    assert "nothing here costs less" in words


def test_an_effect_smaller_than_the_margin_of_a_hit_is_told_to_be():
    off = verdict(validation(DEMO, foreseen={"tuned": (2.094, 0.12)}), "tuned", "spin")
    assert "adds 4.8 %" in off
    assert "The 5 % that count as a hit are more than this effect" in off
    assert "of the effect itself the prediction is 3.9 points off." in off
    near = verdict(validation(DEMO, foreseen={"tuned": (2.173, 0.12)}), "tuned", "spin")
    assert "the prediction is 0.0 points off, less than the noise." in near
    once = verdict(validation(DEMO, repeats=1), "tuned", "spin")
    assert "less than the noise" not in once


def test_an_effect_larger_than_the_margin_needs_no_such_words():
    assert "count as a hit" not in verdict(
        validation({**DEMO, "tuned": (2.3, 0.12)}), "tuned", "spin"
    )


def test_the_table_says_what_a_hit_does_not_show():
    assert "that a smaller effect was foreseen it does not show" in str(
        validation_table(validation(DEMO)).caption
    )


def test_cores_that_differ_between_runs_as_much_as_they_are_saved_are_told_to():
    """A virtual machine that is stopped for ten seconds takes a spinner's core out of one run."""
    calm = validation(DEMO)
    assert "Cores differ" not in verdict(calm, "tuned", "spin")
    stopped = tuple(
        replace(each, summary=each.summary._replace(scheduler_cores=0.03))
        if (each.world, each.policy, each.repeat) == ("machine", "spin", 1)
        else each
        for each in calm.outcomes
    )
    words = verdict(replace(calm, outcomes=stopped), "tuned", "spin")
    assert "Cores differ by \u00b10.48 from run to run" in words
