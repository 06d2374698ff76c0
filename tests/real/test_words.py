"""Words in shared memory are whole: who loads sees one of the values that were stored."""

import subprocess
import sys
import time

import pytest

from realrun.layout import CURSOR, SegmentLayout
from realrun.segment import Segment

pytestmark = [pytest.mark.real, pytest.mark.timeout(20)]

# No byte of one is the same byte of the other, nor 0: a half-written word is neither.
PATTERNS = [0x1111111111111111, 0xEEEEEEEEEEEEEEEE]
STORE = f"""
import sys
from realrun.segment import Segment, Ticket
with Segment.attach(Ticket.from_json(sys.argv[1])) as segment:
    while True:
        for _ in range(10_000):
            segment.store(int(sys.argv[2]), {PATTERNS[0]})
            segment.store(int(sys.argv[2]), {PATTERNS[1]})
"""


def test_a_loaded_word_is_one_that_was_stored():
    # struct.pack_into zeroes its bytes first: a writer once read a cursor of 0 and called the ring
    # full. With it this test fails within a millisecond.
    with Segment.create(SegmentLayout(1)) as segment:
        word_at = segment.layout.request.reader_at(0) + CURSOR
        segment.store(word_at, PATTERNS[0])
        command = [sys.executable, "-c", STORE, segment.ticket.to_json(), str(word_at)]
        with subprocess.Popen(command) as writer:
            try:
                while segment.load(word_at) == PATTERNS[0]:
                    assert writer.poll() is None
                until = time.monotonic() + 0.3
                found = set()
                while time.monotonic() < until:
                    found.update([segment.load(word_at) for _ in range(10_000)])
                assert writer.poll() is None
            finally:
                writer.kill()
    assert found == set(PATTERNS)
