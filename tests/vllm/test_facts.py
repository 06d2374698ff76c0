"""A vLLM that is not as expected is left alone, with the reason."""

import types

import pytest

from realrun.vllm.facts import objections, objections_to_policies


class MessageQueue:
    def acquire_read(self, timeout=None, indefinite=False):
        self._spin_condition.wait(timeout_ms=1)
        if self.shutting_down:
            raise RuntimeError
        yield buf  # noqa: F821
        metadata_buffer = {}
        metadata_buffer[self.local_reader_rank + 1] = 1
        self._spin_condition.record_read()

    def acquire_write(self, timeout=None):
        sched_yield()  # noqa: F821
        raise TimeoutError
        yield buf  # noqa: F821
        metadata_buffer[0] = 1  # noqa: F821
        memory_fence()  # noqa: F821

    def enqueue(self, obj, timeout=None):
        with self.acquire_write(timeout):
            pass
        self._spin_condition.notify()

    def dequeue(self, timeout=None):
        with self.acquire_read(timeout):
            pass

    def shutdown(self):
        self.shutting_down = True
        self._spin_condition.cancel()


class SpinCondition:
    def wait(self, timeout_ms=None):
        return self.last_read + self.busy_loop_s, self.poller.poll()

    def notify(self):
        self.local_notify_socket.send(b"")

    def cancel(self):
        self.write_cancel_socket.send(b"")

    def record_read(self):
        self.last_read = 0


class ShmRingBuffer:
    def __init__(self, n_reader, max_chunks):
        self.n_reader = n_reader
        self.max_chunks = max_chunks
        self.shared_memory = None


class MultiprocExecutor:
    def _init_executor(self):
        self.rpc_broadcast_mq = None
        self.response_mqs = []

    def collective_rpc(self, send_method, args, kwargs, output_rank, mq):
        self.rpc_broadcast_mq.enqueue((send_method, args, kwargs, output_rank))
        mq.dequeue(timeout=1)


class WorkerProc:
    def _init_message_queues(self):
        self.rpc_broadcast_mq = None
        self.worker_response_mq = None


def modules(**changed):
    queue = types.SimpleNamespace(
        __name__="shm_broadcast",
        memory_fence=None,
        logger=None,
        LONG_WAIT_TIME_LOG_MSG="",
        MessageQueue=changed.get("MessageQueue", MessageQueue),
        SpinCondition=changed.get("SpinCondition", SpinCondition),
        ShmRingBuffer=ShmRingBuffer,
    )
    executor = types.SimpleNamespace(
        MultiprocExecutor=changed.get("MultiprocExecutor", MultiprocExecutor),
        WorkerProc=WorkerProc,
    )
    return queue, executor


def test_what_is_as_expected_has_no_objection():
    assert objections(*modules()) == []


def test_a_flag_that_is_set_behind_the_release_is_noticed():
    class Reordered(MessageQueue):
        def acquire_read(self, timeout=None, indefinite=False):
            self._spin_condition.wait(timeout_ms=1)
            if self.shutting_down:
                raise RuntimeError
            yield buf  # noqa: F821
            self._spin_condition.record_read()
            metadata_buffer[self.local_reader_rank + 1] = 1  # noqa: F821

    (reason,) = objections(*modules(MessageQueue=Reordered))
    assert "record_read()' where it must be" in reason


def test_a_condition_with_other_parameters_is_noticed():
    class Other(SpinCondition):
        def wait(self, timeout_ms, deadline):
            return self.last_read + self.busy_loop_s, self.poller.poll()

    (reason,) = objections(*modules(SpinCondition=Other))
    assert "self, timeout_ms, deadline" in reason


def test_a_missing_method_is_noticed():
    class Without:
        def _init_executor(self):
            self.rpc_broadcast_mq = None
            self.response_mqs = []

    (reason,) = objections(*modules(MultiprocExecutor=Without))
    assert reason == "there is no MultiprocExecutor.collective_rpc"


@pytest.mark.parametrize(("enabled", "n"), [(False, 0), (True, 1)])
def test_the_spin_extension_leaves_policies_nothing_to_decide(enabled, n):
    queue = types.SimpleNamespace(SPINLOOP_EXT_ENABLED=enabled)
    assert len(objections_to_policies(queue)) == n
