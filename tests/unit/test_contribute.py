"""What is contributed: figures that others can use, and nobody's name, host or path."""

import contextlib
import getpass
import json
import socket

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from realrun import contribute_facts, contribute_waits
from realrun.cli import app
from realrun.contribute import bundle_of, check_bundle, read_bundle, text_of
from realrun.contribute_facts import WITHHELD, facts_of
from realrun.validate import config_to_json
from shmsim.config import NamedPolicy, RunConfig
from shmsim.policies import PRESETS, WakeAhead
from shmsim.policy_file import write_policy
from shmsim.profile import MachineProfile
from shmsim.tuner import written
from shmsim.units import US
from shmsim.wait import SCHEDULER_RECV
from tests.report_folders import (
    MACHINE,
    records_of,
    write_grid,
    write_run,
    write_validation,
)

SECRET = "Zebulon"
POLICIES = (
    NamedPolicy(f"{SECRET}s spinner", PRESETS["spin"]),
    NamedPolicy(SECRET, WakeAhead(80 * US)),
)
MEASURED_AT = MachineProfile.shipped("vm-2cpu").measured_at


def config(**sections):
    content = json.loads(json.dumps(config_to_json(RunConfig(policies=POLICIES))))
    for section, values in sections.items():
        content[section] |= values
    return content


def validation(folder, **more):
    given = {"config": config(), "profile_measured_at": MEASURED_AT, **more}
    return write_validation(folder, [policy.name for policy in POLICIES], **given)


def strings(value):
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


def test_a_validation_gives_figures_by_names_that_a_command_line_knows(tmp_path):
    bundle = bundle_of(validation(tmp_path))
    assert bundle["kind"] == "validation"
    assert list(bundle["policies"]) == ["spin", "WakeAhead:guard=80us"]
    stored = json.loads((tmp_path / "validation.json").read_text())["table"]
    assert bundle["policies"]["spin"] == stored[f"{SECRET}s spinner"]
    assert bundle["settings"]["engine.workers"] == 1
    assert bundle["settings"]["run.seed"] == 1
    assert bundle["measured_on"] == "2026-01-02"
    assert bundle["machine"]["usable_cores"] == 2


def test_nothing_that_a_person_wrote_gets_out(tmp_path, monkeypatch):
    machine = MACHINE | {
        "owner": SECRET,
        "hostname": SECRET,
        "kernel": f"6.1.0-{SECRET}+",
        "cpu": f"A CPU of {SECRET}",
        "idle_states": ["POLL 0 us", f"{SECRET} 1 us"],
    }
    monkeypatch.setattr(socket, "gethostname", lambda: f"{SECRET}.example.org")
    trace = tmp_path / SECRET / "trace.csv"
    trace.parent.mkdir()
    trace.write_text("1\n")
    settings = config(
        workload={"kind": "trace", "trace": str(trace)},
        device={"file": f"/home/{SECRET}/steps.csv", "model": SECRET, "gpu": SECRET},
        engine={"device_wait": "WakeAhead:guard=80us"},
    )
    settings[SECRET] = {SECRET: SECRET}
    folder = validation(tmp_path / "run", machine=machine, config=settings)
    bundle = bundle_of(folder)
    text = text_of(bundle)
    assert SECRET.lower() not in text.lower()
    assert str(tmp_path) not in text
    assert bundle["machine"]["kernel"] == "6.1.0"
    assert bundle["machine"]["cpu"] == WITHHELD
    assert bundle["machine"]["idle_states"] == ["POLL 0 us", WITHHELD]
    assert bundle["settings"]["workload.trace"].startswith("sha256 ")
    assert bundle["settings"]["device.file"] == "its own"
    assert bundle["settings"]["engine.device_wait"] == "WakeAhead:guard=80us"


def test_the_host_and_the_user_of_this_test_are_in_no_bundle(tmp_path):
    here = {socket.gethostname(), getpass.getuser(), str(tmp_path)}
    for bundle in (bundle_of(validation(tmp_path / "a")), bundle_of(write_run(tmp_path / "b"))):
        assert not here & set(strings(bundle))
        assert not [text for text in strings(bundle) if text.startswith("/")]


def test_a_part_of_a_word_is_no_name(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "amd-7")
    monkeypatch.setattr(contribute_facts.getpass, "getuser", lambda: "ep")
    assert facts_of({"cpu": "EPYC 7 of 2026"})["cpu"] == "EPYC 7 of 2026"
    assert facts_of({"cpu": "AMD EPYC"})["cpu"] == WITHHELD


