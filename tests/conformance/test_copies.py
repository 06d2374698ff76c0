"""Bytes copied into a segment arrive as they are, however many there are and wherever they go."""

import mmap

import numpy as np
import pytest

from tests.conformance.carriers import CARRIERS, carrier_named

MIB = 1 << 20


@pytest.mark.parametrize("name", CARRIERS)
@pytest.mark.parametrize("at", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("n_bytes", [0, 1, 16 * MIB - 1, 16 * MIB, 16 * MIB + 77, 17 * MIB + 64])
def test_a_copy_is_the_same_and_touches_nothing_else(name, at, n_bytes):
    copy = carrier_named(name).copy
    source = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, np.uint8)
    memory = mmap.mmap(-1, 18 * MIB)
    found = np.frombuffer(memory, np.uint8)
    found[:] = 0xEE
    copy(memory, at, source.data)
    assert np.array_equal(found[at : at + n_bytes], source)
    assert (found[:at] == 0xEE).all()
    assert (found[at + n_bytes : at + n_bytes + 4096] == 0xEE).all()


@pytest.mark.parametrize("name", CARRIERS)
@pytest.mark.parametrize(("at", "n_bytes"), [(-1, 1), (4097, 0), (4096, 1), (0, 4097)])
def test_a_copy_beyond_the_segment_is_refused(name, at, n_bytes):
    copy = carrier_named(name).copy
    with pytest.raises(ValueError, match="lie within a segment of 4096 bytes"):
        copy(mmap.mmap(-1, 4096), at, bytes(n_bytes))
