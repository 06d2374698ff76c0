"""Which thread of a run gets which core, and that the model is told the same."""

from dataclasses import replace

import pytest

from realrun import placement, run, validate
from realrun.cores import ANY
from realrun.placement import assign_cores
from realrun.run import make_spec
from shmsim.config import CoresConfig, DeviceConfig, EngineConfig, RunConfig
from shmsim.policies import PRESETS
from tests.toy import toy_profile

ECHO = DeviceConfig()
CPU = DeviceConfig(kind="cpu")


def gpu(observe):
    return DeviceConfig(kind="cuda", observe=observe)


def config(device=ECHO, scheduling="sync", workers=1, devices=0, **options):
    engine = EngineConfig(workers=workers, scheduling=scheduling, devices=devices)
    return RunConfig(engine=engine, device=device, **options)


@pytest.fixture
def box(monkeypatch):
    """Make a box of so many cores, without a quota unless one is named."""

    def make(n_cores, quota=None):
        cores = list(range(n_cores))
        monkeypatch.setattr(placement, "spread_cores", lambda: cores)
        monkeypatch.setattr(validate, "usable_cores", lambda: cores)
        monkeypatch.setattr(run, "usable_cores", lambda: cores)
        monkeypatch.setattr(validate, "quota_cores", lambda: quota)

    return make


_ = ANY


@pytest.mark.parametrize(
    ("n_cores", "of", "expected"),
    [
        (2, config(), [(0, 0, _), (1, 1, _)]),
        (1, config(), []),
        (9, config(pin=False), []),
        # Two threads of a worker wait, async: each has a core, or they share that of their process.
        (3, config(scheduling="async"), [(0, 0, _), (1, 2, _)]),
        (2, config(scheduling="async"), [(0, 0, _), (1, 1, _)]),
        (5, config(scheduling="async", workers=2), [(0, 0, _), (1, 3, _), (2, 4, _)]),
        (4, config(scheduling="async", workers=2), [(0, 0, _), (1, 1, _), (2, 2, _)]),
        # What publishes the ends of steps shares with nobody.
        (3, config(CPU), [(0, 0, _), (1, 1, 2)]),
        (2, config(CPU), []),
        (4, config(CPU, "async"), [(0, 0, _), (1, 3, 2)]),
        (3, config(CPU, "async"), [(0, 0, _), (1, 1, 2)]),
        (4, config(CPU, workers=2, devices=1), [(0, 0, _), (1, 1, 3), (2, 2, _)]),
        (3, config(gpu("blocking")), [(0, 0, _), (1, 1, 2)]),
        (2, config(gpu("blocking")), []),
        (4, config(gpu("sync"), "async"), [(0, 0, _), (1, 3, 2)]),
        # A GPU that writes, or a waiter that asks, needs no thread that publishes.
        (2, config(gpu("write")), [(0, 0, _), (1, 1, _)]),
        (3, config(gpu("query"), "async"), [(0, 0, _), (1, 2, _)]),
    ],
)
def test_who_spins_has_not_the_core_of_whom_it_waits_for(box, n_cores, of, expected):
    box(n_cores)
    assert [tuple(cores) for cores in assign_cores(of)] == expected


def told(of):
    """What the model is told of the cores."""
    on = validate.on_this_box(of)
    return on.cores.n, on.pin


def test_where_every_thread_has_a_core_the_model_needs_none(box):
    box(3)
    assert told(config())[0] == 0
    assert told(config(scheduling="async"))[0] == 0


@pytest.mark.parametrize(
    ("n_cores", "of", "expected"),
    [
        # Shared by the threads of each process, which is what the model takes 'pin' for.
        (2, config(scheduling="async"), (2, True)),
        (3, config(CPU, "async"), (3, True)),
        # Too few for what publishes, or for the processes: the kernel decides.
        (2, config(CPU, "async"), (2, False)),
        (2, config(workers=2), (2, False)),
        (2, config(scheduling="async", pin=False), (2, False)),
    ],
)
def test_where_cores_are_shared_the_model_shares_them_alike(box, n_cores, of, expected):
    box(n_cores)
    assert told(of) == expected


def test_under_a_quota_nobody_shares_a_core_who_has_one_here(box):
    box(3, quota=1.5)
    assert told(config()) == (3, True)
    assert told(config(scheduling="async")) == (3, False)


def test_cores_of_another_box_are_left_as_they_are(box):
    box(2)
    other = replace(config(scheduling="async"), cores=CoresConfig(n=5), pin=True)
    assert told(other) == (5, True)


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_policies_are_told_in_both_worlds_that_processes_outnumber_cores(box, workers, pin):
    box(3)
    of = config(workers=workers, pin=pin)
    here = make_spec(of, PRESETS["step-ahead"], toy_profile(), 0)
    assert here.costs.shares_cores == validate.on_this_box(of).shares_cores() == (workers == 3)
