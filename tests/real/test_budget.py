"""The memory of a run is one sum, and is refused before any of it is taken."""

import subprocess
from dataclasses import replace

import pytest

import realrun.budget
import realrun.segment
from realrun.budget import BudgetError, check_budget, limits, parts, shrink, size
from realrun.layout import SegmentLayout
from realrun.run import run_once
from realrun.segment import SHM, Segment
from shmsim.routing import ArenaPlan, SlotClass
from tests.real import runs

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

MIB = 1 << 20
#: What vLLM takes for eight GPUs, but for its hundreds of slots of nothing: 2080 MiB and an arena.
VLLM_TP8 = SegmentLayout(8, 10, 16 * MIB, 24 * MIB, ArenaPlan((SlotClass(256 * MIB, 8),), 8 * MIB))


@pytest.fixture
def small_shm(tmp_path, monkeypatch):
    """The /dev/shm of a container: 64 MiB."""
    options = ["-t", "tmpfs", "-o", "size=64m", "tmpfs"]
    try:
        subprocess.run(["mount", *options, tmp_path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small tmpfs here: {error}")
    monkeypatch.setattr(realrun.segment, "SHM", tmp_path)
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_the_parts_of_a_segment_add_up_to_it():
    for layout in (SegmentLayout(1), VLLM_TP8, replace(VLLM_TP8, n_workers=3)):
        assert sum(part.n_bytes for part in parts(layout)) == layout.size
        assert all(part.n_bytes >= 0 for part in parts(layout))


def test_queues_that_each_fit_are_refused_together_with_total_parts_and_a_way_out(small_shm):
    layout = SegmentLayout(5, 12, 1 * MIB, 1 * MIB)
    assert all(part.n_bytes < 64 * MIB for part in parts(layout))
    with pytest.raises(BudgetError, match="cannot reserve") as refusal:
        Segment.create(layout)
    message = str(refusal.value)
    assert size(layout.size) in message
    assert "64 MiB left" in message
    for part in parts(layout):
        assert f"  {part.name} " in message
        assert size(part.n_bytes) in message
    assert "This fits: 12 slots" not in message
    assert "--shm-size" in message
    assert list(small_shm.iterdir()) == []


@pytest.mark.usefixtures("small_shm")
def test_the_layout_that_is_said_to_fit_fits():
    for layout in (SegmentLayout(4, 10, 4 * MIB), VLLM_TP8, SegmentLayout(1, 2, 1 << 30)):
        smaller = shrink(layout, 64 * MIB)
        with Segment.create(smaller) as segment:
            assert segment.layout == smaller


@pytest.mark.usefixtures("small_shm")
def test_a_run_works_in_the_shm_of_a_container():
    records = run_once(runs.spec(runs.config(workers=2)))
    assert len(records.requests) == runs.N_REQUESTS


def test_what_is_given_up_first_is_the_arena_then_slots_then_their_size():
    layout = SegmentLayout(2, 8, MIB, 0, ArenaPlan((SlotClass(MIB, 4), SlotClass(4 * MIB, 4)), MIB))
    arena = shrink(layout, layout.size - 1)
    assert (arena.arena.classes[-1], arena.n_slots) == (SlotClass(4 * MIB, 2), 8)
    without = shrink(layout, 25 * MIB)
    assert (without.arena.classes, without.n_slots) == ((), 8)
    fewer = shrink(layout, 16 * MIB)
    assert (fewer.arena.classes, fewer.n_slots, fewer.slot_bytes) == ((), 4, MIB)
    smaller = shrink(layout, 2 * MIB)
    assert (smaller.arena.classes, smaller.n_slots) == ((), 2)
    assert smaller.slot_bytes < MIB
    assert shrink(layout, 4096) is None


def test_the_tightest_limit_decides_and_is_named(monkeypatch):
    free = {limit.name: limit.free_bytes for limit in limits(SHM)}
    assert str(SHM) in free
    assert "the memory of this machine" in free
    monkeypatch.setattr(
        realrun.budget, "_cgroup_headroom", lambda: iter([("/sys/fs/cgroup/box", 3 * MIB)])
    )
    with pytest.raises(BudgetError, match="memory cgroup /sys/fs/cgroup/box has 3 MiB left"):
        check_budget(SegmentLayout(1, 8, MIB), SHM)


def test_locked_memory_counts_where_a_device_pins_it(monkeypatch):
    monkeypatch.setattr(realrun.budget.resource, "getrlimit", lambda _: (MIB, MIB))
    layout = SegmentLayout(1, 8, MIB)
    check_budget(layout, SHM)
    with pytest.raises(BudgetError, match="locked memory has 1 MiB left"):
        check_budget(layout, SHM, pinned=True)


@pytest.mark.parametrize(
    ("tree", "free"),
    [
        ({"memory.max": "max", "memory.current": "5"}, []),
        ({"memory.max": "100", "memory.current": "30"}, [70]),
        # Cached files go first, and a cgroup may be over its limit for a moment.
        ({"memory.max": "100", "memory.current": "90", "memory.stat": "inactive_file 60"}, [70]),
        ({"memory.max": "100", "memory.current": "130"}, [0]),
    ],
)
def test_a_cgroup_leaves_its_limit_less_what_is_used_and_not_given_up(
    tmp_path, monkeypatch, tree, free
):
    own = tmp_path / "own"
    own.write_text("0::/box/run\n")
    folder = tmp_path / "box" / "run"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tree.items():
        (folder / name).write_text(text + "\n")
    monkeypatch.setattr(realrun.budget, "CGROUPS", tmp_path)
    monkeypatch.setattr(realrun.budget, "OWN_CGROUPS", own)
    assert [n for _, n in realrun.budget._cgroup_headroom()] == free
