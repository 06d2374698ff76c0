import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from shmsim.cli import app
from shmsim.config import (
    DeviceConfig,
    NamedPolicy,
    PayloadConfig,
    RunConfig,
    WorkloadConfig,
    parse_policy,
)
from shmsim.console import console
from shmsim.policy_file import read_policy, write_policy
from shmsim.profile import MachineProfile
from shmsim.routing import ROUTE_PRESETS, SlotClass
from shmsim.sim import tune_runs
from shmsim.sim.tune import QUICK, mean_judged, tune
from shmsim.sim.tune_geometry import geometries
from shmsim.sim.tune_picture import tuning_picture, write_picture
from shmsim.sim.tune_profiles import at_ends, n_exact, redrawn
from shmsim.sim.tune_report import finalists_table, found_of, notes
from shmsim.sim.tune_runs import HELD_OUT, SEARCH, SELECT, Bench, shared_bytes, shortened
from shmsim.tuner import parse_goal, written
from shmsim.units import MS

GOAL = "tpot-p99 <= +1%, ttft-idle <= +1ms, then cpu"
PROFILE = MachineProfile.shipped("vm-2cpu")
SPIN, PARK = parse_policy("spin"), parse_policy("park")
TINY = RunConfig(
    workload=WorkloadConfig(
        requests=6, concurrency=2, prompt_p50=16, prompt_p95=16, output_p50=20, output_p95=20
    ),
    device=DeviceConfig(step_ns=2 * MS, jitter=0.01),
    policies=(SPIN,),
)
BUDGET = QUICK._replace(held_out=5, profiles=1)


