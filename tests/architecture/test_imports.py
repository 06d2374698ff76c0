"""What importing a module loads; `lint-imports` checks the arrows between modules."""

import subprocess
import sys

import pytest


def loaded_by(module):
    """Names of the top-level packages in memory once a fresh interpreter has imported a module."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


ENGINES = {"simpy", "numba", "zmq", "torch"}
HEAVY = {"numpy", "scipy", "pyarrow", "matplotlib", "typer", "rich"}


@pytest.mark.parametrize("module", ["units", "wait", "policies", "routing", "tuner"])
def test_the_pure_core_loads_no_engine_and_no_library(module):
    loaded = loaded_by(f"shmsim.{module}")
    assert "shmsim" in loaded
    assert not loaded & (ENGINES | HEAVY | {"realrun"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["workload", "batching", "message", "records", "metrics", "theory", "profile"]
)
def test_the_core_loads_no_engine_and_does_not_know_the_machine(module):
    assert not loaded_by(f"shmsim.{module}") & (ENGINES | {"realrun"})


@pytest.mark.slow
def test_the_model_runs_without_the_compiler():
    assert not loaded_by("shmsim.sim.loop") & {"numba", "zmq", "torch", "realrun"}


@pytest.mark.slow
def test_only_the_compiler_loads_numba():
    assert "numba" in loaded_by("shmsim.sim.compiled")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["worker", "scheduler", "run", "gpu_check.carry_out"])
def test_only_a_device_that_computes_loads_torch(module):
    assert "torch" not in loaded_by(f"realrun.{module}")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["child", "partner", "gpu_check.carry_out"])
def test_what_runs_on_a_gpu_node_wants_numpy_and_zmq_and_no_other_library(module):
    # scipy is taken where it is; tests/real/test_gpu_check_alone.py has none of the others.
    assert loaded_by(f"realrun.{module}") & {*ENGINES, *HEAVY} <= {"numpy", "zmq", "scipy"}


@pytest.mark.parametrize(
    "words",
    [
        "realrun --help",
        "realrun doctor",
        "realrun validate --help",
        "shmsim --help",
        "shmsim arena --help",
        "shmsim export --help",
        "shmsim policies",
        "shmsim tune --help",
    ],
)
def test_a_command_that_asks_little_loads_nothing_slow(words):
    """Each TAB starts the program, too."""
    program, *arguments = words.split()
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"from {program}.cli import app\n"
        f"app({arguments})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert program in loaded
    assert not loaded & (ENGINES | {"distributed", "matplotlib", "numpy", "pyarrow", "scipy"})
