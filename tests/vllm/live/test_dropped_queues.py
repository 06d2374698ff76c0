"""Who drops a queue ends it, there and then: nothing of ours holds it in a cycle.

Before 0.32.0 a queue left to the garbage collector hangs the process: pyzmq ends a context whose
sockets are still open, which waits for them for ever.
"""

import importlib.util
import weakref

import pytest

from realrun.vllm.arms import Arm
from realrun.vllm.trace import Trace
from shmsim.policies import PRESETS
from tests.vllm.live.queues import SAMPLE, Pair

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"
    ),
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("imported"),
]
KEPT = []  #: queues that are left, for ever: whoever collects them may hang


def is_used(pair):
    pair.calls.enqueue(SAMPLE)
    pair.called.dequeue(timeout=20)


class Unreadable:
    def __reduce__(self):
        return divmod, (1, 0)


def reader_raises(pair):
    pair.calls.enqueue(("sample_tokens", (Unreadable(),), {}, 0))
    with pytest.raises(ZeroDivisionError):
        pair.called.dequeue(timeout=20)


def writer_raises(pair):
    with pytest.raises(ZeroDivisionError), pair.calls.acquire_write():
        raise ZeroDivisionError


def reader_has_a_deadline(pair):
    with pytest.raises(TimeoutError):
        pair.called.dequeue(timeout=0.05)


def writer_has_a_deadline(pair):
    for _ in range(pair.calls.buffer.max_chunks):
        pair.calls.enqueue(SAMPLE)
    with pytest.raises(TimeoutError):
        pair.calls.enqueue(SAMPLE, timeout=0.05)


def is_shut_down(pair):
    pair.called.shutdown()
    with pytest.raises(RuntimeError, match="cancelled"):
        pair.called.dequeue(indefinite=True)


@pytest.mark.parametrize("arms", [(), (Arm("park", PRESETS["park"]),)], ids=["vllm", "park"])
@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize(
    "happens",
    [
        is_used,
        reader_raises,
        writer_raises,
        reader_has_a_deadline,
        writer_has_a_deadline,
        is_shut_down,
    ],
)
@pytest.mark.usefixtures("uncollected")
def test_nothing_of_a_queue_is_left_to_the_collector(happens, is_recorded, arms, tmp_path):
    trace = Trace(tmp_path, {"vllm": "", "arms": []}, n_rows=100) if is_recorded else None
    pair = Pair(arms, arm=len(arms), trace=trace).joined()
    queues = [weakref.ref(q) for q in (pair.calls, pair.called, pair.replies, pair.replied)]
    happens(pair)
    del pair
    left = [queue() for queue in queues if queue() is not None]
    KEPT.extend(left)
    assert left == []
