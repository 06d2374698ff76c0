"""A vLLM that is not as expected is left alone, with the reason."""

import types
from contextlib import contextmanager

import pytest

from realrun.vllm.facts import objections, objections_to_policies
from tests.vllm.expected import MessageQueue, SpinCondition, modules


def test_what_is_as_expected_has_no_objection():
    assert objections(*modules()) == []


def test_a_flag_that_is_set_behind_the_release_is_noticed():
    class Reordered(MessageQueue):
        @contextmanager
        def acquire_read(self, timeout=None, indefinite=False):
            self._spin_condition.wait(timeout_ms=1)
            if self.shutting_down:
                raise RuntimeError
            try:
                yield buf  # noqa: F821
            finally:
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
