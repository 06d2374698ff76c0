"""Ranks add up, or say what is wrong."""

import subprocess
import sys

import pytest

from realrun.device.watchdog import within

pytest.importorskip("torch", reason="collectives need torch")
pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

RANK = """
import sys, torch
from pathlib import Path
from realrun.model.collectives import join, leave
rank, n_ranks = int(sys.argv[1]), int(sys.argv[2])
reduce = join("gloo", rank, n_ranks, Path(sys.argv[3]), "cpu", float(sys.argv[4]))
part = torch.arange(4.0) * (rank + 1)
print(reduce(part).tolist())
leave()
"""


def ranks(n_started, n_ranks, folder, limit_s=40):
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(n_ranks), str(folder), str(limit_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n_started)
    ]


@pytest.mark.slow
def test_gloo_adds_up_the_parts_of_all_ranks(tmp_path):
    for process in ranks(2, 2, tmp_path):
        said, error = process.communicate(timeout=50)
        assert said == "[0.0, 3.0, 6.0, 9.0]\n", error


@pytest.mark.slow
def test_a_rank_that_is_missing_is_named_after_a_while(tmp_path):
    (process,) = ranks(1, 2, tmp_path, 2)
    _, error = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "rank 0 of 2 could not join the others by gloo" in error
    assert "GLOO_SOCKET_IFNAME" in error.splitlines()[-1]


def test_what_nccl_calls_its_last_error_is_kept(tmp_path, monkeypatch):
    import torch.distributed as dist

    from realrun.model.collectives import join

    said = (
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'\n"
    )

    def fail(*_, **__):
        raise RuntimeError(said)

    monkeypatch.setattr(dist, "init_process_group", fail)
    for name in ("GLOO_SOCKET_IFNAME", "TORCH_NCCL_ENABLE_MONITORING"):
        monkeypatch.setenv(name, "lo")  # it would set them for good
    monkeypatch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    with pytest.raises(
        RuntimeError, match=r"2\.27\.5; Last error: Cuda failure 2 'out of memory'; "
    ):
        join("nccl", 0, 2, tmp_path, "cpu", 1.0)


def test_a_start_that_hangs_ends_its_process_and_says_where():
    code = (
        "from realrun.device.watchdog import within\nimport time\n"
        "with within(0.05, 'worker 3: loading the model'): time.sleep(30)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=25, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("worker 3: loading the model took more than 0.05 s; ")


def test_a_start_in_time_ends_nothing():
    with within(0.01, "nothing"):
        pass
    import time

    time.sleep(0.03)  # the process would be gone
