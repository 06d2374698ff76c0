"""What tests with and without vLLM share."""

import gc

import pytest


@pytest.fixture
def uncollected():
    """No collector: what is in a cycle stays, and what is not goes at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
