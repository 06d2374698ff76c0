"""The leaderboard: what bundles say together, the same bytes from the same files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from realrun.contribute import bundle_of, text_of
from tests.report_folders import write_run
from tests.unit.test_contribute import validation

FOLDER = Path(__file__).parents[2] / "experiments" / "leaderboard"
RECORD = FOLDER.parent / "10_model_against_machine" / "results"


def build(*arguments):
    return subprocess.run(
        [sys.executable, FOLDER / "build.py", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def bundles(tmp_path):
    folder = tmp_path / "bundles"
    folder.mkdir()
    one = bundle_of(validation(tmp_path / "validation"))
    (folder / "b.json").write_text(text_of(one))
    other = one | {"machine": one["machine"] | {"cpu": "Another CPU"}}
    (folder / "a.json").write_text(text_of(other))
    (folder / "run.json").write_text(text_of(bundle_of(write_run(tmp_path / "run"))))
    return folder


def test_what_is_stored_is_what_the_bundles_give():
    done = build("--check")
    assert done.returncode == 0, done.stderr


def test_the_board_says_of_experiment_10_what_its_record_says(tmp_path):
    cells = {
        cell["name"]: cell["content"]["table"]
        for cell in json.loads((RECORD / "record.json").read_text())["cells"]
    }
    assert {path.parent.name for path in RECORD.glob("*/bundle.json")} == set(cells)
    board = json.loads((FOLDER / "leaderboard.json").read_text())
    for name, table in cells.items():
        text = (RECORD / name / "bundle.json").read_text()
        only = tmp_path / name / "only"
        only.mkdir(parents=True)
        (only / "bundle.json").write_text(text)
        assert build("--bundles", only, "--out", only.parent).returncode == 0
        rows = json.loads((only.parent / "leaderboard.json").read_text())["rows"]
        # The whole board shows these rows for this workload and machine, and no others.
        place = ("workload", "machine")
        here = {tuple(row[key] for key in place) for row in rows}
        shown = [row for row in board["rows"] if tuple(row[key] for key in place) in here]
        assert shown == rows
        n_workers = json.loads(text)["settings"]["engine.workers"]
        figures = sorted(
            (tpot["measured"] / 1e6, tpot["simulated"] / 1e6, *cores_of(row, n_workers))
            for row in table.values()
            for tpot in [row["tpot_p50_ns"]]
        )
        names = ("tpot_ms", "model_tpot_ms", "cores", "model_cores")
        assert sorted(tuple(row[key] for key in names) for row in rows) == [
            pytest.approx(each) for each in figures
        ]


def cores_of(figures, n_workers):
    return [
        figures["scheduler_cores"][world] + n_workers * figures["worker_cores"][world]
        for world in ("measured", "simulated")
    ]


def test_bundles_become_a_table_for_each_workload_and_machine(bundles, tmp_path):
    out = tmp_path / "out"
    assert build("--bundles", bundles, "--out", out).returncode == 0
    data = json.loads((out / "leaderboard.json").read_text())
    assert len(data["machines"]) == 2
    assert len(data["workloads"]) == 1
    assert [row["policy"] for row in data["rows"]] == ["WakeAhead:guard=80us", "spin"] * 2
    cheapest, spin = data["rows"][:2]
    # One worker, r = 10: 0.25 + 0.2 cores, 2 % on TPOT; and 0.5 + 0.4 cores, nothing on TPOT.
    assert cheapest["cost"] == pytest.approx(0.45 + 10 * 0.02)
    assert spin["cost"] == pytest.approx(0.9)
    assert (cheapest["is_best"], spin["is_best"]) == (True, False)
    page = (out / "leaderboard.md").read_text()
    assert page.count("| **`WakeAhead:guard=80us`** |") == 2
    assert "No bound: `its records are not beside it`" in page
    assert "`Another CPU`" in page
    assert build("--bundles", bundles, "--out", out, "--check").returncode == 0


def test_names_and_order_of_the_files_do_not_matter(bundles, tmp_path):
    build("--bundles", bundles, "--out", tmp_path / "one")
    (bundles / "a.json").rename(bundles / "z.json")
    build("--bundles", bundles, "--out", tmp_path / "two")
    for name in ("leaderboard.md", "leaderboard.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_stale_file_and_a_damaged_bundle_are_told(bundles, tmp_path):
    assert build("--bundles", bundles, "--out", tmp_path / "out", "--check").returncode == 1
    broken = json.loads((bundles / "b.json").read_text())
    del broken["policies"]["spin"]["itl_p99_ns"]
    (bundles / "b.json").write_text(json.dumps(broken))
    done = build("--bundles", bundles, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "b.json lacks what the leaderboard shows: KeyError('itl_p99_ns')" in done.stderr
    for path in bundles.glob("*.json"):
        path.unlink()
    assert "holds no bundle" in build("--bundles", bundles).stderr
