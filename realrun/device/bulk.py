"""What a device is told about bulk, and how it is seen that the right bulk came."""

from typing import Any, Final, NamedTuple

from realrun.arena import Event, Lease

#: Of a payload, one byte in so many is summed up on the device.
STRIDE: Final = 512
_N_WEIGHTS: Final = 251


class Bulk(NamedTuple):
    """Bulk that came with a call.

    Parameters
    ----------
    content
        Flat bytes: an array, or a tensor.
    leases
        Slots of the arena that it lies in.
    """

    content: Any
    leases: tuple[Lease, ...]

    def hold_until(self, event: Event) -> None:
        """Keep its slots until a copy to a device has completed, at least."""
        for lease in self.leases:
            lease.hold_until(event)


class Uploads(NamedTuple):
    """How bulk goes to a device.

    Parameters
    ----------
    memory
        What it is copied from: as ``payload.memory`` of the config.
    most_bytes
        Of the bulk of one step.
    depth
        Steps in flight.
    """

    memory: str
    most_bytes: int
    depth: int


NO_UPLOADS: Final = Uploads("none", 0, 0)


def weight_of(serial: int) -> int:
    """By which the sum of a payload counts, so that two that were exchanged are found out."""
    return 1 + serial % _N_WEIGHTS