def test_a_policy_of_ones_own_keeps_its_name_to_itself(tmp_path):
    settings = config()
    for policy in settings["policies"]:
        policy |= {"module": f"{SECRET.lower()}.policies", "name": SECRET}
    folder = validation(tmp_path, config=settings)
    bundle = bundle_of(folder)
    assert list(bundle["policies"]) == ["own policy", "own policy no. 2"]
    assert SECRET.lower() not in text_of(bundle).lower()


def test_an_interrupted_validation_gives_the_policies_that_it_came_to(tmp_path):
    names = [POLICIES[0].name]
    folder = write_validation(tmp_path, names, config=config(), profile_measured_at=MEASURED_AT)
    assert list(bundle_of(folder)["policies"]) == ["spin"]


def test_what_waits_cost_is_told_with_the_bound_of_the_spinners_gaps(tmp_path, monkeypatch):
    monkeypatch.setattr(contribute_waits, "_FEWEST", 10)
    folder = validation(tmp_path)
    assert bundle_of(folder)["waits"] == {"why_not": "its records are not beside it"}
    spun = records_of("spin")
    for repeat in range(2):
        spun.write(folder / "records" / f"{SECRET}s_spinner-{repeat}-machine")
    records_of("park").write(folder / "records" / f"{SECRET}s_spinner-2-machine")  # of another time
    told = []
    waits = bundle_of(folder, progress=lambda label, share: told.append(share))["waits"]
    assert told == sorted(told) == [0.0, 0.5]
    assert waits["gaps_of"] == "spin"
    assert set(waits["cost_ns"]) == {"spin", "WakeAhead:guard=80us"}
    rows = [r for r in spun.waits if r.site == SCHEDULER_RECV and r.call == 1 and r.pending]
    assert waits["n_waits"] == len(rows) >= 10
    late_ns = [r.seen_ns - max(r.published_ns, r.started_ns) for r in rows]
    costs = MachineProfile.shipped("vm-2cpu").policy_costs["BusySpin"]
    thinking_ns = sum(  # hot: a spinner does not sleep
        c.points[0].all_at((np.arange(2000) + 0.5) / 2000).mean() for c in costs.values()
    )
    expected = np.mean([r.cpu_ns for r in rows]) + 10 * np.mean(late_ns) + thinking_ns
    assert waits["cost_ns"]["spin"] == pytest.approx([expected, 0.0])
    assert 0 < waits["L2_ns"] < expected
    (folder / "profile.json").write_text(
        (folder / "profile.json").read_text().replace(MEASURED_AT, "2020-01-01T00:00:00+00:00")
    )
    assert bundle_of(folder)["waits"] == {"why_not": "its profile is not beside it"}


def test_a_run_gives_its_figures(tmp_path):
    bundle = bundle_of(write_run(tmp_path))
    assert (bundle["kind"], bundle["policy"]) == ("run", "rehearse-ahead")
    assert bundle["n_requests"] == 2
    assert bundle["figures"]["tpot_p50_ns"] > 0


def test_a_policy_of_the_tuner_needs_the_profile_it_was_tuned_on(tmp_path):
    profile = MachineProfile.shipped("vm-2cpu")
    path = tmp_path / "policy.json"
    found = {
        "goal": "tpot-p99 <= +1%, then cpu",
        "default": SECRET,
        "kept_default_because": "",
        "n_searched": 50,
        "held_out": {"cores": [0.2, 0.1, float("nan")]},
        "profile_measured_at": profile.measured_at,
    }
    write_policy(path, NamedPolicy(SECRET, WakeAhead(80 * US)), found)
    with pytest.raises(ValueError, match="name the profile that it was tuned on"):
        bundle_of(path)
    with pytest.raises(ValueError, match="name the one it was tuned on"):
        bundle_of(path, MachineProfile({}, {}, {}, "2020-01-01T00:00:00+00:00"))
    bundle = bundle_of(path, profile)
    assert bundle["policy"] == "WakeAhead:guard=80us"
    assert bundle["goal"] == "tpot-p99 at most +1%, then cpu"
    assert bundle["held_out"] == {"cores": [0.2, 0.1, None]}
    assert SECRET not in text_of(bundle)


def test_what_holds_no_comparison_is_refused(tmp_path):
    with pytest.raises(ValueError, match="compares no policies"):
        bundle_of(write_grid(tmp_path / "grid"))
    with pytest.raises(ValueError, match="none of what can be contributed"):
        bundle_of(tmp_path)


