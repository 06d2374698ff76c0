"""What is wrong with a GPU is said before anything is loaded; the driver's answers are played."""

import pytest

from realrun.model.geometry import geometry_of

torch = pytest.importorskip("torch", reason="asks torch about GPUs")

from realrun.cuda import checks  # noqa: E402 - it needs torch
from realrun.cuda.checks import NoGpu, check_idle, check_memory, choose_gpu, clocks  # noqa: E402

UUID = "12345678-aaaa-bbbb-cccc-000000000000"


class Properties:
    """What torch says about a GPU."""

    uuid = UUID


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs of 80 GB, one of them not empty."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(checks, "_LOOK_S", 0.0)


def smi(monkeypatch, tmp_path, *utilisations):
    """A program that answers as nvidia-smi does, each time with the next utilisation."""
    answers = tmp_path / "answers"
    answers.write_text("".join(f"GPU-{UUID}, {u}\n" for u in utilisations))
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *compute-apps*) echo "GPU-{UUID}, 4242, 512 MiB";;\n'
        f"*) head -n1 {answers}; sed -i 1d {answers};; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_every_rank_has_a_gpu_of_its_own_or_shares_if_that_was_asked_for(gpus):
    assert [choose_gpu(rank, 2, shares=False) for rank in range(2)] == [0, 1]
    assert [choose_gpu(rank, 4, shares=True) for rank in range(4)] == [0, 1, 0, 1]
    with pytest.raises(NoGpu, match=r"4 workers want a GPU each and there are 2; .*devices = 2"):
        choose_gpu(3, 4, shares=False)


@pytest.mark.parametrize(
    ("cuda", "message"),
    [(None, "was built without CUDA"), ("13.0", "finds no GPU it can use: .* driver")],
)
def test_no_gpu_has_a_reason_and_a_way_out(monkeypatch, cuda, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(NoGpu, match=rf'{message}.* device\.kind = "cpu"'):
        choose_gpu(0, 1, shares=False)


def test_a_model_that_does_not_fit_is_refused_with_its_parts(gpus):
    small, large = geometry_of("llama-3.2-1b"), geometry_of("llama-3.1-8b")
    check_memory(small, 1, 64, 1024, 0)
    check_memory(large, 2, 8, 1024, 0)
    with pytest.raises(NoGpu, match=r"20,480 of 81,920 MiB free, and .* 15,316 for weights, 8,192"):
        check_memory(large, 1, 64, 1024, 0)


def test_a_gpu_that_somebody_computes_on_is_refused_and_one_that_has_just_finished_is_not(
    gpus, monkeypatch, tmp_path
):
    smi(monkeypatch, tmp_path, 60, 31, 3)
    check_idle(0)
    smi(monkeypatch, tmp_path, 97, 96, 97, 98)
    with pytest.raises(NoGpu, match=r"GPU 0 is 98 % busy .* 4242 \(512 MiB\).* CUDA_VISIBLE"):
        check_idle(0)


def test_where_nobody_can_tell_nobody_is_refused(gpus, monkeypatch, tmp_path):
    for nothing in ("[N/A]", "[Not Supported]", "[Unknown Error]"):
        smi(monkeypatch, tmp_path, nothing)
        check_idle(0)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_idle(0)
    assert clocks(0) == {}


def test_clocks_are_read_by_the_name_of_the_gpu(gpus, monkeypatch, tmp_path):
    smi(monkeypatch, tmp_path, "1980, 2619, 95.3, 41")
    assert clocks(0)["clocks.sm"] == "1980"
    smi(monkeypatch, tmp_path, "1980, 2619, 95.3, 41")
    Properties.uuid = "another"
    try:
        assert clocks(0) == {}
    finally:
        Properties.uuid = UUID
