"""A sweep on the workers of a Dask cluster: whoever is killed, nothing is lost or counted twice."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from shmsim.sim.cluster import Cluster
from tests.real.clusters import REPOSITORY, Machines
from tests.real.conftest import alive, eventually
from tests.real.maps_on_a_cluster import square

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None, reason="needs the extra 'cluster'"
    ),
]

SWEEP = """
profiles = ["vm-2cpu"]
configs = ["base.toml"]
replications = 8
[[policy]]
preset = ["spin", "park", "wake-ahead"]
"""
BASE = """
[workload]
kind = "trace"
trace = "trace.csv"
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-01-01 00:00:00.{i}00000,{10 + i},300\n" for i in range(8)
)
N_POINTS = 24
TABLES = ("points.parquet", "estimates.parquet", "comparisons.parquet")


@pytest.fixture
def machines(tmp_path):
    folder = tmp_path / "machines"
    folder.mkdir()
    found = Machines(folder)
    yield found
    found.end()


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for name, text in (("base.toml", BASE), ("trace.csv", TRACE), ("sweep.toml", SWEEP)):
        (folder / name).write_text(text)
    return folder / "sweep.toml"


@pytest.fixture(scope="module")
def undisturbed(sweep_file):
    """Tables of the sweep in one process."""
    out = sweep_file.parent / "undisturbed"
    done = ended(start(sweep_file, out, "-j", "1"))
    assert done.returncode == 0, done.output
    return out


