"""The ring beside vLLM's: who sleeps is woken, who is missing is named."""

import threading

import pytest

from realrun.native import SEEN, STOPPED, wait
from realrun.vllm.beside import SPARE_SLOTS, Beside
from shmsim.units import FOREVER_NS
from shmsim.wait import PARK

pytestmark = pytest.mark.real
PARKED = (PARK, FOREVER_NS, 0) * 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "beside"


def test_both_ends_open_one_file_whoever_comes_first(path):
    one, other = Beside.open(path, 2, 10), Beside.open(path, 2, 10)
    one.attach_reader(1, by_policy=True)
    assert other.absent(by_policy=True) == ["reader 0", "writer"]
    other.attach_reader(0, by_policy=True)
    other.attach_writer(3, by_policy=True)
    assert one.absent(by_policy=True) == []
    assert one.writer_rank == 3
    one.unlink()
    one.unlink()
    one.go()
    assert other.is_used
    other.give_up()
    assert not one.is_used


def test_who_only_records_takes_no_part_where_others_wait_by_policy(path):
    one = Beside.open(path, 1, 10)
    one.attach_reader(0, by_policy=False)
    one.attach_writer(0, by_policy=True)
    assert one.absent(by_policy=True) == ["reader 0"]
    assert one.absent(by_policy=False) == ["writer"]


def test_each_message_has_a_stamp_of_its_own_where_publishing_puts_it_too(path):
    writer, reader = Beside.open(path, 1, 2), Beside.open(path, 1, 2)
    places, published = reader.stamps(), []
    for _ in range(3 * (2 + SPARE_SLOTS)):
        published.append(writer.publish(0)[0])
        assert reader.words[next(places)] == published[-1]
        reader.take(0)


def test_a_parked_reader_is_woken_by_ringing_for_the_published_message(path):
    writer, reader = Beside.open(path, 1, 10), Beside.open(path, 1, 10)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(wait(reader.memory, reader.ring.reader_words(0), 0, PARKED))
    )
    thread.start()
    while not writer.memory[writer.ring.reader_words(0).armed]:
        pass
    assert writer.publish(0)[1] == 1
    writer.ring_readers()
    thread.join(20)
    assert results[0][0] == SEEN
    assert reader.take(0) > 0
    assert reader.take(0) == 0


def test_nobody_is_rung_for_while_everybody_is_awake(path):
    writer = Beside.open(path, 2, 10)
    assert writer.publish(0)[1] == 0


def test_a_parked_writer_is_woken_by_the_release_it_waits_for(path):
    writer, reader = Beside.open(path, 1, 2), Beside.open(path, 1, 2)
    for _ in range(2):
        writer.publish(0)
    results = []
    words = writer.ring.writer_words(0)
    thread = threading.Thread(target=lambda: results.append(wait(writer.memory, words, 0, PARKED)))
    thread.start()
    while not reader.memory[words.armed]:
        pass
    reader.take(0)
    thread.join(20)
    assert results[0][0] == SEEN


def test_it_has_room_for_readers_that_are_a_message_behind_their_flags(path):
    writer = Beside.open(path, 1, 10)
    for _ in range(10 + SPARE_SLOTS):
        assert writer.publish(0)[1] == 0
    assert writer.publish(0)[0] == 0


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_a_stop_ends_a_parked_wait(path, side):
    beside = Beside.open(path, 1, 10)
    ring = beside.ring
    words = ring.reader_words(0) if side == "reader" else ring.writer_words(0)
    results = []
    thread = threading.Thread(target=lambda: results.append(wait(beside.memory, words, 0, PARKED)))
    thread.start()
    while not beside.memory[words.armed]:
        pass
    beside.stop_reader(0) if side == "reader" else beside.stop_writer()
    thread.join(20)
    assert results[0][0] == STOPPED
