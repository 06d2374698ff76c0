"""What is copied to a device is what was sent, and its slot is held for as long as it takes."""

import pytest

from realrun.layout import SegmentLayout
from shmsim.routing import ArenaPlan, SlotClass
from tests.real.handoffs import SOON_NS, handoff, noise

torch = pytest.importorskip("torch", reason="copies to a device need torch")

from realrun.cuda.upload import MEMORIES, Uploader  # noqa: E402 - it needs torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(30)]

N_BYTES = 40_000
LAYOUT = SegmentLayout(1, arena=ArenaPlan((SlotClass(N_BYTES, 2),), 1000))


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_arrives_on_the_device_is_what_was_sent(memory):
    uploader = Uploader("cpu", memory, N_BYTES)
    with handoff(LAYOUT) as ends:
        for n in range(6):
            sent = torch.from_numpy(noise(N_BYTES - n)).view(torch.uint8)
            ends.sender.send(sent, n)
            received = ends.receivers[0].receive(timeout_ns=SOON_NS)
            uploaded = uploader.upload(received, received.content)
            del received
            ends.receivers[0].learn()
            assert torch.equal(uploaded.tensor, sent)
            assert uploaded.landed.query()
        assert ends.sender.n_fallbacks == 0, "every slot came back"


def test_a_buffer_that_is_too_small_is_refused():
    with handoff(LAYOUT) as ends:
        ends.sender.send(torch.from_numpy(noise(N_BYTES)), 0)
        received = ends.receivers[0].receive(timeout_ns=SOON_NS)
        with pytest.raises(ValueError, match=r"40,000 bytes does not fit .* larger most_bytes"):
            Uploader("cpu", "pinned", 1000).upload(received, received.content)
        del received
