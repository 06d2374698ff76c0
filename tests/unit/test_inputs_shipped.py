import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from shmsim.cli import show_profile
from shmsim.inputs.catalog import gpu_names, load_gpu, load_model, model_names, source_of
from shmsim.inputs.rows import InputError
from shmsim.inputs.shipped import parse_shipped, shipped_names
from shmsim.policies import POLICIES
from shmsim.profile import AT_DEVICE, COSTS, OPTIONAL_COSTS, MachineProfile
from shmsim.provenance import MARKS
from shmsim.units import MS, US
from tests.data import DATA, needs_data

PROFILES = files("shmsim") / "data" / "profiles"
CALIBRATION = Path(__file__).parents[2] / "experiments/01_calibration/results/profile.json"


# Geometries and datasheets.


@pytest.mark.parametrize("name", model_names())
def test_a_geometry_has_the_parameters_that_its_source_states(name):
    source = source_of("models", name)
    stated = re.search(r"([\d,]+) parameters", source.text).group(1).replace(",", "")
    assert load_model(name).parameters == int(stated)


@pytest.mark.parametrize("name", gpu_names())
def test_a_datasheet_has_a_source_and_figures_of_a_gpu(name):
    gpu = load_gpu(name)
    assert source_of("gpus", name).mark == "published"
    assert 1e9 < gpu.memory_bytes < 1e12
    # Datasheets say 200 to 600 operations for each byte; a slip of three digits falls out.
    assert 100 < gpu.flops_per_s / gpu.bandwidth_bytes_per_s < 1000


def test_what_the_project_speaks_of_is_there():
    assert {"llama-3.2-1b", "llama-3.1-8b"} <= set(model_names())
    assert {"h100-sxm", "h200", "a100-sxm-80gb"} <= set(gpu_names())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        InputError, match=r"unknown model 'llama-3\.2-1'; did you mean llama-3\.2-1b"
    ):
        load_model("llama-3.2-1")
    with pytest.raises(InputError, match="unknown gpu 'tpu'; known are h100-sxm, h200"):
        load_gpu("tpu")


# Profiles.


@pytest.mark.parametrize("name", shipped_names())
def test_every_number_of_a_shipped_profile_has_a_mark_and_a_source(name):
    profile = MachineProfile.shipped(name)
    at_device = {name for name in profile.sources if name.removeprefix(AT_DEVICE) in COSTS}
    assert set(profile.sources) - set(OPTIONAL_COSTS) == set(COSTS) | at_device
    assert set(profile.sources) - {"plan", "after"} == set(profile.costs)
    for source in profile.sources.values():
        assert source.mark in MARKS
        assert len(source.text) > 5
    assert set(POLICIES) <= set(profile.policy_costs)
    # What is taken from elsewhere is nobody's measurement.
    content = tomllib.loads((PROFILES / f"{name}.toml").read_text(encoding="utf-8"))
    for table in (*content["costs"].values(), content["policy_costs"]):
        assert not ("as_in" in table and table["mark"] != "assumed")


def test_the_three_profiles_are_there_and_a_name_is_as_good_as_a_file(tmp_path):
    assert shipped_names() == ["h100-tp2", "h200", "vm-2cpu"]
    for name in shipped_names():
        profile = MachineProfile.read(Path(name))
        assert profile == MachineProfile.shipped(name)
        profile.write(tmp_path / "p.json")
        assert MachineProfile.read(tmp_path / "p.json") == profile
    with pytest.raises(ValueError, match="no profile 'h20' comes with the package; did you mean h"):
        MachineProfile.shipped("h20")
    with pytest.raises(ValueError, match="or name one that comes with the package: h100-tp2, h200"):
        MachineProfile.read(tmp_path / "h20.json")


