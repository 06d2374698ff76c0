"""The process that measures a GPU: whatever becomes of it, what it reported is kept."""

import sys

import pytest

from realrun.calibrate_gpu import measure_gpu, run_measuring

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

REPORTS = """
import json, os, signal, sys, time
def tell(**content): print(json.dumps(content), flush=True)
tell(plan=["facts", "copies"])
tell(doing="facts: begins", share=0.0)
tell(part="facts", seconds=0.1, samples=[["d2h", 8.0, [5]]], facts={"seen": os.environ["SEEN"]})
print("a library says something")
"""


def run(script, limit_s=30.0, log=None):
    doing = []

    def note(*told):
        doing.append(told)

    reported = run_measuring([sys.executable, "-c", script], {"SEEN": "2"}, note, limit_s, log)
    return reported, doing


def test_parts_are_gathered_as_they_are_reported():
    script = REPORTS + 'tell(part="copies", seconds=0.2, reason="OSError: no")'
    (facts, copies), doing = run(script)
    assert facts.measured.facts == {"seen": "2"}
    assert facts.measured.samples == [("d2h", 8.0, [5])]
    assert (copies.measured, copies.reason) == (None, "OSError: no")
    assert doing == [("facts: begins", 0.0)]


def test_a_process_that_dies_leaves_what_it_had_measured():
    (_, copies), _ = run(REPORTS + "os.kill(os.getpid(), signal.SIGKILL)")
    assert copies.reason == "it ended with -9: it said nothing"


def test_a_process_that_hangs_is_killed_and_what_it_had_measured_is_kept():
    (facts, copies), _ = run(REPORTS + "time.sleep(1000)", limit_s=10.0)
    assert facts.measured is not None
    assert copies.reason == "no end after 10 s"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('no GPU here; do this')", "cannot be used: no GPU here; do this$"),
        ("import sys; sys.exit(3)", "cannot be used: it ended with 3: it said nothing"),
        ("import time; time.sleep(1000)", "cannot be used: no end after 1 s"),
    ],
)
def test_a_gpu_that_cannot_be_measured_at_all_is_an_error_with_its_reason(script, message):
    with pytest.raises(RuntimeError, match=message):
        run(script, limit_s=1.0 if "sleep" in script else 30.0)


ERROR = """
raise RuntimeError("CUDA error: an illegal memory access was encountered\\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.")
"""


def test_an_error_of_several_lines_is_quoted_by_its_cause_and_kept_whole(tmp_path):
    log = tmp_path / "gpu.log"
    cause = "RuntimeError: CUDA error: an illegal memory access was encountered"
    kept = f"; all that was said is in {log}"
    (_, copies), _ = run(REPORTS + ERROR, log=log)
    assert copies.reason == f"it ended with 1: {cause}{kept}"
    assert "TORCH_USE_CUDA_DSA" in log.read_text()
    with pytest.raises(RuntimeError, match="cannot be used") as failed:
        run(ERROR, log=log)
    assert str(failed.value) == f"the GPU cannot be used: {cause}{kept}"
    slow = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(1000)"
    with pytest.raises(RuntimeError, match=r"no end after 2 s: loading; all that was said"):
        run(slow, limit_s=2.0, log=log)


def test_a_gpu_that_is_not_visible_starts_nothing(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(RuntimeError, match="GPU 1 is asked for"):
        measure_gpu(1, lambda *_: pytest.fail("nothing is measured"))


@pytest.mark.slow
def test_where_torch_has_no_gpu_the_command_says_why():
    torch = pytest.importorskip("torch", reason="asks torch about GPUs")
    if torch.version.cuda is not None:
        pytest.skip("this torch may find a GPU")
    with pytest.raises(RuntimeError, match=r"was built without CUDA; .*pip install torch"):
        measure_gpu(0, lambda *_: None)


def test_whoever_interrupts_leaves_no_process(capfd):
    def interrupt(*_):
        raise KeyboardInterrupt

    command = [sys.executable, "-c", REPORTS + "time.sleep(1000)"]
    with pytest.raises(KeyboardInterrupt):  # that none is left, the folder's fixture sees
        run_measuring(command, {"SEEN": "2"}, interrupt, 30.0)
    assert capfd.readouterr().err == ""
