"""Timelines and laws of runs on this machine: the same events, and every law that it can keep."""

import pytest

from realrun.run import run_once
from shmsim.laws import check_laws
from shmsim.policies import PRESETS
from shmsim.timeline import write_timeline
from tests.real.runs import config, spec
from tests.timelines import check_timeline

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

ENGINES = [(1, 2, "sync"), (2, 1, "sync"), (1, 1, "async"), (2, 2, "async")]


@pytest.fixture(scope="module", params=ENGINES, ids=str)
def engine(request):
    """Workers, calls per step, scheduling."""
    return request.param


@pytest.fixture(scope="module", params=["park", "spin"])
def run(engine, request):
    return run_once(spec(config(*engine), PRESETS[request.param]))


def test_the_timeline_of_a_run_shows_all_of_it(run, engine, tmp_path):
    path = tmp_path / "trace.json.gz"
    write_timeline(run, path)
    found = check_timeline(run, path)
    assert found.trace["otherData"]["world"] == "machine"
    assert set(found.tracks) - {"worker0 replies"} == {
        "device",
        "scheduler",
        *(f"worker{rank}" for rank in range(engine[0])),
    }


def test_a_run_keeps_the_laws_of_every_world(run, engine):
    workers, _, scheduling = engine
    check_laws(run, n_workers=workers, n_threads=2 if scheduling == "async" else 1)
