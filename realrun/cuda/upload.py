"""Copies bulk of a message to a device: from where it lies in the arena, or by way of a buffer."""

from typing import Any, Final, NamedTuple

import torch

from realrun.arena import Event
from realrun.handoff import Received

MEMORIES: Final = ("registered", "pinned", "pageable")


class Uploaded(NamedTuple):
    """A copy on its way: the tensor on the device, and the event behind the copy."""

    tensor: Any
    landed: Event


class _Landed:
    """The event of a copy that was over when its call returned."""

    def query(self) -> bool:
        return True


class Uploader:
    """Copies tensors of messages to a device.

    ``"registered"`` and ``"pageable"`` copy from where the tensor lies; what differs is whether its
    memory was registered (`realrun.cuda.registration`), without which the driver copies it into a
    buffer of its own first and the call lasts until it has. ``"pinned"`` copies into a buffer that
    torch has pinned, so that the slot is free at once, for the price of one more copy.

    Parameters
    ----------
    device
        Where to.
    memory
        One of `MEMORIES`.
    most_bytes
        Size of the buffer of ``"pinned"``: the largest tensor.
    stream
        In which the copies lie; None: the current one.
    """

    def __init__(self, device: Any, memory: str, most_bytes: int, stream: Any = None) -> None:
        """Make the buffer, if there is one."""
        self._device = torch.device(device)
        self._is_cuda = self._device.type == "cuda"
        self._memory = memory
        self._stream = stream
        self._buffer = None
        self._buffer_free: Event = _Landed()
        if memory == "pinned":
            self._buffer = torch.empty(most_bytes, dtype=torch.uint8, pin_memory=self._is_cuda)

    def upload(self, received: Received, tensor: Any) -> Uploaded:
        """Copy a tensor of a message, and hold its slots until the copy has landed.

        Parameters
        ----------
        received
            The message.
        tensor
            Part of its content: dense, on the CPU.

        Returns
        -------
        Uploaded
            The tensor may be used in the same stream at once.

        Raises
        ------
        ValueError
            If the tensor is larger than the buffer.
        """
        source = self._staged(tensor) if self._buffer is not None else tensor
        if not self._is_cuda:
            return Uploaded(source.clone(), _Landed())
        with torch.cuda.stream(self._stream):
            # Same dtype and dense: torch would else copy it on the CPU first, and from there.
            copied = torch.empty_like(source, device=self._device)
            copied.copy_(source, non_blocking=self._memory != "pageable")
            landed = torch.cuda.Event()
            landed.record()
        if self._buffer is None:
            # torch looks after its own memory until a copy has landed, but not after ours.
            received.hold_until(landed)
        else:
            self._buffer_free = landed
        return Uploaded(copied, landed)

    def _staged(self, tensor: Any) -> Any:
        """The tensor in the buffer, once the copy before has left it."""
        assert self._buffer is not None, "there is a buffer where something is staged"
        n_bytes = tensor.numel() * tensor.element_size()
        if n_bytes > self._buffer.numel():
            raise ValueError(
                f"a tensor of {n_bytes:,} bytes does not fit into the buffer of "
                f"{self._buffer.numel():,}; make the Uploader with a larger most_bytes"
            )
        while not self._buffer_free.query():
            pass  # microseconds: the copy before this one is landing
        staged = self._buffer[:n_bytes].view(tensor.dtype).view(tensor.shape)
        return staged.copy_(tensor)
