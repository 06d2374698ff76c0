"""Off, the plugin does nothing at all; asked for in vain, it says why."""

import os
import subprocess
import sys

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