def tuned_for(goal, folder, config=TINY):
    return tune(config, PROFILE, parse_goal(goal), folder, budget=BUDGET, jobs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder that keeps runs from test to test: what a goal makes of them is another matter."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def tuned(runs):
    return tuned_for("tpot-mean <= +10%, then cpu", runs)


def test_it_finds_that_spinning_through_steps_is_dear(tuned):
    best = next(f for f in tuned.finalists if f.candidate == tuned.chosen)
    assert tuned.reason == ""
    assert best.objective.difference.high < -0.5  # cores
    assert best.figures["cores"].value < 0.4 < tuned.finalists[0].figures["cores"].value
    assert best.excess[0].difference.value <= tuned.goal.limits[0].tolerance


def test_the_best_of_the_search_comes_first_and_the_default_is_among_them(tuned):
    ranks = [tuned.goal.rank(s.judged) for s in tuned.searched]
    assert ranks == sorted(ranks)
    assert tuned.default == "spin" == tuned.finalists[0].candidate.name
    assert "spin" in [s.candidate.name for s in tuned.searched]


def test_no_tape_serves_two_purposes(monkeypatch, runs):
    seeds = {}
    real = tune_runs.sweep

    def spy(plan, *arguments, **more):
        for cell in plan.cells:
            seeds.setdefault(cell.config.seed, 0)
            seeds[cell.config.seed] += 1
        return real(plan, *arguments, **more)

    monkeypatch.setattr(tune_runs, "sweep", spy)
    tuned_for("then cpu", runs)
    assert len(seeds) == len({SEARCH, SELECT, HELD_OUT})
    assert TINY.seed in seeds


def test_the_default_is_kept_where_nothing_is_better_and_it_says_so(runs):
    found = tuned_for("then cpu", runs, replace(TINY, policies=(PARK,)))
    assert found.chosen.name == found.default == "park"
    assert found.reason
    assert f"kept the default, park: {found.reason}" in list(notes(found, BUDGET))


def test_the_same_call_gives_the_same_and_a_second_one_runs_nothing(tmp_path, monkeypatch):
    first = tuned_for("then cpu", tmp_path)
    monkeypatch.setattr("shmsim.sim.sweep.summarize_with", lambda *_: pytest.fail("ran again"))
    assert repr(tuned_for("then cpu", tmp_path)) == repr(first)


def test_a_limit_on_what_the_workload_does_not_have_is_left_out(runs):
    single = replace(TINY.workload, output_p50=1, output_p95=1)
    found = tuned_for(GOAL, runs, replace(TINY, workload=single))
    assert [limit.figure for limit in found.goal.limits] == ["ttft_after_idle_p50_ns"]
    with pytest.raises(ValueError, match="no value of tpot_mean_ns, which is to be least"):
        tuned_for("price 10", runs, replace(TINY, workload=single))


def test_progress_is_told_with_what_it_is_about(runs):
    told = []
    tune(
        TINY, PROFILE, parse_goal("then cpu"), runs,
        budget=BUDGET, jobs=1, progress=lambda label, share: told.append((label, share)),
    )  # fmt: skip
    assert {"default", "search, round 1", "tapes held out", "other profiles"} <= {
        label for label, _ in told
    }
    assert all(0 <= share <= 1 for _, share in told)


def test_the_report_says_what_the_choice_rests_on(tuned, tmp_path):
    text = "\n".join(notes(tuned, BUDGET))
    for words in ("default: spin", "nothing was chosen on", "bootstrapped profiles"):
        assert words in text
    assert finalists_table(tuned).row_count == len(tuned.finalists)
    found = found_of(tuned, PROFILE)
    path = tmp_path / "policy.json"
    write_policy(path, NamedPolicy("tuned", tuned.chosen.policy), found)
    assert repr(read_policy(path).policy) == repr(tuned.chosen.policy)
    assert found["held_out"]["cores"][0] == pytest.approx(
        next(f for f in tuned.finalists if f.candidate == tuned.chosen).figures["cores"].value
    )


def without_intervals(profile):
    """The same profile if nobody knew how sure it is: every draw of it is itself."""
    known = {
        name: curve._replace(
            points=tuple(
                p._replace(low=p.median, high=p.median, replicates=(p.median,))
                for p in curve.points
            )
        )
        for name, curve in profile.costs.items()
    }
    return replace(profile, costs=known)


@pytest.mark.parametrize(("seed", "goal"), [(4, "tpot-p99 <= +4%, then cpu"), (1, "price 10")])
def test_the_luck_of_one_tape_is_not_taken_for_that_of_a_calibration(runs, seed, goal):
    """Near a limit one tape may break it on every profile, and the measured one too."""
    config = replace(TINY, seed=seed, device=replace(TINY.device, jitter=0.1))
    exact = without_intervals(PROFILE)
    found = tune(config, exact, parse_goal(goal), runs, budget=BUDGET, jobs=1)
    profiles = found.sensitivity
    assert profiles.n_exact == profiles.n_costs
    text = "\n".join(notes(found, BUDGET))
    if profiles.measured_rival:
        assert f"{profiles.measured_rival} does better with this profile already" in text
        assert "bootstrapped" not in text
        assert "stands_on_profiles" not in found_of(found, exact)
    else:
        assert profiles.n_stands == profiles.n_profiles
        assert "stands on 1 of 1 bootstrapped profiles" in text


def test_a_parameter_without_effect_is_no_choice(runs):
    """The clamp of StepAhead plays no part here: its values do just the same."""
    workload = WorkloadConfig(kind="open", requests=4, rate_per_s=2.0, max_output_tokens=300)
    found = tuned_for("price 10", runs, replace(TINY, workload=workload))
    figures = [tuple(map(repr, s.figures.values())) for s in found.searched]
    assert len(set(figures)) < len(figures)
    finals = {f.candidate.name: f for f in found.finalists}
    by_name = {s.candidate.name: own for s, own in zip(found.searched, figures, strict=True)}
    assert len({by_name[name] for name in finals}) == len(finals)
    for name, finalist in finals.items():
        same = {other for other, own in by_name.items() if own == by_name[name]}
        assert {name, *finalist.alike} == same
    told = [f for f in found.finalists if f.alike]
    assert told
    text = "\n".join(notes(found, BUDGET))
    for finalist in told:
        others = ", ".join(finalist.alike[:3])
        assert f"{finalist.candidate.name} stands for {others}" in text


def test_the_table_breaks_names_only_between_parameters(tuned):
    name = "WakeAhead:guard=71.4us,smoothing=0.143,rehearse=true"
    first, *rest = tuned.finalists
    renamed = first._replace(candidate=first.candidate._replace(name=name))
    table = finalists_table(tuned._replace(finalists=(renamed, *rest)))
    with console.capture() as captured:
        console.print(table, width=60)
    for part in ("WakeAhead:guard=71.4us,", "smoothing=0.143,", "rehearse=true"):
        assert part in captured.get()


def test_the_picture_names_the_finalists_and_the_limit(tmp_path, runs):
    found = tuned_for(GOAL, runs)
    figure = tuning_picture(found)
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"spin (default)", "limit", f"searched ({len(found.searched)})"} <= labels
    assert found.chosen.name in figure.get_suptitle()
    write_picture(tmp_path / "policy.svg", found)
    assert (tmp_path / "policy.svg").read_text().startswith("<svg")


def test_the_command_writes_policy_and_picture_and_says_what_it_took(tmp_path):
    config, out = tmp_path / "config.toml", tmp_path / "policy.json"
    config.write_text(
        "[workload]\nrequests = 4\nprompt_p50 = 16\nprompt_p95 = 16\n"
        "output_p50 = 20\noutput_p95 = 20\n"
    )
    words = ["tune", str(config), "-p", "vm-2cpu", "-o", str(out), "--quick", "-j", "1"]
    done = CliRunner().invoke(app, [*words, "--goal", "price 10"])
    assert done.exit_code == 0, done.output
    assert f"chosen: {written(read_policy(out).policy)}" in done.output.replace("\n", " ")
    assert out.with_suffix(".svg").exists()
    wrong = CliRunner().invoke(app, [*words, "--goal", "then speed"])
    assert wrong.exit_code == 2