def start(path, out, *more):
    # From the folder of the file: a worker, which is elsewhere, must still find the trace.
    return subprocess.Popen(
        [sys.executable, "-m", "shmsim.cli", "sweep", path.name, "-o", str(out), *more],
        cwd=path.parent,
        env=os.environ | {"COLUMNS": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process):
    process.output, _ = process.communicate(timeout=120)
    return process


def point_files(out):
    return {path: path.stat().st_mtime_ns for path in (out / "points").glob("*/*.json")}


def once_some_are_stored(process, out):
    eventually(lambda: process.poll() is not None or len(point_files(out)) >= 3, 60)
    assert process.poll() is None, ended(process).output


def start_map(address, folder, how, n, patience_s=60):
    module = "tests.real.maps_on_a_cluster"
    return subprocess.Popen(
        [sys.executable, "-m", module, address, str(folder), how, str(n), str(patience_s)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_worker_killed_midway_changes_nothing(machines, sweep_file, undisturbed, tmp_path):
    victim, _ = machines.work(), machines.work()
    out = tmp_path / "out"
    process = start(sweep_file, out, "--cluster", machines.address)
    once_some_are_stored(process, out)
    machines.kill(victim)
    assert ended(process).returncode == 0, process.output
    for name in TABLES:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()
    assert len(point_files(out)) == N_POINTS


def test_an_item_that_died_with_its_worker_is_done_by_another_and_comes_once(machines, tmp_path):
    workers = [machines.work(), machines.work()]
    process = start_map(machines.address, tmp_path, "square", 6)
    begun = lambda: [path for path in tmp_path.glob("item*") if path.read_text()]  # noqa: E731
    eventually(lambda: len(begun()) >= 2, 60)  # one for each worker, which wait for us
    machines.kill(workers[0])
    (tmp_path / "go").touch()
    assert ended(process).returncode == 0, process.output
    came = sorted(json.loads(line) for line in process.output.splitlines())
    assert came == [[i, i * i] for i in range(6)]
    takers = {path.name: path.read_text().split() for path in begun()}
    twice = [pids for pids in takers.values() if len(pids) == 2]
    assert twice == [[str(workers[0].pid), str(workers[1].pid)]]


def test_what_came_is_not_done_again_when_its_worker_is_lost(machines, tmp_path):
    machines.work(), machines.work()
    process = start_map(machines.address, tmp_path, "first", 6)
    came = [json.loads(process.stdout.readline())[0] for _ in range(3)]
    # Whoever took the waiting item up first may have done another one before.
    takers = {i: (tmp_path / f"item{i}").read_text().strip() for i in came}
    loser = takers[came[-1]]
    machines.kill(next(worker for worker in machines.workers if str(worker.pid) == loser))
    machines.work()
    with Cluster(machines.address) as others:
        eventually(lambda: len(others._client.nthreads()) == 2, 60)
    time.sleep(2)  # in which the new worker would do what was lost
    (tmp_path / "go").touch()
    assert ended(process).returncode == 0, process.output
    assert {i: (tmp_path / f"item{i}").read_text().strip() for i in came} == takers


def test_the_same_command_fills_only_holes(machines, sweep_file, undisturbed, tmp_path):
    machines.work()
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    for path in sorted(point_files(out))[:3]:
        path.unlink()
    before = point_files(out)
    process = ended(start(sweep_file, out, "--cluster", str(machines.file)))
    assert process.returncode == 0, process.output
    after = point_files(out)
    assert len(after) == N_POINTS
    assert {path: after[path] for path in before} == before
    assert (out / TABLES[0]).read_bytes() == (undisturbed / TABLES[0]).read_bytes()


def test_an_interrupt_keeps_what_is_finished_and_leaves_the_cluster_to_others(
    machines, sweep_file, undisturbed, tmp_path
):
    worker = machines.work()
    out = tmp_path / "out"
    process = start(sweep_file, out, "--cluster", machines.address)
    once_some_are_stored(process, out)
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process).returncode == 130, process.output
    assert "interrupted; all was stopped and cleaned up here" in process.output
    assert "goes on there to its end" in process.output
    assert "Traceback" not in process.output
    kept = point_files(out)
    assert 3 <= len(kept) < N_POINTS
    assert alive(worker.pid)
    process = ended(start(sweep_file, out, "--cluster", machines.address))
    assert process.returncode == 0, process.output
    assert {path: point_files(out)[path] for path in kept} == kept
    assert (out / TABLES[0]).read_bytes() == (undisturbed / TABLES[0]).read_bytes()


def test_a_worker_with_other_source_is_refused(machines, sweep_file, tmp_path):
    shutil.copytree(REPOSITORY / "shmsim", tmp_path / "other" / "shmsim")
    with (tmp_path / "other" / "shmsim" / "wait.py").open("a") as file:
        file.write("# another line\n")
    machines.work(tmp_path / "other")
    out = tmp_path / "out"
    process = ended(start(sweep_file, out, "--cluster", machines.address))
    assert process.returncode == 2, process.output
    assert "could give other bits than this process (source of shmsim:" in process.output
    assert not point_files(out)


def test_a_worker_with_other_source_that_joins_later_is_refused_too(machines, tmp_path):
    machines.work()
    process = start_map(machines.address, tmp_path, "square", 6)
    eventually(lambda: any(path.read_text() for path in tmp_path.glob("item*")), 60)
    shutil.copytree(REPOSITORY / "shmsim", tmp_path / "other" / "shmsim")
    with (tmp_path / "other" / "shmsim" / "wait.py").open("a") as file:
        file.write("# another line\n")
    machines.work(tmp_path / "other")
    assert ended(process).returncode == 1, process.output
    assert "could give other bits than this process (source of shmsim:" in process.output
    (tmp_path / "go").touch()


def test_an_item_that_kills_workers_ends_the_map_and_says_so(machines, tmp_path):
    machines.work(), machines.work()
    process = ended(start_map(machines.address, tmp_path, "fatal", 1))
    assert process.returncode == 1
    assert "2 workers died of one task" in process.output


def test_a_cluster_without_a_worker_is_given_up_after_a_while(machines, tmp_path):
    process = ended(start_map(machines.address, tmp_path, "square", 2, 1))
    assert process.returncode == 1
    assert "has had no worker that answers for 1 s" in process.output


def test_a_cluster_whose_workers_are_gone_is_given_up_after_a_while(machines, tmp_path):
    worker = machines.work()
    process = start_map(machines.address, tmp_path, "square", 2, 2)
    eventually(lambda: any(path.read_text() for path in tmp_path.glob("item*")), 60)
    machines.kill(worker)
    assert ended(process).returncode == 1
    assert "has had no worker that answers for 2 s" in process.output


def test_what_was_finished_and_lost_with_the_last_worker_is_not_waited_for(machines, tmp_path):
    worker = machines.work()
    (tmp_path / "go").touch()
    with Cluster(machines.address, 2) as cluster:
        came = cluster.map(square, str(tmp_path), range(3))
        assert next(came)[0] == 0
        eventually(lambda: (tmp_path / "item2").exists(), 60)
        time.sleep(1)  # in which the client is told of it
        machines.kill(worker)
        with pytest.raises(ConnectionError, match="has had no worker that answers for 2 s"):
            list(came)


def fatal_to_import(folder):
    """A place with a shmsim that ends the process which looks at it."""
    shutil.copytree(REPOSITORY / "shmsim", folder / "shmsim")
    (folder / "shmsim" / "sim" / "fingerprint.py").write_text("import os\nos._exit(1)\n")
    return folder


def test_a_worker_that_dies_when_it_is_looked_at_is_one_worker_less(machines, tmp_path):
    machines.work(fatal_to_import(tmp_path / "fatal"))
    with pytest.raises(ConnectionError, match="has had no worker that answers for 10 s"):
        Cluster(machines.address, 10)
    machines.work(tmp_path / "fatal"), machines.work()
    (tmp_path / "go").touch()
    with Cluster(machines.address) as cluster:
        assert list(cluster.map(square, str(tmp_path), range(2))) == [(0, 0), (1, 1)]


def test_the_patience_with_a_worker_that_died_when_it_was_looked_at_ends(machines, tmp_path):
    from distributed import Client

    worker = machines.work(fatal_to_import(tmp_path / "fatal"))
    with Client(machines.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)
    # Looked at once, and then all of the patience is slept away.
    with pytest.raises(ConnectionError, match="has had no worker that answers for 1 s"):
        Cluster(machines.address, 1)
    assert worker.wait(30) == 1


def test_a_scheduler_that_is_killed_is_missed(machines, sweep_file, tmp_path):
    machines.work()
    process = start_map(machines.address, tmp_path, "square", 2)
    eventually(lambda: any(path.read_text() for path in tmp_path.glob("item*")), 60)
    machines.kill(machines.scheduler)
    assert ended(process).returncode == 1
    assert "is gone; start it again" in process.output


def test_an_address_where_nobody_answers_is_explained(sweep_file, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        process = ended(start(sweep_file, tmp_path / "out", "--cluster", address))
    assert process.returncode == 1, process.output
    assert "nobody answers at 127.0.0.1:" in process.output
    assert "Traceback" not in process.output


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("carrier-pigeon://roof:1", "'carrier-pigeon://roof:1' is no address of a Dask scheduler"),
        ("tcp://node1", "missing port number"),
        ("missing.json", "cannot read missing.json"),
        ("empty.json", "names no address"),
    ],
)
def test_what_is_no_address_is_refused(tmp_path, monkeypatch, address, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(ValueError, match=said):
        Cluster(address)


TINY = """
[workload]
requests = 4
output_p50 = 12
output_p95 = 12
[[policy]]
preset = "spin"
"""


def test_a_tuning_on_a_cluster_finds_what_one_process_finds(machines, tmp_path):
    machines.work()
    (tmp_path / "config.toml").write_text(TINY)
    command = [sys.executable, "-m", "shmsim.cli", "tune", "config.toml", "-p", "vm-2cpu"]
    found = []
    for where in (["--cluster", machines.address], ["--jobs", "1"]):
        more = ["--quick", "-o", f"{where[0]}.json", *where]
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append((tmp_path / f"{where[0]}.json").read_bytes())
    assert found[0] == found[1]
