"""Two runs of the parts that model give the same bytes, whatever else differs between them."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.theory.makes_everything import DIGESTS, digests

SCRIPT = Path(__file__).with_name("makes_everything.py")
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
#: Records whose cells of the model take seconds.
QUICKLY_REPEATED = ("09_routes_and_arena", "12_h200_tables")

#: All that may differ from one run to another without a say in what comes out. The second one
#: computes as on a CPU that has no more than its kind always had: numpy, the exponentials of the C
#: library and what numba compiles then do without wide vectors and fused multiply-add.
ONE = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
OTHER = {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "2"}
OLD_CPU = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_ENABLE_AVX": "0",
}
OTHER |= OLD_CPU


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of two runs."""
    found = [tmp_path_factory.mktemp(f"run{number}" + "x" * 20 * number) for number in (0, 1)]
    # Side by side: each compiles two engines for its CPU, minutes where others compute.
    runs = [
        subprocess.Popen([sys.executable, SCRIPT, folder], cwd=folder, env=os.environ | differs)
        for folder, differs in zip(found, (ONE, OTHER), strict=True)
    ]
    try:
        assert [run.wait() for run in runs] == [0, 0]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    return found


@pytest.fixture(scope="module")
def made(folders):
    """Files of two runs, by name, with their bytes."""
    return [
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in folders
    ]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_runs_of_everything_that_models_leave_the_same_bytes(made):
    one, other = made
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.skipif(
    "fma" not in Path("/proc/cpuinfo").read_text().split(), reason="no x86 with what is left out"
)
def test_the_second_run_does_compute_otherwise():
    code = (
        "import json, math, numba.core.registry as r, numpy as np; x = np.linspace(0, 9, 4096); "
        "print(json.dumps([list(r.cpu_target.target_context.codegen().magic_tuple()), "
        "np.exp(x).tolist(), [math.exp(v) for v in x]]))"
    )
    one, other = (
        json.loads(subprocess.check_output([sys.executable, "-c", code], env=os.environ | differs))
        for differs in ({}, OLD_CPU)
    )
    assert [a != b for a, b in zip(one, other, strict=True)] == [True, True, True]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_it_is_not_the_same_for_want_of_luck_or_of_parts(made):
    one, _ = made
    kinds = {name.rpartition(".")[2] for name in one}
    assert {"parquet", "json", "svg", "gz"} <= kinds
    assert one["plain-spin/waits.parquet"] != one["plain-karlin/waits.parquet"]
    assert one["plain-spin/steps.parquet"] != one["crowded-spin/steps.parquet"]
    assert b"tuned" in one["policy.json"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_another_machine_made_the_same(folders):
    stored = json.loads(DIGESTS.read_text())
    found = digests(folders[0])
    differs = sorted(name for name in stored | found if stored.get(name) != found.get(name))
    assert not differs, (
        "this is not what the model made when digests.json was stored. If a change of the model is "
        f"meant: python {SCRIPT.relative_to(EXPERIMENTS.parent)} FOLDER --store, and commit it "
        "with that change; else look for what differs here (versions of numpy and Python, the CPU)"
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", QUICKLY_REPEATED)
def test_the_model_still_says_what_a_stored_record_says(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXPERIMENTS), *sys.path])
    find, carry_out, experiment, record = (
        import_module(f"runner.{part}") for part in ("find", "carry_out", "experiment", "record")
    )
    stored = record.read_record(EXPERIMENTS / name / "results" / "record.json")
    whole = find.load(EXPERIMENTS / name)
    only_model = whole._replace(
        cells=lambda plan: [cell for cell in whole.cells(plan) if cell.world == "model"],
        report=lambda *_: experiment.Findings([], {}),
    )
    folders = (tmp_path / "out", tmp_path / "kept")
    job = carry_out.Job(EXPERIMENTS / name, only_model, stored.plan, "full", *folders, "here")
    again = carry_out.carry_out(job, lambda _label, _share: None)
    ((node, origin),) = stored.nodes.items()
    assert again.digest("here") == stored.digest(node), (
        f"the record of {name} needs commit {origin['commit']}, and the model is another one now: "
        f"run python experiments/run.py {name} from a clean checkout, and mend its README"
    )
