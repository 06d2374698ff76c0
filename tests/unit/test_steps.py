"""What a run tells about its device."""

import pytest

from realrun.steps import device_notes, write_steps
from shmsim.inputs.measured_steps import read_measured_steps
from shmsim.records import RunRecords, StepRow
from shmsim.units import MS


def steps(n, n_decode, n_prefill=0, start=0):
    return [
        StepRow(i, n_decode, n_prefill, 0, 0, 10 * MS * i, 10 * MS * i + (2 + n_decode) * MS, 0, 0)
        for i in range(start, start + n)
    ]


def test_the_model_can_read_what_a_run_has_measured(tmp_path):
    records = RunRecords(steps(30, 1) + steps(25, 4, start=30) + steps(5, 3, start=55))
    assert write_steps(tmp_path / "steps.csv", records) == 55
    law = read_measured_steps(tmp_path / "steps.csv").value
    assert law.buckets == (1, 4), "three sequences came too rarely"
    assert law.mean_ns(1, 0, 0) == pytest.approx(3 * MS)
    assert law.mean_ns(3, 0, 0) == pytest.approx(6 * MS)


def test_steps_with_prompt_tokens_do_not_count(tmp_path):
    with pytest.raises(ValueError, match="no number of decoding sequences came in 20 steps"):
        write_steps(tmp_path / "steps.csv", RunRecords(steps(30, 1, n_prefill=9)))
    assert not (tmp_path / "steps.csv").exists()


def notes(*devices, emulated=False):
    return device_notes(RunRecords(meta={"devices": list(devices), "emulated": emulated}))


def test_what_was_not_as_asked_is_said():
    gpu = {"kind": "cuda", "memory": "pinned", "observe": "blocking"}
    assert notes({**gpu, "not_registered": "", "not_observed": ""}) == []
    both = notes({**gpu, "not_registered": "error 2", "not_observed": "error 2"})
    assert "worker 0: shared memory is not registered with the GPU (error 2)" in both[0]
    assert "observed by 'blocking' instead of as asked" in both[1]


def test_rows_that_are_emulated_are_labelled():
    (without,) = notes({"kind": "cuda"}, {"kind": "none"}, {"kind": "none"}, emulated=True)
    assert without == "emulated: 2 of 3 workers have no device and only receive"
    (shared,) = notes({"kind": "cuda"}, {"kind": "cuda"}, emulated=True)
    assert "take turns" in shared
    assert device_notes(RunRecords()) == []
