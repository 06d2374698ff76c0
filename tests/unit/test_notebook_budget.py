"""That a notebook which takes too long fails where the notebooks are run."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

CONFTEST = Path(__file__).parents[2] / "notebooks" / "conftest.py"
LIMIT_S = 4
BURN = "import time\nwhile time.process_time() < {s}: pass"
#: Seconds of CPU that a notebook burns itself, and in a process that it starts.
ITSELF = BURN.format(s=LIMIT_S + 1)
STARTED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ITSELF!r}], check=True)"
SLEEPS = f"import time; time.sleep({LIMIT_S})"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "fails"), [(ITSELF, True), (STARTED, False), (SLEEPS, False)])
def test_a_notebook_may_use_so_much_of_the_cpu_and_wait_for_others(tmp_path, code, fails):
    limit = "LIMIT_S: Final = 90\n"
    text = CONFTEST.read_text()
    assert limit in text
    (tmp_path / "conftest.py").write_text(text.replace(limit, f"LIMIT_S: Final = {LIMIT_S}\n"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbformat.write(notebook, tmp_path / "burns.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--nbmake", "-p", "no:cacheprovider", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == int(fails), done.stdout + done.stderr
    assert "s of CPU in the kernel" in done.stdout
    assert ("takes too long" in done.stdout) == fails
