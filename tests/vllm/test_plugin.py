"""Off, the plugin does nothing at all; asked for in vain, it says why."""

import os
import subprocess
import sys

import pytest

from tests.vllm.expected import write_package

INERT = """
import sys
from realrun.vllm.plugin import install
before = set(sys.modules)
install()
print(sorted(set(sys.modules) - before), "vllm" in sys.modules)
"""


def _run(code, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("REALRUN_VLLM")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def test_without_its_variables_it_imports_nothing_not_even_vllm():
    assert _run(INERT).stdout.strip() == "[] False"


def test_empty_variables_are_as_good_as_none():
    assert _run(INERT, REALRUN_VLLM_TRACE="", REALRUN_VLLM_POLICY="").stdout.strip() == "[] False"


def test_without_vllm_it_complains_in_the_log_and_goes_on():
    hidden = "import sys; sys.modules['vllm'] = None\n"
    answer = _run(hidden + INERT, REALRUN_VLLM_TRACE="/nowhere")
    assert "realrun leaves vLLM as it is" in answer.stderr


JOIN = """
from realrun.vllm.plugin import install
install()
from vllm.v1.executor import multiproc_executor as module
for name, method in ("MultiprocExecutor", "_init_executor"), ("WorkerProc", "_init_message_queues"):
    print(hasattr(getattr(getattr(module, name), method, None), "__wrapped__"))
"""


def test_a_vllm_that_is_as_expected_is_joined(tmp_path):
    write_package(tmp_path)
    answer = _run(JOIN, PYTHONPATH=str(tmp_path), REALRUN_VLLM_TRACE=str(tmp_path))
    assert answer.stdout.split() == ["True", "True"]
    assert "realrun" not in answer.stderr


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("class SpinCondition", "class Condition", "there is no SpinCondition.wait"),
        ("wait(self, timeout_ms=None)", "wait(self)", "SpinCondition.wait takes self, not"),
        ("self.busy_loop_s", "self.window_s", "has no 'self.last_read + self.busy_loop_s'"),
        ("finally", "except OSError", "MessageQueue.acquire_read has no 'finally:'"),
        ("SHM_READER_RECHECK_INTERVAL_MS", "RECHECK_MS", "has no SHM_READER_RECHECK_INTERVAL_MS"),
        ("record_read()\n", "record()\n", "MessageQueue.acquire_read has no"),
        ("metadata_buffer[0] = 1", "flags[0] = 1", "has no 'metadata_buffer[0] = 1'"),
        (
            "@contextmanager\n    def acquire_read",
            "def acquire_read",
            "acquire_read is no context manager of a generator",
        ),
        ("output_rank))", "output_rank, 0))", "MultiprocExecutor.collective_rpc has no"),
        ("_init_message_queues", "_make_queues", "there is no WorkerProc._init_message_queues"),
    ],
)
def test_changed_internals_are_refused_with_the_reason_and_left_alone(old, new, reason, tmp_path):
    write_package(tmp_path, old, new)
    answer = _run(JOIN, PYTHONPATH=str(tmp_path), REALRUN_VLLM_TRACE=str(tmp_path))
    assert "realrun leaves vLLM as it is" in answer.stderr
    assert reason in answer.stderr
    assert answer.stdout.split() == ["False", "False"]
