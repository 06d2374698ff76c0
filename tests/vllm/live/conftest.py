"""For tests with an installed vLLM."""

import importlib

import pytest


@pytest.fixture(scope="session")
def imported():
    """Import what queues come from, beneath no frame that has one.

    Errors inside that import stay in cycles, with all frames beneath them: a test that came to it
    by making its queue would leave that to the collector (`test_dropped_queues`).
    """
    importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