def test_the_command_lists_and_prints_them(capsys):
    show_profile(list_shipped=True)
    listed = " ".join(capsys.readouterr().out.split())
    assert "h200: vCPUs beside one NVIDIA H200; of 37 costs 6 measured, 0 published" in listed
    show_profile(Path("h100-tp2"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "published: schedule: BLIS (inference-sim): 126 us for each step" in printed


COST = {"mark": "assumed", "source": "a test", "points": [{"p50": 10, "p99": 20}]}


def shipped_with(**changes):
    policy = {what: {"points": [{"p50": 1}]} for what in ("plan", "after")}
    content = {
        "measured_at": "2026-11-29",
        "machine": {},
        "costs": {"launch": {**COST, **changes}},
        "policy_costs": {"mark": "assumed", "source": "a test", "of": {"Park": policy}},
    }
    return parse_shipped(content, "mine")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mark": ""}, "mine, launch: mark must be one of measured, published, assumed; got ''"),
        ({"mark": "sure"}, "mine, launch: mark must be one of"),
        ({"source": ""}, "mine, launch: a number marked assumed needs a text"),
        ({"points": []}, "mine, launch: needs points along ascending x"),
        ({"points": [{"x": 2, "p50": 1}, {"x": 1, "p50": 1}]}, "needs points along ascending x"),
        ({"points": [{"p99": 1}]}, "needs p50 and ascending quantiles"),
        ({"points": [{"p50": 2, "p99": 1}]}, "needs p50 and ascending quantiles"),
        ({"as_in": "h20"}, "no profile 'h20' comes with the package"),
    ],
)
def test_an_unmarked_or_impossible_number_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        shipped_with(**changes)


@given(st.floats(1, 1e9), st.floats(1, 100))
def test_two_quantiles_make_a_log_normal_law(p50, ratio):
    d = shipped_with(points=[{"p50": p50, "p99": p50 * ratio}]).costs["launch"].points[0]
    for u in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.99):
        expected = p50 * ratio ** (ndtri(u) / ndtri(0.99))
        assert d.at(u) == pytest.approx(expected, rel=1e-6, abs=0.06)
    # Nothing is claimed beyond what was given.
    assert d.at(1.0) == pytest.approx(p50 * ratio, rel=1e-6, abs=0.06)
    assert d.at(0.0) == pytest.approx(p50 / ratio, rel=1e-6, abs=0.06)


def test_a_median_alone_is_a_constant_and_values_may_be_negative():
    constant = shipped_with(points=[{"p50": 7}]).costs["launch"].points[0]
    assert {constant.at(u) for u in np.linspace(0, 1, 50)} == {7.0}
    assert constant.n == 0
    d = shipped_with(points=[{"p10": -5, "p50": 1, "p90": 9}]).costs["launch"].points[0]
    assert [d.at(u) for u in (0.0, 0.1, 0.5, 0.9, 1.0)] == pytest.approx([-5, -5, 1, 9, 9])


def test_the_profile_of_the_vm_is_that_of_the_experiment_thinned():
    measured = MachineProfile.read(CALIBRATION)
    shipped = MachineProfile.shipped("vm-2cpu")
    assert shipped.measured_at == measured.measured_at
    assert set(shipped.costs) == set(measured.costs)
    pairs = [(curve, shipped.costs[name]) for name, curve in measured.costs.items()]
    for policy, both in measured.policy_costs.items():
        pairs += [(curve, shipped.policy_costs[policy][what]) for what, curve in both.items()]
    for curve, thin in pairs:
        assert (thin.by, thin.xs) == (curve.by, curve.xs)
        for point, kept in zip(curve.points, thin.points, strict=True):
            assert kept.n == point.n
            for u in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
                # Kept to four digits, and a median of few is no quantile of the grid.
                exact = point.median if u == 0.5 else point.at(u)
                assert kept.at(u) == pytest.approx(exact, rel=6e-4, abs=0.06)