def test_a_validation_that_does_not_say_which_policies_it_is_of_is_refused(tmp_path):
    known = config()
    del known["policies"][1:]
    with pytest.raises(ValueError, match="figures of 2 policies, and its config names 1, so"):
        bundle_of(validation(tmp_path, config=known))
    done = CliRunner().invoke(app, ["contribute", str(write_validation(tmp_path)), "--yes"])
    assert done.exit_code == 2
    assert "its config names 0" in done.output.replace("\n", " ")


def places(value, path=()):
    """Where something is in a document: of a list only its first."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, each in entries:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


def with_change(document, path, change):
    copied = json.loads(json.dumps(document))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return copied


CHANGES = {
    "missing": lambda inner, key: inner.pop(key),
    **{
        f"{value!r}": lambda inner, key, value=value: inner.__setitem__(key, value)
        for value in (None, -5, "x", [5], {"x": 5})
    },
}


def damaged(document):
    for path in places(document):
        for change in CHANGES.values():
            yield with_change(document, path, change)


def bundle_or_refusal(path, profile=None):
    """Whatever a folder holds, nothing else comes of it."""
    with contextlib.suppress(ValueError):
        check_bundle(bundle_of(path, profile))


@pytest.mark.slow
def test_whatever_a_folder_of_ones_own_making_holds_it_gives_a_bundle_or_is_refused(tmp_path):
    folder, run = validation(tmp_path / "validation"), write_run(tmp_path / "run")
    (folder / "profile.json").unlink()  # which takes most of the time
    for path in (folder / "validation.json", run / "meta.json"):
        for document in damaged(json.loads(path.read_text())):
            path.write_text(json.dumps(document))
            bundle_or_refusal(path.parent)
    profile = MachineProfile.shipped("vm-2cpu")
    path = tmp_path / "policy.json"
    found = {"held_out": {"cores": [0.2, 0.1]}, "profile_measured_at": profile.measured_at}
    write_policy(path, NamedPolicy("mine", WakeAhead(80 * US)), found)
    for document in damaged(json.loads(path.read_text())):
        path.write_text(json.dumps(document))
        bundle_or_refusal(path, profile)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "this code reads 1"),
        ({"kind": "other"}, "its kind is 'other'"),
        ({"machine": []}, "its machine is no dict"),
        ({"policies": {"<script>": {}}}, "holds characters that no bundle has"),
        ({"measured_on": "[x](y)"}, "holds characters that no bundle has"),
        ({"waits": {"L2_ns": float("inf")}}, "no finite number"),
        ({"format": "other"}, "it lacks"),
    ],
)
def test_a_bundle_from_a_stranger_is_held_to_what_bundles_are(tmp_path, change, said):
    bundle = bundle_of(validation(tmp_path))
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps({**bundle, **change}))
    with pytest.raises(ValueError, match="is no bundle: ") as told:
        read_bundle(path)
    assert said in str(told.value)
    path.write_text(text_of(bundle))
    assert read_bundle(path) == bundle
    check_bundle(bundle)


def test_all_of_it_is_shown_and_saved_only_on_a_yes(tmp_path):
    folder = validation(tmp_path)
    out = tmp_path / "mine.json"
    done = CliRunner().invoke(app, ["contribute", str(folder), "-o", str(out)], input="n\n")
    assert done.exit_code == 1
    assert not out.exists()
    done = CliRunner().invoke(app, ["contribute", str(folder), "-o", str(out)], input="y\n")
    assert done.exit_code == 0, done.output
    assert out.read_text() in done.output
    assert SECRET not in done.output
    done = CliRunner().invoke(app, ["contribute", str(folder), "--yes"], input="")
    assert done.exit_code == 0, done.output
    assert read_bundle(folder / "bundle.json") == read_bundle(out)


def test_no_answer_and_ctrl_c_at_the_question_are_told_apart(tmp_path, monkeypatch):
    arguments = ["contribute", str(validation(tmp_path)), "-o", str(tmp_path / "mine.json")]
    done = CliRunner().invoke(app, arguments, input="")
    assert done.exit_code == 2
    assert "nobody answered" in done.output

    def interrupted(*_, **__):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise typer.Abort from None

    monkeypatch.setattr(typer, "confirm", interrupted)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 130
    assert not (tmp_path / "mine.json").exists()


def test_every_policy_of_the_library_has_a_name_that_a_bundle_may_hold():
    bundle = {"format": "shmsim-bundle", "version": 1, "kind": "run", "machine": {}, "figures": {}}
    for policy in PRESETS.values():
        check_bundle({**bundle, "policy": written(policy), "n_workers": 1, "n_requests": 1})
