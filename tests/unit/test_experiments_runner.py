"""The runner of experiments: cells are kept, resumed, stored, merged, and worlds are kept apart."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmsim.claims import Claim, read_claims

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
MODULES = ("ctrl_c", "experiment", "find", "kept", "merge", "origin", "record", "carry_out")


@pytest.fixture(scope="module")
def runner():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        modules = {name: import_module(f"runner.{name}") for name in MODULES}
        yield SimpleNamespace(**modules)


def silent(label, share):
    assert 0.0 <= share <= 1.0, label


class Made:
    """An experiment that doubles numbers, and counts how often it was asked to."""

    def __init__(self, runner, world="model"):
        self.runner, self.world = runner, world
        self.ran = []
        self.fails_at = None
        self.content = {}

    def cells(self, plan):
        return [
            self.runner.experiment.Cell(f"twice {n}", self.world, {"n": n}) for n in plan["numbers"]
        ]

    def run(self, cell, context):
        n = cell.settings["n"]
        if n == self.fails_at:
            raise KeyboardInterrupt
        if n < 0:
            raise self.runner.experiment.Skipped("negative")
        self.ran.append(n)
        (context.files / f"{n}.txt").write_text(str(n))
        return {"twice": 2 * n, "before": len(context.found), **self.content}

    def report(self, results, out):
        (out / "told.txt").write_text("told")
        total = float(sum(row["twice"] for row in results.content.values()))
        claim = Claim("made/sum", total, total, total, "count", 100.0, "<=", 1, 0)
        return self.runner.experiment.Findings([claim], {"sum": total})

    def job(self, tmp_path, node="here", numbers=(1, 2, 3), out="out"):
        experiment = self.runner.experiment.Experiment(self.cells, self.run, self.report, dict)
        folder = tmp_path / "90_made"
        folder.mkdir(exist_ok=True)
        plan = {"seed": 7, "numbers": list(numbers)}
        return self.runner.carry_out.Job(
            folder, experiment, plan, "full", tmp_path / out, tmp_path / "kept" / node, node
        )

    def record(self, tmp_path, **more):
        return self.runner.carry_out.carry_out(self.job(tmp_path, **more), silent)


@pytest.fixture
def made(runner):
    return Made(runner)


# Running and resuming.


def test_what_an_interrupted_run_has_done_is_not_done_again(made, tmp_path):
    made.fails_at = 3
    with pytest.raises(KeyboardInterrupt):
        made.record(tmp_path)
    assert not (tmp_path / "out").exists()
    made.fails_at = None
    record = made.record(tmp_path)
    assert made.ran == [1, 2, 3]
    # Who comes later sees what was found before the interruption.
    assert [row.content["before"] for row in record.rows] == [0, 1, 2]


def test_a_run_that_came_to_its_end_measures_anew(made, tmp_path):
    made.record(tmp_path)
    made.record(tmp_path)
    assert made.ran == [1, 2, 3] * 2


def test_an_interrupt_that_python_drops_ends_the_run_after_the_cell(made, tmp_path):
    run = made.run

    def interrupted(cell, context):
        # As in a hook around a fork: the exception is printed and ignored.
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return run(cell, context)

    made.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        made.record(tmp_path)
    assert made.ran == [1]
    made.run = run
    made.record(tmp_path)
    assert made.ran == [1, 2, 3]


@pytest.mark.parametrize("changed", ["plan", "source"])
def test_what_another_plan_or_another_code_gave_is_not_taken_over(made, tmp_path, changed):
    made.fails_at = 3
    with pytest.raises(KeyboardInterrupt):
        made.record(tmp_path)
    made.fails_at = None
    if changed == "source":
        (tmp_path / "90_made" / "helper.py").write_text("x = 1\n")
        made.record(tmp_path)
    else:
        made.record(tmp_path, numbers=(1, 2, 3, 4))
    assert made.ran[:4] == [1, 2, 1, 2]


def test_a_damaged_cell_is_run_again(runner, tmp_path):
    kept = runner.kept.Kept(tmp_path)
    kept.put("a", {"x": 1})
    assert kept.get("a") == {"x": 1}
    (path,) = (tmp_path / "cells").iterdir()
    path.write_text(path.read_text().replace("1", "2"))
    assert kept.get("a") is None
    assert kept.get("b") is None


def test_two_runs_of_one_experiment_do_not_share_what_is_kept(runner, made, tmp_path):
    with (
        runner.kept.only_one(tmp_path / "kept" / "here"),
        pytest.raises(RuntimeError, match="is being run already"),
    ):
        made.record(tmp_path)


def test_what_is_opened_is_left_once_at_the_end(runner, made, tmp_path):
    events = []

    class Tool:
        def __enter__(self):
            events.append("in")
            return self

        def __exit__(self, *_):
            events.append("out")

    def run(cell, context):
        assert isinstance(context.opened("tool", Tool), Tool)
        return {"twice": 0}

    made.run = run
    made.record(tmp_path)
    assert events == ["in", "out"]


# What is stored.


def test_a_record_holds_all_that_is_needed_to_doubt_it(runner, made, tmp_path):
    made.record(tmp_path, numbers=(1, -1, 2))
    out = tmp_path / "out"
    record = runner.record.read_record(out / "record.json")
    assert (record.experiment, record.effort, record.plan["seed"]) == ("90_made", "full", 7)
    node = record.nodes["here"]
    assert node["machine"]["cores"] >= 1
    assert len(node["source"]) == 64
    assert [row.skipped for row in record.rows] == ["", "negative", ""]
    assert record.summary == {"sum": 6.0}
    assert record.results("here").skipped == {"twice -1": "negative"}
    (claim,) = read_claims(out / "claims.json")
    assert (claim.id, claim.value) == ("made/sum", 6.0)
    # Files of cells and of the report lie beside it.
    assert {path.name for path in out.iterdir()} == {
        "1.txt", "2.txt", "claims.json", "record.json", "told.txt",
    }  # fmt: skip


def test_two_runs_of_the_model_give_the_same_digest(runner, made, tmp_path):
    digests = {made.record(tmp_path).digest("here") for _ in range(2)}
    assert len(digests) == 1
    made.content = {"more": 1}
    assert made.record(tmp_path).digest("here") not in digests


def test_an_edited_record_is_refused(runner, made, tmp_path):
    made.record(tmp_path)
    path = tmp_path / "out" / "record.json"
    stored = json.loads(path.read_text())
    stored["cells"][0]["content"]["twice"] = 5
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="do not fit the digest"):
        runner.record.read_record(path)
    with pytest.raises(ValueError, match="cannot read"):
        runner.record.read_record(tmp_path / "nowhere.json")
    path.write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99, and this code reads 1"):
        runner.record.read_record(path)


def test_what_json_cannot_hold_is_refused_by_the_name_of_its_cell(made, tmp_path):
    made.content = {"x": float("nan")}
    with pytest.raises(ValueError, match="cell twice 1 gave what JSON cannot hold"):
        made.record(tmp_path)


def test_what_was_emulated_is_not_stored_as_measured(runner, tmp_path):
    made = Made(runner, "machine")
    made.content = {"emulated": True}
    with pytest.raises(ValueError, match="of world 'machine', but its run was emulated"):
        made.record(tmp_path)
    made.world = "emulated"
    results = made.record(tmp_path).results("here")
    assert len(results.of("emulated")) == 3
    assert results.of("machine") == {}


def test_a_cell_of_no_world_and_two_of_one_name_are_refused(runner, made, tmp_path):
    with pytest.raises(ValueError, match="two cells are called 'twice 1'"):
        made.record(tmp_path, numbers=(1, 1))
    made.world = "virtual"
    with pytest.raises(ValueError, match="known are model, machine, emulated"):
        made.record(tmp_path)


# Merging.


def test_records_of_several_nodes_become_one_that_keeps_them_apart(runner, made, tmp_path):
    records = [made.record(tmp_path, node=node, out=node) for node in ("a", "b")]
    record = runner.merge.merged(records)
    assert list(record.nodes) == ["a", "b"]
    assert runner.merge.agreement(record) == (3, 3)
    job = made.job(tmp_path)
    record = runner.carry_out.told(job.experiment, record, tmp_path / "merged")
    assert record.summaries == {"a": {"sum": 12.0}, "b": {"sum": 12.0}}
    with pytest.raises(ValueError, match="ran on a, b; take one of"):
        _ = record.summary
    claims = read_claims(tmp_path / "merged" / "claims.json")
    assert [claim.id for claim in claims] == ["made/sum@a", "made/sum@b"]
    assert runner.record.read_record(tmp_path / "merged" / "record.json") == record


def test_the_same_record_twice_is_one_and_a_node_that_says_two_things_is_refused(
    runner, made, tmp_path
):
    first = made.record(tmp_path)
    assert runner.merge.merged([first, first]).rows == first.rows
    made.content = {"more": 1}
    with pytest.raises(ValueError, match="different things of a node called here"):
        runner.merge.merged([first, made.record(tmp_path)])


def test_measured_and_emulated_rows_are_never_merged(runner, tmp_path):
    made = Made(runner, "machine")
    real = made.record(tmp_path, node="a")
    made.world = "emulated"
    pretended = made.record(tmp_path, node="b")
    with pytest.raises(ValueError, match="never put beside what was measured"):
        runner.merge.merged([real, pretended])


def test_records_that_are_not_alike_are_refused(runner, made, tmp_path):
    first = made.record(tmp_path, node="a")
    other = made.record(tmp_path, node="b", numbers=(1, 2))
    with pytest.raises(ValueError, match="of different plans"):
        runner.merge.merged([first, other])
    with pytest.raises(ValueError, match="different efforts: full and quick"):
        runner.merge.merged([first, first._replace(effort="quick")])
    (tmp_path / "90_made" / "helper.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="made by different code"):
        runner.merge.merged([first, made.record(tmp_path, node="b")])
    with pytest.raises(ValueError, match="nothing to merge"):
        runner.merge.merged([])


def test_models_that_disagree_are_counted(runner, made, tmp_path):
    first = made.record(tmp_path, node="a")
    made.content = {"more": 1}
    record = runner.merge.merged([first, made.record(tmp_path, node="b")])
    assert runner.merge.agreement(record) == (0, 3)


# Finding.


def test_an_experiment_is_found_by_number_and_a_slip_is_explained(runner):
    assert runner.find.find("02") == runner.find.find("02_seed_cells") == "02_seed_cells"
    with pytest.raises(ValueError, match="did you mean 02_seed_cells"):
        runner.find.find("02_seed_cell")
    with pytest.raises(ValueError, match="the experiments are 01_calibration"):
        runner.find.find("99")


def test_every_experiment_has_a_plan_and_says_what_it_predicts(runner):
    for name in runner.find.names():
        folder = EXPERIMENTS / name
        assert type(runner.find.read_plan(folder / "config.toml")["seed"]) is int
        text = (folder / "README.md").read_text()
        for heading in ("Prediction", "Control", "Ablation", "Kill criterion"):
            assert f"## {heading}" in text, f"{name} has no {heading}"
        assert f"experiments/run.py {name[:2]}" in text, f"{name} does not say how it is run"


def test_a_record_is_of_a_commit_and_of_nothing_that_nobody_has(runner):
    for name in runner.find.names():
        path = EXPERIMENTS / name / "results" / "record.json"
        if not path.exists():
            continue
        for node in runner.record.read_record(path).nodes.values():
            assert len(node["commit"]) == 40
            assert not node["dirty"], (
                f"{name} was recorded on edited files: run it again from a clean checkout"
            )
    for path in (EXPERIMENTS / "bench" / "results").glob("*.json"):
        assert not json.loads(path.read_text()).get("origin", {}).get("dirty"), path


def test_only_code_makes_a_checkout_dirty(runner, tmp_path):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x", *arguments], cwd=tmp_path, check=True
        )

    record = tmp_path / "experiments" / "90_made" / "results" / "record.json"
    code = tmp_path / "experiments" / "90_made" / "run.py"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    code.write_text("x = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "made")
    assert runner.origin.commit(code.parent)[1] is False
    record.write_text('{"x": 1}')
    assert runner.origin.commit(code.parent)[1] is False
    code.write_text("x = 2\n")
    assert runner.origin.commit(code.parent)[1] is True


def test_what_is_compiled_is_told_by_its_source_and_benches_count(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(runner.origin, "BENCH", tmp_path / "bench")
    folder = tmp_path / "90_made"
    for path in (folder / "run.py", tmp_path / "bench" / "cells.py"):
        path.parent.mkdir()
        path.write_text("x = 1\n")
    before = runner.origin.source_hash(folder)
    (folder / "made.abi3.so").write_bytes(b"of this compiler")
    assert runner.origin.source_hash(folder) == before
    (tmp_path / "bench" / "cells.py").write_text("x = 2\n")
    assert runner.origin.source_hash(folder) != before


def test_a_bench_says_which_code_made_its_record(tmp_path):
    code = (
        "import sys; from pathlib import Path; from stored import store\n"
        "store(Path(sys.argv[1]), [], {'cells': 1})"
    )
    path = tmp_path / "made.json"
    subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=os.environ | {"PYTHONPATH": f"{EXPERIMENTS / 'bench'}:{EXPERIMENTS.parent}"},
        check=True, capture_output=True,
    )  # fmt: skip
    origin = json.loads(path.read_text())["origin"]
    assert len(origin["commit"]) in (40, len("unknown"))
    assert set(origin) == {"commit", "dirty", "started"}
    assert json.loads((tmp_path / "made_cells.json").read_text()) == {"cells": 1}


def test_a_cluster_that_nothing_is_sent_to_is_said(runner, capsys):
    spec = spec_from_file_location("run_experiments", EXPERIMENTS / "run.py")
    command = module_from_spec(spec)
    spec.loader.exec_module(command)
    for name, says in (("03_spin_thresholds", False), ("12_h200_tables", True)):
        command.job_of(name, command.parser().parse_args([name, "--cluster", "tcp://x:1"]))
        assert ("--cluster changes nothing there" in capsys.readouterr().err) == says


def test_a_plan_without_a_seed_is_refused(runner, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("repeats = 3\n")
    with pytest.raises(ValueError, match="needs a key seed"):
        runner.find.read_plan(path)
    path.write_text("seed =")
    with pytest.raises(ValueError, match="is no TOML"):
        runner.find.read_plan(path)


def test_a_folder_that_exposes_nothing_is_refused(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="exposes no EXPERIMENT"):
        runner.find.load(tmp_path)


# The command.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["99"], "there is no experiment '99'"),
        (["02", "--config", "x.toml"], "say with --out"),
        (["all", "--out", "x"], "are for one experiment"),
        (["merge", "x.json"], "say with --out"),
        (["02", "x.json"], "takes no records"),
    ],
)
def test_misuse_ends_in_one_line_and_2(arguments, said, tmp_path):
    command = [sys.executable, str(EXPERIMENTS / "run.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("how", "expected"),
    [(KeyboardInterrupt, ["wait", "wait"]), (SystemExit, ["wait", "terminate"])],
)
def test_whoever_ends_all_of_them_waits_for_the_one_that_runs(runner, monkeypatch, how, expected):
    spec = spec_from_file_location("run_experiments", EXPERIMENTS / "run.py")
    command = module_from_spec(spec)
    spec.loader.exec_module(command)
    done = []

    class Child(contextlib.nullcontext):
        def __enter__(self):
            return self

        def wait(self):
            done.append("wait")
            if len(done) == 1:
                raise how

        def terminate(self):
            done.append("terminate")

    monkeypatch.setattr(command.subprocess, "Popen", Child)
    options = {"out": None, "config": None, "quick": True, "cluster": "", "node": "", "gpus": ""}
    with pytest.raises(how):
        command.run_all(SimpleNamespace(**options))
    assert done == expected
