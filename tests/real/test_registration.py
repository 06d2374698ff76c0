"""What is asked of the driver, and what becomes of its refusals; a recording fake answers.

tests/gpu asks the driver itself.
"""

import ctypes
from mmap import PAGESIZE

import pytest

from realrun.cuda import registration
from realrun.cuda.driver import Driver, DriverError, driver
from realrun.cuda.registration import Registration, address_of
from realrun.layout import SegmentLayout
from realrun.segment import Segment

pytestmark = pytest.mark.real


class FakeLibrary:
    """Notes calls, and answers with the codes it was given, 0 if there are none left."""

    def __init__(self, *codes):
        self._codes = list(codes)
        self.calls = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            plain = [getattr(a, "value", None) for a in arguments]
            self.calls.append((name, *plain))
            return self._codes.pop(0) if self._codes else 0

        return call


@pytest.fixture
def memory():
    with Segment.create(SegmentLayout(1)) as segment:
        yield segment.memory


def test_the_whole_mapping_is_registered_in_whole_pages(memory):
    library = FakeLibrary()
    registered = Registration(Driver(library), memory)
    assert registered.is_registered
    ((name, address, n_bytes, flags),) = library.calls
    assert (name, address, flags) == ("cuMemHostRegister_v2", address_of(memory), 3)
    assert address % PAGESIZE == n_bytes % PAGESIZE == 0
    assert n_bytes - len(memory) in range(PAGESIZE)
    registered.close()
    registered.close()
    assert library.calls[1:] == [("cuMemHostUnregister", address)], "once"


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(1, "not on a page"), (2, "ulimit -l"), (712, "registered already"), (801, "cannot")],
)
def test_a_refusal_is_a_reason_and_no_failure(memory, code, meaning):
    refused = Registration(Driver(FakeLibrary(code)), memory)
    assert not refused.is_registered
    assert meaning in refused.reason
    assert f"error {code}" in refused.reason
    refused.close()


def test_what_was_registered_before_a_refusal_is_given_back(memory, monkeypatch):
    monkeypatch.setattr(registration, "_MOST_BYTES", PAGESIZE)
    library = FakeLibrary(0, 0, 2)
    assert not Registration(Driver(library), memory).is_registered
    begun = [call[1] for call in library.calls if call[0] == "cuMemHostRegister_v2"]
    ended = [call[1] for call in library.calls if call[0] == "cuMemHostUnregister"]
    assert ended == begun[:2][::-1]
    assert begun[1] - begun[0] == PAGESIZE


def test_the_address_is_that_of_the_bytes_and_does_not_keep_them_mapped(memory):
    memory[:5] = b"hello"
    assert ctypes.string_at(address_of(memory), 5) == b"hello"
    view = memoryview(memory)
    view.release()  # nothing else is exported, so that the segment can be unmapped


def test_a_word_is_written_behind_the_work_of_a_stream():
    library = FakeLibrary()
    Driver(library).write_when_reached(0x1234, 0xABCD00, 7)
    assert library.calls == [("cuStreamWriteValue32_v2", 0x1234, 0xABCD00, 7, 0)]


def test_a_driver_without_a_call_says_which():
    with pytest.raises(DriverError, match="cuStreamWriteValue32_v2 failed with error 801"):
        Driver(object()).write_when_reached(1, 2, 3)


def test_a_machine_without_a_driver_says_what_to_do():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(RuntimeError, match=r"no NVIDIA driver here .* device\.kind = \"cpu\""):
            driver()
    else:
        pytest.skip("there is a driver here")
