"""Cores in the order in which a run takes them."""

import os
import threading

import pytest

from realrun.cores import ANY, core_beside, cores_in, spread_cores, stay_on


@pytest.fixture
def box(monkeypatch, tmp_path):
    """Make a box: siblings of each core as the kernel writes them, None where it says nothing."""

    def make(siblings, usable=None):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(usable or siblings))
        for core, text in siblings.items():
            if text is not None:
                folder = tmp_path / f"cpu{core}" / "topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5", (5,)), ("", ()), ("\n", ())],
)
def test_cores_are_listed_as_the_kernel_lists_them(text, cores):
    assert cores_in(text) == cores


NEXT_TO_EACH_OTHER = {0: "0-1\n", 1: "0-1\n", 2: "2-3\n", 3: "2-3\n"}
HALF_A_BOX_APART = {core: f"{core % 4},{core % 4 + 4}\n" for core in range(8)}


def test_physical_cores_come_before_their_second_threads_that_of_the_first_core_last(box):
    assert spread_cores(box(NEXT_TO_EACH_OTHER)) == [0, 2, 3, 1]


def test_so_they_do_where_siblings_are_far_apart(box):
    assert spread_cores(box(HALF_A_BOX_APART)) == [0, 1, 2, 3, 7, 6, 5, 4]


def test_a_sibling_that_is_not_ours_counts_for_nothing(box):
    assert spread_cores(box(NEXT_TO_EACH_OTHER, usable={1, 2, 3})) == [1, 2, 3]


def test_four_threads_of_a_core_come_in_turns(box):
    siblings = {core: "0-3" if core < 4 else "4-7" for core in range(8)}
    assert spread_cores(box(siblings)) == [0, 4, 5, 1, 6, 2, 7, 3]


@pytest.mark.parametrize("text", [None, "", "junk\n", "1-x", "0x3"])
def test_where_the_kernel_says_nothing_of_use_nobody_is_a_sibling(box, text):
    assert spread_cores(box(dict.fromkeys(range(3), text))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("n_cores", "core", "beside"), [(4, 1, 2), (3, 1, 2), (2, 1, 0), (1, 0, ANY), (4, ANY, ANY)]
)
def test_beside_a_core_is_that_of_a_runs_third_thread(monkeypatch, n_cores, core, beside):
    monkeypatch.setattr("realrun.cores.spread_cores", lambda: list(range(n_cores)))
    assert core_beside(core) == beside


def test_a_thread_stays_alone_on_the_core_that_is_named():
    before = os.sched_getaffinity(0)
    found = []

    def stay():
        for core in (ANY, min(before)):
            stay_on(core)
            found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=stay)
    thread.start()
    thread.join()
    assert found == [before, {min(before)}]
    assert os.sched_getaffinity(0) == before, "others are not moved"
