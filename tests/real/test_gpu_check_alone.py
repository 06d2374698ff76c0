"""A GPU check needs torch, numpy and pyzmq; here all else is made impossible to import."""

import json
import subprocess
import sys

import pytest

from shmsim.tape import Tape
from tests.real.runs import ROOT
from tests.real.without import environment_without

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def alone(tmp_path, *arguments):
    """Run Python in the checkout, without what a check does not need."""
    environment = environment_without(tmp_path, ROOT)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


def test_help_is_printed_without_them(tmp_path):
    done = alone(tmp_path, "-m", "realrun.gpu_check", "--help")
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
    assert "Exit codes: 0 all hold; 1 it failed" in done.stdout


def test_where_there_is_no_gpu_it_says_so_and_fails(tmp_path):
    torch = pytest.importorskip("torch", reason="asks torch about GPUs")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = alone(tmp_path, "-m", "realrun.gpu_check", "-o", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    (last,) = done.stderr.splitlines()[-1:]
    assert last.startswith("failed: the GPU cannot be used: "), done.stderr
    assert "without CUDA" in last or "finds no GPU" in last
    assert done.stdout == ""
    assert (tmp_path / "out" / "gpu.log").exists()


def test_wrong_arguments_are_misuse(tmp_path):
    assert alone(tmp_path, "-m", "realrun.gpu_check", "--nothing").returncode == 2


CELLS = """
import json, sys, time
from pathlib import Path
from realrun.gpu_check.asked import Cell
from realrun.gpu_check.carry_out import told
from realrun.gpu_check.flow import Found, run_cells
from shmsim.config import DeviceConfig
from tests.toy import toy_profile

out = Path(sys.argv[1])
out.mkdir()
profile = toy_profile()
profile.write(out / "profile.json")
device = DeviceConfig(kind="cpu", max_len=512, sleep_ns=1_000_000)
wanted = [Cell(2, "sync", "write", "park"), Cell(2, "sync", "write", "step-ahead-rehearsed")]
deadline_s = time.monotonic() + 60
ran = run_cells(wanted, device, profile, out / "profile.json", deadline_s, print, out / "logs")
found = Found(-1, {}, ran.rows, ran.predicted, ran.not_run, ran.failures, ran.left_out)
print(*told(out, found).lines, sep="\\n")
"""


@pytest.mark.slow
def test_cells_run_and_are_judged_without_the_model_and_its_pictures(tmp_path):
    pytest.importorskip("torch", reason="a device that computes needs torch")
    done = alone(tmp_path, "-c", CELLS, str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "left out: predictions, since" in done.stdout
    assert "left out: predicted.png, since matplotlib is not installed" in done.stdout
    assert "batch2_sync_token_streams" in done.stdout
    found = json.loads((tmp_path / "out" / "found.json").read_text())
    assert found["failures"] == []
    assert [row["policy"] for row in found["rows"]] == ["park", "step-ahead-rehearsed"]
    assert len({row["tokens_crc32"] for row in found["rows"]}) == 1
    assert all(row["predicted"] is None for row in found["rows"])


def test_normal_numbers_are_the_same_without_scipy(tmp_path):
    code = (
        "from shmsim.tape import Tape; print([Tape(1).normal('a', 'b').at(i) for i in range(64)])"
    )
    done = alone(tmp_path, "-c", code)
    expected = [Tape(1).normal("a", "b").at(i) for i in range(64)]
    assert json.loads(done.stdout) == pytest.approx(expected, rel=1e-12), done.stderr
