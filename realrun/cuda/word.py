"""The word that a GPU moves when a step is over: the head of a worker's end ring."""

from typing import Any

import torch

from realrun.cuda.driver import Driver
from realrun.cuda.registration import Registration
from realrun.layout import RingLayout
from realrun.segment import Segment


class Word:
    """The head of an end ring in registered memory, as the GPU sees it.

    Parameters
    ----------
    segment, ring
        Whose head it is; drop this object before the segment is unmapped.
    registration
        Of the segment's memory with the current device.
    driver
        By which a stream is told to write.
    """

    def __init__(
        self, segment: Segment, ring: RingLayout, registration: Registration, driver: Driver
    ) -> None:
        """Look where the device sees it."""
        self._driver = driver
        self._pointer = registration.device_pointer(ring.head_at)
        self._head = torch.frombuffer(
            segment.memory, dtype=torch.int64, count=1, offset=ring.head_at
        )
        self._counter = torch.zeros(1, dtype=torch.int64, device=torch.device("cuda"))

    def move(self, way: str, stream: Any, serial: int) -> None:
        """Have the current stream move the word behind all that it was asked before.

        Parameters
        ----------
        way
            ``"write"``: the stream writes the number, told by the driver. ``"copy"``: it copies
            one that it counts, so every number has to be asked for in turn.
        stream
            The current one.
        serial
            Of the step, from 1, below 2**32.

        Raises
        ------
        realrun.cuda.driver.DriverError
            If streams here may not write.
        """
        if way == "write":
            self._driver.write_when_reached(stream.cuda_stream, self._pointer, serial)
        else:
            self._counter.add_(1)
            self._head.copy_(self._counter, non_blocking=True)
