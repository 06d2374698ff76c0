"""A sweep file: what it means, and what it must not hold."""

import re

import pytest
from typer.testing import CliRunner

from shmsim.cli import app
from shmsim.config import ConfigError, NamedPolicy
from shmsim.policies import PRESETS, WakeAhead
from shmsim.policy_file import write_policy
from shmsim.sweep.spec import load_sweep
from shmsim.units import MS, US

WHOLE = """
profiles = ["vm-2cpu"]
configs = ["base.toml"]
replications = 4
seed = 7
reference = "park"
figures = ["tpot_mean_ns", "worker_cores"]

[grid]
workload.concurrency = [1, 8]
device.step = ["2ms", "10ms"]

[[case]]
name = "light"
workload.requests = 5

[[case]]
name = "two workers"
engine.workers = 2

[[policy]]
preset = ["spin", "park"]

[[policy]]
kind = "WakeAhead"
guard = ["50us", "100us"]
smoothing = [0.1, 0.2]

[[policy]]
file = "tuned.json"

[stop]
figure = "ttft_mean_ns"
relative = 0.01
absolute = "20us"
most = 50
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base.toml").write_text(
        "[workload]\nrequests = 9\noutput_p50 = 5\noutput_p95 = 9\n"
    )
    write_policy(tmp_path / "tuned.json", NamedPolicy("tuned", WakeAhead(70 * US)), {})
    return tmp_path


def load(folder, text):
    path = folder / "sweep.toml"
    path.write_text(text)
    return load_sweep(path)


def test_every_case_meets_every_point_of_the_grid(folder):
    plan = load(folder, WHOLE)
    assert [cell.name for cell in plan.cells] == [
        f"base {case} workload.concurrency={n} device.step={step}"
        for case in ("light", "two workers")
        for n in (1, 8)
        for step in ("2ms", "10ms")
    ]
    first, last = plan.cells[0], plan.cells[-1]
    assert (first.config.workload.requests, last.config.workload.requests) == (5, 9)
    assert (first.config.engine.workers, last.config.engine.workers) == (1, 2)
    assert (first.config.device.step_ns, last.config.device.step_ns) == (2 * MS, 10 * MS)
    assert {cell.config.workload.output_p95 for cell in plan.cells} == {9}
    assert {cell.config.seed for cell in plan.cells} == {7}
    assert first.settings == {
        "workload.requests": 5,
        "workload.concurrency": 1,
        "device.step": "2ms",
    }


def test_a_list_in_a_policy_makes_one_of_each(folder):
    plan = load(folder, WHOLE)
    assert [policy.name for policy in plan.policies] == [
        "spin",
        "park",
        *(f"WakeAhead:guard={g}us,smoothing={s}" for g in (50, 100) for s in (0.1, 0.2)),
        "tuned",
    ]
    assert plan.policies[0].policy == PRESETS["spin"]
    assert plan.policies[3].policy == WakeAhead(50 * US, 0.2)
    assert plan.policies[-1].policy == WakeAhead(70 * US)
    assert plan.reference_name == "park"


def test_the_rest_of_the_file(folder):
    plan = load(folder, WHOLE)
    assert plan.precision == (0.01, 20 * US, 4, 50)
    assert (plan.stop_figure, plan.figures) == ("ttft_mean_ns", ("tpot_mean_ns", "worker_cores"))
    assert (plan.replications, plan.cells[0].profile_name) == (4, "vm-2cpu")


def test_little_is_needed(folder):
    plan = load(folder, 'profiles = ["vm-2cpu", "h200"]')
    assert [(c.name, c.profile_name) for c in plan.cells] == [
        ("default", "vm-2cpu"),
        ("default", "h200"),
    ]
    assert plan.policies[0].name == plan.reference_name == "spin"
    assert plan.precision is None


ONE = 'profiles = ["vm-2cpu"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs profiles"),
        ("profile = ['vm-2cpu']", "unknown key profile; did you mean profiles?"),
        ("profiles = 'vm-2cpu'", "profiles must be a list"),
        ("profiles = ['vm-2cpu', 3]", "profiles are names or paths, got 3"),
        ("profiles = ['nowhere.json']", "cannot read profile nowhere.json"),
        ("profiles = ['vm-2cpu', 'vm-2cpu']", "two profiles have the same name"),
        (ONE + "replications = 'ten'", "replications must be a whole number"),
        (ONE + "replications = 0", "replications must be at least 1, got 0"),
        (ONE + "configs = ['none.toml']", "cannot read"),
        (ONE + "[grid]\nworkload.concurency = [1]", "did you mean workload.concurrency?"),
        (ONE + "[grid]\nworkload.concurrency = 1", "must be a list of at least one value"),
        (ONE + "[grid]\nworkload.concurrency = []", "must be a list of at least one value"),
        (ONE + "[grid]\nworkload.concurrency = [0]", "workload.concurrency must be from 1 to"),
        (ONE + "[grid]\nworkload.concurrency = [1, 1]", "two cells are called"),
        (ONE + "[grid]\nworkload = [1]", "workload must be a table"),
        (ONE + "[[case]]\nworkload.requests = 3", "case[0] needs a name"),
        (
            ONE + "[[case]]\nname = 'a'\nwork.requests = 3",
            "unknown key work; did you mean workload?",
        ),
        (ONE + "case = [1]", "case[0] must be a table"),
        (ONE + "[[policy]]\npreset = 'spinn'", "did you mean spin?"),
        (ONE + "[[policy]]\nkind = 'WakeAhead'\nguards = ['1us']", "did you mean policy[0].guard?"),
        (ONE + "[[policy]]\npreset = ['spin', 'spin']", "two policies are called 'spin'"),
        (ONE + "[[policy]]\nfile = 'none.json'", "cannot read policy"),
        (ONE + "policy = [3]", "policy[0] must be a table"),
        (ONE + "reference = 'blocks'", "the reference 'blocks' is none of the policies"),
        (ONE + "figures = ['tpot_p50']", "did you mean tpot_p50_ns?"),
        (ONE + "[stop]\nrelativ = 0.1", "did you mean relative?"),
        (ONE + "[stop]\nfigure = 'itl'", "unknown figure 'itl'"),
        (ONE + "[stop]\nmost = 100", "positive half-width"),
        (ONE + "[stop]\nrelative = 0.1\nmost = 3", "least must be from 2 to most = 3"),
        (ONE + "[stop]\nrelative = 0.1\nmost = 30.5", "whole number of replications"),
        (ONE + "[stop]\nabsolute = '20'", "has no unit"),
        (ONE + "[stop]\nrelative = true", "must be a number"),
        (ONE + "[grid", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(folder, text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(folder, text)


def test_configs_that_name_different_policies_leave_it_open_which_to_sweep(folder):
    (folder / "other.toml").write_text("[[policy]]\npreset = 'park'\n")
    with pytest.raises(ConfigError, match="different policies"):
        load(folder, ONE + 'configs = ["base.toml", "other.toml"]')


def test_two_policies_of_one_name_are_different_though_their_numbers_are_equal(folder):
    for path, kind in (("one.toml", "BusySpin"), ("other.toml", "Park")):  # neither has a number
        (folder / path).write_text(f"[[policy]]\nname = 'mine'\nkind = '{kind}'\n")
    with pytest.raises(ConfigError, match="different policies"):
        load(folder, ONE + 'configs = ["one.toml", "other.toml"]')


def test_the_command_explains_a_bad_file_and_shows_how_to_write_a_good_one(folder):
    (folder / "bad.toml").write_text(ONE + "[grids]\n")
    result = CliRunner().invoke(app, ["sweep", str(folder / "bad.toml")])
    assert result.exit_code == 2
    assert "did you mean grid?" in result.output.replace("\n", " ")
    help_text = CliRunner().invoke(app, ["sweep", "--help"]).output
    for word in ("[grid]", "[[case]]", "[[policy]]", "[stop]", "profiles ="):
        assert word in help_text
