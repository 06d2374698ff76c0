"""What deciding costs is measured of every class, and of a policy that rests."""

import numpy as np

from realrun.bench import policy_costs
from shmsim.policies import POLICIES
from shmsim.profile import AT_REST


def test_every_class_is_measured_and_one_that_rests_takes_a_fraction_of_one_that_decides():
    hot = {name: np.median(ns) for name, rest_ns, ns in policy_costs(60, 1) if rest_ns == 0}
    assert {f"{what}:{name}" for name in (*POLICIES, AT_REST) for what in ("plan", "after")} == set(
        hot
    )
    # Five and four times as much on a box where both are measured; no box is so noisy.
    assert 2 * hot[f"plan:{AT_REST}"] < hot["plan:StepAhead"]
    assert 2 * hot[f"after:{AT_REST}"] < hot["after:StepAhead"]
