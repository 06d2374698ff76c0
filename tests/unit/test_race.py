"""Policies side by side on common tapes."""

from dataclasses import replace

import pytest

from shmsim.config import CoresConfig, DeviceConfig, EngineConfig, NamedPolicy, RunConfig
from shmsim.metrics import summarize
from shmsim.policies import SpinThenPark
from shmsim.profile import MachineProfile
from shmsim.sim.race import race
from shmsim.sim.run import simulate
from shmsim.units import MS, S

PROFILE = MachineProfile.shipped("vm-2cpu")
CONFIG = RunConfig(EngineConfig(calls_per_step=1), device=DeviceConfig(step_ns=2 * MS, jitter=0.05))
# Of one class, which is compiled once: it spins for good, parks at once, or parks after a while.
POLICIES = [
    NamedPolicy(name, SpinThenPark(window_ns))
    for name, window_ns in (("spin", 60 * S), ("park", 0), ("window", 1 * MS))
]


def test_a_standing_is_what_the_runs_of_the_definition_say():
    standings = race(POLICIES, CONFIG, PROFILE, n_steps=20, replications=3)
    workload = replace(
        CONFIG.workload, kind="closed", requests=2, concurrency=2, output_p50=20, output_p95=20
    )
    config = replace(CONFIG, workload=workload)
    runs = [[summarize(simulate(config, p.policy, PROFILE, i)) for i in range(3)] for p in POLICIES]
    tpot_ns = [[run.tpot.mean for run in each] for each in runs]
    for standing, policy, each, mine_ns in zip(standings, POLICIES, runs, tpot_ns, strict=True):
        assert standing.name == policy.name
        assert standing.tpot_ns.value == pytest.approx(sum(mine_ns) / 3, rel=1e-12)
        added_ns = [a - b for a, b in zip(mine_ns, tpot_ns[0], strict=True)]
        assert standing.added_ns.value == pytest.approx(sum(added_ns) / 3, rel=1e-9)
        cores = [run.scheduler_cores + run.worker_cores for run in each]
        assert standing.cores.value == pytest.approx(sum(cores) / 3, rel=1e-12)
        cpu_ns = [S * c * run.duration_s / run.n_steps for c, run in zip(cores, each, strict=True)]
        assert standing.cpu_ns.value == pytest.approx(sum(cpu_ns) / 3, rel=1e-12)
        assert standing.cost_ns.value == pytest.approx(
            standing.cpu_ns.value + 10 * standing.added_ns.value, rel=1e-9
        )
        assert standing.tpot_ns.low < standing.tpot_ns.value < standing.tpot_ns.high
        assert standing.tpot_ns.n == 3
    assert standings[0].added_ns[:3] == (0.0, 0.0, 0.0)


def test_delays_count_from_the_reference_and_a_price_turns_the_order_round():
    spin, park, _ = race(POLICIES, CONFIG, PROFILE, n_steps=20, replications=3, reference="park")
    assert park.added_ns.value == 0.0
    assert spin.added_ns.high < 0
    cheap, dear = (
        race(POLICIES[:2], replace(CONFIG, delay_price=r), PROFILE, n_steps=20, replications=3)
        for r in (0.0, 1000.0)
    )
    assert cheap[0].cost_ns.value > cheap[1].cost_ns.value
    assert dear[0].cost_ns.value < dear[1].cost_ns.value


@pytest.mark.slow
@pytest.mark.timeout(240)  # the events engine compiles for two classes
def test_a_config_with_shared_cores_and_a_workload_of_its_own_races_too():
    workload = replace(CONFIG.workload, requests=2, output_p50=5, output_p95=5)
    config = replace(CONFIG, cores=CoresConfig(n=2), workload=workload)
    spin, park = race(POLICIES[:2], config, PROFILE, n_steps=0, replications=2)
    expected = [summarize(simulate(config, POLICIES[1].policy, PROFILE, i)) for i in range(2)]
    assert park.worker_cores.value == pytest.approx(sum(e.worker_cores for e in expected) / 2)
    assert spin.worker_cores.value > park.worker_cores.value


@pytest.mark.parametrize(
    ("policies", "more", "said"),
    [
        ([], {}, "names differ, got none"),
        (POLICIES[:1] * 2, {}, "names differ, got spin, spin"),
        (POLICIES, {"reference": "none"}, "'none' is none of the policies: spin, park, window"),
        (POLICIES, {"replications": 1}, "at least 2 replications, got 1"),
    ],
)
def test_a_race_that_means_nothing_is_refused(policies, more, said):
    with pytest.raises(ValueError, match=said):
        race(policies, CONFIG, PROFILE, **more)
