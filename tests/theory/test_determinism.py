"""Two runs of the parts that model give the same bytes, whatever else differs between them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("makes_everything.py")

#: All that may differ from one run to another without a say in what comes out.
ONE = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
OTHER = {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "2"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files of two runs, by name, with their bytes."""
    found = []
    for number, differs in enumerate((ONE, OTHER)):
        folder = tmp_path_factory.mktemp(f"run{number}" + "x" * 20 * number)
        subprocess.run(
            [sys.executable, SCRIPT, folder], cwd=folder, env=os.environ | differs, check=True
        )
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found.append({str(path.relative_to(folder)): path.read_bytes() for path in paths})
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_runs_of_everything_that_models_leave_the_same_bytes(made):
    one, other = made
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_it_is_not_the_same_for_want_of_luck_or_of_parts(made):
    one, _ = made
    kinds = {name.rpartition(".")[2] for name in one}
    assert {"parquet", "json", "svg", "gz"} <= kinds
    assert one["plain-spin/waits.parquet"] != one["plain-karlin/waits.parquet"]
    assert one["plain-spin/steps.parquet"] != one["crowded-spin/steps.parquet"]
    assert b"tuned" in one["policy.json"]
