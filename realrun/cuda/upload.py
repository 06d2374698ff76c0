"""Copies bulk of a message to a device: from where it lies in the arena, or by way of a buffer."""

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

import torch

from realrun.arena import Event
from realrun.device.bulk import STRIDE, Bulk, Uploads, weight_of
from realrun.tensors import is_tensor, rebuild_tensor

MEMORIES: Final = ("registered", "pinned", "pageable")


class Uploaded(NamedTuple):
    """A copy on its way: the tensor on the device, and the event behind the copy."""

    tensor: Any
    landed: Event


class Lane(Protocol):
    """What copies and steps of a device follow each other in.

    Attributes
    ----------
    digest
        Sum of what `Uploader` asked for, a number on the device.
    """

    digest: Any

    def copy(self, source: Any, weight: int, *, stays: bool) -> Uploaded:
        """Queue a copy of a flat tensor of bytes, and add what it brought to the digest.

        Parameters
        ----------
        source
            What to copy.
        weight
            By which every `STRIDE`-th of its bytes counts.
        stays
            Whether the source stays as it is until the copy has landed, without a reference to it:
            what nobody looks after is copied before this returns.
        """
        ...


class CudaLane:
    """A stream of a GPU.

    Parameters
    ----------
    device, stream
        Where to, and behind what.
    most_bytes
        Of a copy.
    """

    def __init__(self, device: Any, stream: Any, most_bytes: int) -> None:
        """Have the memory for one copy: a stream's first allocation may wait for the device."""
        self._device = device
        self._stream = stream
        self.digest = torch.zeros((), dtype=torch.int64, device=device)
        with torch.cuda.stream(stream):
            torch.empty(most_bytes, dtype=torch.uint8, device=device)

    def copy(self, source: Any, weight: int, *, stays: bool) -> Uploaded:
        """See `Lane.copy`; from memory that is not page-locked the driver takes its own copy."""
        del stays
        with torch.cuda.stream(self._stream):
            # Same dtype and dense: torch would else copy it on the CPU first, and from there.
            copied = torch.empty(source.shape, dtype=source.dtype, device=self._device)
            copied.copy_(source, non_blocking=True)
            landed = torch.cuda.Event()
            landed.record()
            self.digest.add_(copied.view(-1)[::STRIDE].sum(), alpha=weight)
        return Uploaded(copied, landed)


class Uploader:
    """Copies bulk of messages to a device.

    ``"registered"`` and ``"pageable"`` copy from where it lies; what differs is whether the arena
    was registered (`realrun.cuda.registration`), without which the driver copies it into a
    buffer of its own first and the call lasts until it has. ``"pinned"`` copies into a buffer that
    torch has pinned, so that the slot is free at once, for the price of one more copy.

    Parameters
    ----------
    lane
        By which the copies go.
    uploads
        From which of `MEMORIES`. ``"pinned"`` has a buffer for each step in flight, as large as
        the largest bulk, so that none is waited for.
    shared
        Addresses of the segment: what lies there is held until its copy has landed.
    pins
        Whether buffers are page-locked.
    """

    def __init__(self, lane: Lane, uploads: Uploads, shared: range, *, pins: bool) -> None:
        """Make the buffers, if there are any."""
        self._lane = lane
        self._memory = uploads.memory
        self._shared = shared
        self._buffers: deque[tuple[Any, Event | None]] = deque()
        if uploads.memory == "pinned":
            for _ in range(uploads.depth):
                buffer = torch.empty(uploads.most_bytes, dtype=torch.uint8, pin_memory=pins)
                self._buffers.append((buffer, None))
        # Where a GPU reads pageable memory by itself, its copy may begin after the call.
        self._kept: deque[Any] = deque(maxlen=uploads.depth)
        self._n_copies = self._n_bytes = 0

    def upload(self, bulk: Bulk) -> Uploaded:
        """Copy the bulk of a message, and hold its slots until the copy has landed.

        Returns
        -------
        Uploaded
            The tensor may be used in the same lane at once.

        Raises
        ------
        ValueError
            If it is larger than a buffer.
        """
        source = bulk.content
        if not is_tensor(source):
            source = rebuild_tensor(source, "torch.uint8", (source.nbytes,))
        weight = weight_of(self._n_copies)
        self._n_copies += 1
        self._n_bytes += source.numel()
        if self._buffers:
            return self._by_buffer(source, weight)
        is_shared = source.data_ptr() in self._shared
        stays = is_shared and self._memory == "registered"
        uploaded = self._lane.copy(source, weight, stays=stays)
        if is_shared:
            # torch looks after its own memory until a copy has landed, but not after ours.
            bulk.hold_until(uploaded.landed)
        else:
            self._kept.append(source)
        return uploaded

    def _by_buffer(self, source: Any, weight: int) -> Uploaded:
        """Copy by the buffer that was used longest ago, once the copy before has left it."""
        buffer, free = self._buffers.popleft()
        if source.numel() > buffer.numel():
            raise ValueError(
                f"bulk of {source.numel():,} bytes does not fit into the buffer of "
                f"{buffer.numel():,}; make the Uploader with a larger most_bytes"
            )
        while free is not None and not free.query():
            pass  # microseconds: as many steps are in flight as there are buffers
        staged = buffer[: source.numel()]
        staged.copy_(source)
        uploaded = self._lane.copy(staged, weight, stays=True)
        self._buffers.append((buffer, uploaded.landed))
        return uploaded

    def facts(self) -> dict[str, Any]:
        """What was copied, and its digest (`realrun.bulk.BulkPublisher.digest`)."""
        return {
            "memory": self._memory,
            "copies": self._n_copies,
            "bytes": self._n_bytes,
            "digest": int(self._lane.digest),
        }
