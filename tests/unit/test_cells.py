from pathlib import Path

import pytest

from realrun.cells import read_grid
from shmsim.config import ConfigError
from shmsim.units import MS, S

BENCH = Path(__file__).parents[2] / "experiments" / "bench" / "model_cells.toml"
CELL = '{ policy = "park", step = "2ms", jitter = 0.05, workers = 1, scheduling = "sync" }'
GRID = f"""
[grid]
run = "1s"
cells = [{CELL}]
[workload]
kind = "closed"
requests = 10
concurrency = 2
[run]
repeats = 3
"""


@pytest.fixture
def read(tmp_path):
    """Read a grid from text."""

    def of(text: str):
        path = tmp_path / "cells.toml"
        path.write_text(text)
        return read_grid(path)

    return of


def test_a_cell_is_a_config_and_its_name_says_what_sets_it_apart(read):
    grid = read(GRID)
    (cell,) = grid.cells
    assert cell.name == "tp1-sync-2ms-5pct-park"
    assert cell.config.device.step_ns == 2 * MS
    assert cell.config.device.jitter == 0.05
    assert [policy.name for policy in cell.config.policies] == ["park"]
    assert grid.repeats == 3


def test_a_run_decodes_for_as_long_as_the_grid_says(read):
    for cell in read_grid(BENCH).cells + read(GRID).cells:
        workload = cell.config.workload
        assert workload.output_p50 == workload.output_p95
        n_steps = workload.requests // workload.concurrency * workload.output_p50
        assert 0.9 * S <= n_steps * cell.config.device.step_ns <= 1.5 * S


def test_processes_that_outnumber_the_cores_make_a_cell_oversubscribed(read):
    (cell,) = read(GRID.replace("workers = 1", "workers = 2")).cells
    assert cell.is_oversubscribed(2)
    assert not cell.is_oversubscribed(3)


def test_the_cells_of_the_bench_cover_what_the_model_claims():
    grid = read_grid(BENCH)
    assert len(grid.cells) >= 24
    configs = [cell.config for cell in grid.cells]
    assert {c.policies[0].name for c in configs} >= {
        *("spin", "vllm-1s", "forks-2ms", "park", "wake-ahead", "rehearse-ahead"),
    }
    steps = {c.device.step_ns for c in configs}
    assert (min(steps), max(steps)) == (1 * MS, 20 * MS)
    assert len({c.device.jitter for c in configs}) > 1
    for workers in (1, 2):
        for scheduling in ("sync", "async"):
            kind = workers, scheduling
            assert any((c.engine.workers, c.engine.scheduling) == kind for c in configs)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('policy = "park"', 'policy = "prak"', r"grid.cells\[0\]: unknown policy 'prak'.*park"),
        ('policy = "park", ', "", "exactly the keys policy, step"),
        ("workers = 1", "worker = 1", "exactly the keys policy, step"),
        ('step = "2ms"', 'step = "2"', r"grid.cells\[0\]: device.step: duration '2' has no unit"),
        ("jitter = 0.05", "jitter = 9.0", r"device.jitter must be from 0.0 to 2.0"),
        (f"[{CELL}]", f"[{CELL}, {CELL}]", "cell tp1-sync-2ms-5pct-park is there 2 times"),
        (f"[{CELL}]", "[]", "at least one cell"),
        ('run = "1s"\n', "", "run, how long each run decodes"),
        ('run = "1s"', 'run = "1"', "grid.run: duration '1' has no unit"),
        ("repeats = 3", "repeats = 1", "at least 2 for an interval, got 1"),
        ('kind = "closed"', 'kind = "open"', "must be \"closed\" in a grid.*got 'open'"),
        ("[run]", '[[policy]]\npreset = "spin"\n[run]', "each cell has its own policy"),
        ("[run]", "[runs]", "unknown key runs"),
        ("[grid]", "[grid", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_grid_is_named(read, old, new, message):
    assert old in GRID
    with pytest.raises(ConfigError, match=message):
        read(GRID.replace(old, new, 1))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml: No such"):
        read_grid(tmp_path / "nowhere.toml")


def test_cells_can_be_chosen_by_name_and_unknown_names_are_refused():
    grid = read_grid(BENCH)
    last = grid.cells[-1].name
    assert [cell.name for cell in grid.only([last]).cells] == [last]
    with pytest.raises(ConfigError, match="there is no cell 'tp9'; known are tp1-"):
        grid.only(["tp9"])