def test_without_a_goal_it_is_the_price_that_the_config_and_every_verdict_have(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(
        "[workload]\nrequests = 4\nprompt_p50 = 16\nprompt_p95 = 16\n"
        "output_p50 = 20\noutput_p95 = 20\n[run]\ndelay_price = 2.5\n"
    )
    words = ["tune", str(config), "-p", "vm-2cpu", "-o", str(tmp_path / "p.json"), "--quick"]
    done = CliRunner().invoke(app, [*words, "-j", "1"])
    said = " ".join(done.output.split())
    assert "goal: price 2.5; default: spin" in said
    assert "that price is the config's run.delay_price; limits instead: --goal 'tpot-p99" in said
    limits = said.partition("limits instead: --goal '")[2].partition("'")[0]
    assert parse_goal(limits).text() == limits


# What runs.


def test_long_workloads_are_cut_and_short_ones_are_not():
    config = RunConfig()
    assert shortened(TINY, 10_000) == TINY
    cut = shortened(config, 500)
    assert 4 <= cut.workload.requests < config.workload.requests
    assert shortened(TINY, 1).workload.requests == 4


def test_shared_memory_is_that_of_rings_and_arena():
    config = replace(TINY, payload=PayloadConfig(arena=(SlotClass(1 << 20, 3),)))
    assert shared_bytes(config) - shared_bytes(TINY) == 3 << 20
    more = replace(TINY, handoff=replace(TINY.handoff, slots=2 * TINY.handoff.slots))
    assert shared_bytes(more) == 2 * shared_bytes(TINY)


def test_judging_pairs_runs_of_one_tape(tmp_path):
    bench = Bench(TINY, PROFILE, tmp_path, 1, lambda *_: None)
    spin, park = (bench.candidate(named.policy) for named in (SPIN, PARK))
    runs = bench.run([spin, park], SEARCH, 3, "test")
    goal = parse_goal("tpot-mean <= +1%, then cpu")
    ratios = runs["park"]["tpot_mean_ns"] / runs["spin"]["tpot_mean_ns"]
    judged = mean_judged(goal, runs["park"], runs["spin"])
    assert judged.excess[0] == pytest.approx(ratios.mean() - 1.01)


# Bulk.


def test_without_bulk_there_is_one_way():
    assert list(geometries(TINY, PROFILE)) == ["vllm"]


def test_bulk_may_take_every_route_that_the_profile_knows_and_a_fitting_arena():
    payload = PayloadConfig(
        bytes_per_step=9 << 20, routes="vllm-arena", arena=(SlotClass(256 << 20, 8),)
    )
    config = replace(TINY, payload=payload)
    ways = geometries(config, PROFILE)
    assert next(iter(ways.values())) == payload
    assert "vllm" not in ways  # by socket, of which this profile knows no costs
    needed = ways["vllm-arena, arena as needed"].arena
    assert 9 << 20 <= needed[-1].slot_bytes < 256 << 20
    assert all(way.bytes_per_step == payload.bytes_per_step for way in ways.values())
    copies = PROFILE.costs["memcpy"]
    sockets = {"socket_send": copies, "socket_receive": copies}
    known = replace(PROFILE, costs=PROFILE.costs | sockets)
    assert set(ROUTE_PRESETS) <= set(geometries(config, known))


def test_a_tuning_with_bulk_says_which_ways_it_takes(runs):
    payload = PayloadConfig(
        bytes_per_step=9 << 20, routes="vllm-arena", arena=(SlotClass(256 << 20, 8),)
    )
    found = tuned_for("memory <= +0%, then cpu", runs, replace(TINY, payload=payload))
    assert found_of(found, PROFILE)["payload"]["routes"] in ROUTE_PRESETS
    assert found.chosen.payload.arena


# Profiles.


def test_a_redrawn_profile_has_every_cost_within_what_was_measured():
    drawn = redrawn(PROFILE, np.random.default_rng(1))
    moved = 0
    for name, curve in PROFILE.costs.items():
        for was, now in zip(curve.points, drawn.costs[name].points, strict=True):
            ends = (was.low, was.high, *was.replicates)
            assert min(ends) <= now.median <= max(ends), name
            if was.median > 0:
                assert now.at(0.9) == pytest.approx(was.at(0.9) * now.median / was.median)
            moved += now.median != was.median
    assert moved > 20


def test_a_cost_moves_to_both_ends_of_what_was_measured():
    low, high = at_ends(PROFILE, "wake_latency")
    for was, below, above in zip(
        *(p.costs["wake_latency"].points for p in (PROFILE, low, high)), strict=True
    ):
        assert below.median == min(was.low, *was.replicates)
        assert above.median == max(was.high, *was.replicates)
    assert low.costs["park_cpu"] == PROFILE.costs["park_cpu"]


def test_a_cost_of_which_nobody_knows_how_sure_it_is_stays():
    published = MachineProfile.shipped("h200")
    assert at_ends(published, "wake_latency") == []
    assert n_exact(published) > n_exact(PROFILE)
    assert not math.isnan(redrawn(published, np.random.default_rng(1)).costs["park_cpu"].at(0.5))
