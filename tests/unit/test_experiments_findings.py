"""What experiments 01, 03, 06, 07, 09 and 13 make of their cells, on made-up ones."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from shmsim.arena_sizing.erlang import erlang_b
from shmsim.profile import MachineProfile
from shmsim.units import MS, US
from tests.scripts import BENCH, EXPERIMENTS, imported


def module_of(name: str) -> ModuleType:
    """The ``run.py`` of an experiment, with the modules beside it."""
    path = EXPERIMENTS / name / "run.py"
    spec = importlib.util.spec_from_file_location(f"findings_of_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def modules():
    names = [path.parent.name for path in EXPERIMENTS.glob("*/run.py")]
    asked = [name for name in names if name[:2] in ("01", "03", "06", "07", "09", "13")]
    with imported([EXPERIMENTS, BENCH, *(EXPERIMENTS / name for name in asked)]):
        yield {name[:2]: module_of(name) for name in asked}


def plan_of(modules, number):
    from runner.find import find, read_plan

    return read_plan(EXPERIMENTS / find(number) / "config.toml")


@pytest.mark.parametrize("number", ["01", "03", "06", "07", "09", "13"])
def test_the_quick_plan_asks_for_less_of_the_same(modules, number):
    module, plan = modules[number], plan_of(modules, number)
    before = str(plan)
    full = {cell.name for cell in module.cells(plan)}
    quick = {cell.name for cell in module.cells(module.quick(plan))}
    assert 0 < len(quick) <= len(full)
    assert str(plan) == before, "a quick plan changed the one it was made from"


# 01: calibration.


def test_how_stable_a_cost_is_shows_in_the_range_over_the_restarts(modules):
    profile = MachineProfile.shipped("vm-2cpu")
    medians = modules["01"].medians_ns(profile)
    row = {"medians_ns": medians}
    again = {"medians_ns": medians | {"wake_latency@2e+06": 1.5 * medians["wake_latency@2e+06"]}}
    stable = modules["01"].stability([row, row])
    assert all(found["range_over_median"] == 0 for found in stable.values())
    moved = modules["01"].stability([row, again])["wake_latency@2e+06"]
    assert moved["range_over_median"] == pytest.approx(0.5 / 1.25)
    claims = {claim.id: claim for claim in modules["01"].claims([row, again], 0)}
    assert not claims["calibration/wake_latency_2ms_range_over_median"].holds
    assert claims["calibration/spin_detection_p50_ns"].holds


# 03: spin thresholds.


def points(modules, **cores_and_tpot):
    return modules["03"].points_of(
        {
            "step": "5ms",
            "policy": name.replace("_", "-"),
            "tpot_ns": tpot_ns,
            "scheduler_cores": cores,
            "worker_cores": 0.1,
        }
        for name, (cores, tpot_ns) in cores_and_tpot.items()
    )


@pytest.mark.parametrize(
    ("cores", "tpot_ns", "is_paid_twice"),
    [
        (0.40, 5.20e6, True),  # all of parking's delay, four times its CPU
        (0.40, 5.10e6, False),  # the spin has bought something
        (0.15, 5.20e6, False),  # it hardly spun
    ],
)
def test_a_window_is_paid_twice_if_it_spins_in_vain(modules, cores, tpot_ns, is_paid_twice):
    made = points(modules, park=(0.1, 5.2e6), forks_2ms=(cores, tpot_ns))
    assert modules["03"].paid_twice(made, "forks-2ms") == (["5ms"] if is_paid_twice else [])


def test_the_cheapest_policy_depends_on_what_a_delay_costs(modules):
    made = points(modules, spin=(1.0, 5.0e6), park=(0.1, 5.2e6))
    # Parking saves 0.9 of a core and costs 4 % of time.
    assert modules["03"].cheapest(made, "5ms", 10) == "park"
    assert modules["03"].cheapest(made, "5ms", 30) == "spin"


# 06: doorbells.


def test_ratios_of_doorbells_are_taken_replicate_by_replicate(modules):
    def costs(factor):
        curve = {str(rest): [40_000.0 * factor, 60_000.0 * factor] for rest in (2 * MS, 100 * MS)}
        return {"wake_latency": curve, "notify_armed": curve, "park_cpu": curve}

    plan = plan_of(modules, "06") | {"doorbells": ["futex", "zmq"]}
    content = {
        "costs of futex, 0": costs(1.0),
        "costs of futex, 1": costs(3.0),
        "costs of zmq, 0": costs(2.0) | {"io_thread_cpu": costs(2.0)["park_cpu"]},
        "costs of zmq, 1": costs(6.0) | {"io_thread_cpu": costs(6.0)["park_cpu"]},
    }
    found = {claim.id: claim for claim in modules["06"].claims(plan, content, {})}
    wake = found["doorbells/zmq_wake_latency_2ms_over_futex"]
    assert (wake.value, wake.low, wake.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found["doorbells/zmq_park_cpu_over_futex"].value == pytest.approx(4.0)


def test_with_one_reader_every_doorbell_is_also_measured_where_nobody_rings(modules):
    one = modules["06"].candidates(["futex", "zmq"], 1)
    assert [c.name for c in one] == [
        "futex, parked", "futex, spinning", "zmq, parked", "zmq, spinning",
    ]  # fmt: skip
    assert all(c.options["policy"] == "park" for c in modules["06"].candidates(["zmq"], 4))


# 07: lost wake-ups.


@pytest.mark.parametrize(
    ("window", "gap", "is_in_the_hole"),
    [
        ("0us", "300us", True),
        ("500us", "800us", True),
        ("500us", "300us", False),  # the reader is awake
        ("0us", "3ms", False),  # libzmq has looked since
        ("0us", "1100us", None),  # which of both depends on the counter
    ],
)
def test_a_ping_is_lost_between_the_window_and_what_libzmq_takes_to_look(
    modules, window, gap, is_in_the_hole
):
    name = f"lossy, window {window}, gap {gap}, 0"
    assert modules["07"]._place(name) is is_in_the_hole


def test_every_stall_of_ours_counts_and_the_edge_decides_nothing(modules):
    plan = plan_of(modules, "07")

    def row(stalls):
        return {"stalls": stalls, "messages": 40}

    content = {
        "lossy, window 0us, gap 300us, 0": row(20),
        "lossy, window 0us, gap 1100us, 0": row(9),
        "lossy, window 0us, gap 3ms, 0": row(0),
        "futex, window 0us, gap 300us, 0": row(0),
        "zmq, window 0us, gap 300us, 0": row(1),
        "queue of 1, 0": row(20),
        "queue of 1000, 0": row(0),
    }
    found = {claim.id: claim for claim in modules["07"].claims(plan, content)}
    assert found["lost_wakeups/lossy_where_foretold"].value == 0.5
    assert found["lost_wakeups/lossy_elsewhere"].value == 0.0
    assert found["lost_wakeups/ours"].value == 1.0
    assert not found["lost_wakeups/ours"].holds
    assert found["lost_wakeups/lossy_long_queue"].holds


# 09: routes and arena.


@pytest.mark.parametrize("hold", ["exponential", "constant", "log-normal"])
def test_an_arena_falls_back_as_often_as_erlang_says_whatever_the_law(modules, hold):
    share = sys.modules["erlang_cells"].fallback_share
    seeds = np.random.SeedSequence([9, 1]).spawn(6)
    shares = np.array([share(seed, hold, 2.0, 2, 3_000) for seed in seeds])
    standard_error = shares.std(ddof=1) / np.sqrt(len(shares))
    assert abs(shares.mean() - erlang_b(2, 2.0)) < 5 * standard_error


def test_bursts_fall_back_more_often_than_erlang_says(modules):
    share = sys.modules["erlang_cells"].fallback_share
    found = share(np.random.SeedSequence(9), "exponential", 2.0, 4, 4_000, 4)
    assert found > 1.5 * erlang_b(4, 2.0)


# 13: GPU nodes.


def run_of(is_policy, tpot_ns, before="1980", after="1980"):
    device = {"clocks_before": {"clocks.sm": before}, "clocks_after": {"clocks.sm": after}}
    return {"is_policy": is_policy, "tpot_p50_ns": tpot_ns, "cores": 0.3, "device": device}


def test_a_block_sets_two_runs_against_two_and_tells_of_clocks_that_fell(modules):
    rows = [
        run_of(False, 2_000 * US),
        run_of(True, 2_020 * US),
        run_of(True, 2_060 * US, after="1500"),
        run_of(False, 2_080 * US),
    ]
    block = modules["13"].block_of(rows)
    # The drift of 80 us meets both alike.
    assert block.ratio == pytest.approx(1.0)
    assert (block.cores, block.fell, block.unknown) == (pytest.approx(0.3), 1, 0)


def test_a_clock_that_nobody_knows_did_not_fall_and_is_told_of(modules):
    rows = [
        run_of(False, 2_000 * US, before="[N/A]"),
        run_of(True, 2_020 * US, after="[N/A]"),
        run_of(True, 2_020 * US) | {"device": {}},
        run_of(False, 2_000 * US, after="1500"),
    ]
    block = modules["13"].block_of(rows)
    assert (block.fell, block.unknown) == (1, 3)
    unknown = block._replace(fell=0, unknown=4)
    plan = plan_of(modules, "13")
    name = plan["run"][0]["name"]

    def share(*blocks):
        found = modules["13"].claims(plan, {(name, "spin"): list(blocks)})
        return [claim.value for claim in found if claim.id == "gpu/clock_fell_share"]

    assert share(block, unknown) == [1.0]
    assert share(unknown) == []


@pytest.mark.parametrize("count", [3, 6])
def test_gpus_that_cannot_share_the_model_are_left_out_with_the_reason(modules, count):
    plan = plan_of(modules, "13")
    cells = list(modules["13"].cells(plan))
    (of_all,) = [cell for cell in cells if cell.name == "every GPU, spin, 0"]

    context = SimpleNamespace(plan=plan, found={"gpus": {"count": count}})
    with pytest.raises(
        modules["13"].Skipped, match=rf"^{count} ranks cannot share 32 heads, .* --gpus"
    ):
        modules["13"].run(of_all, context)


def test_what_no_gpu_computed_is_of_a_world_of_its_own(modules):
    plan = plan_of(modules, "13")
    assert {cell.world for cell in modules["13"].cells(plan)} == {"machine"}
    pretended = plan | {"device": plan["device"] | {"kind": "echo"}}
    assert {cell.world for cell in modules["13"].cells(pretended)} == {"emulated"}
