"""A process that ends with an error of several lines: its cause is quoted, the rest is kept."""

import os

import pytest

from realrun.run import RunFailed, run_once
from tests.real.runs import ROOT, config, spec

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

#: As torch says it.
BROKEN = """
import realrun.worker

def fail(self):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\\\\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\\\\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\\\\n")

realrun.worker.Worker.run = fail
"""
ABORTED = """
import os, sys
import realrun.worker

def abort(self):
    sys.stderr.write("terminate called after throwing an instance of 'c10::Error'\\n"
        "  what():  CUDA error: unspecified launch failure\\nCompile with TORCH\\n")
    sys.stderr.flush()
    os.abort()

realrun.worker.Worker.run = abort
"""


def failure(tmp_path, monkeypatch, text, logs=None):
    (tmp_path / "sitecustomize.py").write_text(text.replace("\\\\n", "\\n"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    with pytest.raises(RunFailed) as failed:
        run_once(spec(config()), logs=logs)
    return str(failed.value)


def test_the_cause_is_quoted_and_all_that_was_said_is_kept(tmp_path, monkeypatch):
    logs = tmp_path / "out" / "logs"
    said = failure(tmp_path, monkeypatch, BROKEN, logs)
    cause = "exit code 1: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert cause in said
    assert said.endswith(f"; all that its processes said is in {logs}")
    kept = (logs / "worker0.log").read_text()
    assert kept.startswith("Traceback")
    assert "TORCH_USE_CUDA_DSA" in kept


def test_a_process_that_cpp_aborts_says_over_what(tmp_path, monkeypatch):
    said = failure(tmp_path, monkeypatch, ABORTED)
    assert "was killed by SIGABRT: CUDA error: unspecified launch failure at step" in said
    assert "kept" not in said


def test_logs_that_cannot_be_kept_do_not_hide_the_failure(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    said = failure(tmp_path, monkeypatch, BROKEN, blocked / "logs")
    assert "CUDA error" in said
    assert "what its processes said cannot be kept: " in said
