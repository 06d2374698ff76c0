"""vLLM's context of a read or a write, run by ours; no vLLM here."""

import weakref
from types import SimpleNamespace

import pytest

from realrun.vllm.queues import _Reading, _Writing


class Queue:
    """Its context as ``contextlib`` would make it, run by one of ours."""

    def __init__(self, kind):
        self.said = []
        told = SimpleNamespace(seen=lambda: None, publish=lambda slot: None)
        self.context = kind(told)

    def acquire(self):
        self.context.generator = self._acquire()
        return self.context

    def _acquire(self):
        try:
            yield memoryview(b"slot")
            self.said.append("after")
        finally:
            self.said.append("released")


@pytest.mark.parametrize("kind", [_Reading, _Writing])
def test_a_block_that_raises_releases_the_slot_and_keeps_its_error(kind):
    queue, error = Queue(kind), KeyError("here")
    with pytest.raises(KeyError) as caught, queue.acquire():
        raise error
    assert caught.value is error
    assert queue.said == ["released"]
    assert [entry.name for entry in caught.traceback] == [
        "test_a_block_that_raises_releases_the_slot_and_keeps_its_error"
    ]


@pytest.mark.parametrize("kind", [_Reading, _Writing])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.usefixtures("uncollected")
def test_a_dropped_queue_is_gone_at_once(kind, raises):
    queue = Queue(kind)
    try:
        with queue.acquire():
            if raises:
                raise KeyError
    except KeyError:
        pass
    dropped = weakref.ref(queue)
    del queue
    assert dropped() is None


def test_an_error_of_vllms_own_takes_the_place_of_the_blocks():
    def acquire():
        try:
            yield memoryview(b"slot")
        finally:
            raise OSError("vLLM's")

    queue = Queue(_Writing)
    queue._acquire = acquire
    with pytest.raises(OSError, match="vLLM's"), queue.acquire():
        raise KeyError
