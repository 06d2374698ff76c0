"""What these tests need, and what they share."""

import pytest

from realrun.layout import SegmentLayout
from realrun.segment import Segment
from realrun.spec import TOKEN_BYTES

N_ROWS = 6
MAX_LEN = 128


@pytest.fixture(scope="session", autouse=True)
def _needs_a_gpu():
    if reason := _why_not():
        pytest.skip(reason)


def _why_not() -> str:
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    return "" if torch.cuda.is_available() else "no CUDA device"


@pytest.fixture
def segment():
    """Shared memory of one worker with a device."""
    layout = SegmentLayout(1, n_devices=1, end_slot_bytes=2 * TOKEN_BYTES * N_ROWS)
    with Segment.create(layout, with_folder=True) as made:
        yield made