@needs_data
def test_the_profile_of_the_h200_is_what_was_measured_there():
    wake = {}
    for line in (DATA / "h200/wake.txt").read_text().splitlines():
        found = re.match(r"(\w+)\s+gap=\s*(\d+) p50=\s*([\d.]+) p90=\s*([\d.]+) p99=\s*([\d.]+)"
                         r" send50=\s*([\d.]+).*%\s*([\d.]+)us", line)  # fmt: skip
        if found and found[1] == "cext_futex":
            wake[int(found[2]) * US] = [round(float(found[i]) * US) for i in (3, 4, 5, 6, 7)]
    profile = MachineProfile.shipped("h200")
    assert profile.costs["wake_latency"].xs == tuple(wake)
    for x, (p50, p90, p99, send, cpu) in wake.items():
        latency = profile.costs["wake_latency"]
        assert [latency.at(u, x) for u in (0.5, 0.9, 0.99)] == pytest.approx([p50, p90, p99])
        assert profile.costs["notify_armed"].at(0.5, x) == send
        assert profile.costs["park_cpu"].at(0.5, x) == cpu
    arms = [json.loads(line) for line in (DATA / "h200/loop_b2.jsonl").read_text().splitlines()]
    spin = next(arm for arm in arms if arm.get("pol") == "spin")
    assert profile.costs["spin_detection"].at(0.5) == spin["w_lat_p50_us"] * US
    assert profile.costs["notify_unarmed"].at(0.5) == spin["post_p50_us"] * US
    waits = [json.loads(line) for line in (DATA / "h200/probe.jsonl").read_text().splitlines()]
    waits = {w["kind"]: w for w in waits if w["k"] == "gpu_wait"}
    late_us = waits["query"]["wall_us"] - waits["flag"]["wall_us"]
    assert profile.costs["device_return"].at(0.5) == pytest.approx(late_us * US, abs=1)
    assert profile.costs["device_spin_detection"].at(0.5) == pytest.approx(late_us * US, abs=1)
    blocking = waits["sync_blocking"]
    woken = profile.costs["device_wake_latency"]
    for u, wall in ((0.5, "wall_us"), (0.99, "wall_p99")):
        late_us = blocking[wall] - waits["flag"]["wall_us"]
        assert woken.at(u) == pytest.approx(late_us * US, abs=1)
    assert profile.costs["device_park_cpu"].at(0.5) == pytest.approx(blocking["cpu_us"] * US, abs=1)


@needs_data
def test_the_h200_copies_as_fast_as_was_measured_there():
    profile = MachineProfile.shipped("h200")
    probes = [json.loads(line) for line in (DATA / "h200/probe.jsonl").read_text().splitlines()]
    for memory, source in (("registered", "shm_registered"), ("pageable", "pageable")):
        copies = [p for p in probes if p["k"] == "h2d" and p["src"] == source]
        call, whole = (profile.costs[f"{name}_{memory}"] for name in ("h2d_call", "h2d"))
        assert call.xs == whole.xs == tuple(copy["n"] for copy in copies)
        for copy in copies:
            assert call.at(0.5, copy["n"]) == pytest.approx(copy["call_us"] * US, abs=1)
            assert whole.at(0.5, copy["n"]) == pytest.approx(copy["e2e_us"] * US, abs=1)
            assert whole.at(0.99, copy["n"]) == pytest.approx(copy["p99_us"] * US, abs=1)


@needs_data
def test_the_roofline_of_an_h200_is_below_its_measured_step():
    from shmsim.roofline import RooflineStepTime

    law = RooflineStepTime(load_model("llama-3.2-1b"), load_gpu("h200"))
    floor_ns = law.mean_ns(2, 0, 2 * 1024)
    steps = [json.loads(line) for line in (DATA / "h200/graph_step.jsonl").read_text().splitlines()]
    step_us = next(
        s["p50_us"] for s in steps
        if (s["batch"], s["max_len"], s["gap_ms"]) == (2, 1024, 0.0)
    )  # fmt: skip
    assert floor_ns == pytest.approx(0.59 * MS, rel=0.02)
    assert floor_ns < step_us * US
