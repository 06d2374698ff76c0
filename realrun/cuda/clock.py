"""When a step ended on the device, on the clock of the host.

Events of a stream tell how much time lay between two ends, and nothing about the host. A host that
spins sees an end a microsecond after it happened, one that sleeps much later; so the earliest
sightings tell how both clocks lie to each other.
"""

from typing import Final

_DRIFT: Final = 20e-6  # of two crystals to each other, until two anchors have told
_LEAST_BASE_NS: Final = 200_000_000.0  # between two anchors that shall tell a drift of millionths


class DeviceClock:
    """Turns time on the device into instants of the host.

    The offset is the least that was seen, raised by the drift that may have come since: so an
    estimate is never later than the sighting, and never earlier than the drift allows.
    """

    def __init__(self) -> None:
        """Nothing was seen."""
        self._offset_ns: float | None = None
        self._seen_at_ns = 0.0
        self._drift = _DRIFT
        self._rate = 0.0
        self._anchor: tuple[float, float] | None = None

    def anchor(self, device_ns: float, host_ns: int) -> None:
        """Note an end that the host saw at once.

        Parameters
        ----------
        device_ns
            Time on the device, from any origin that stays the same.
        host_ns
            When the host saw it.
        """
        offset_ns = host_ns - device_ns
        if self._anchor is not None:
            before_ns, before_offset_ns = self._anchor
            base_ns = device_ns - before_ns
            if base_ns >= _LEAST_BASE_NS:
                self._rate = (offset_ns - before_offset_ns) / base_ns
                self._drift = 2_000.0 / base_ns  # each anchor is good to about a microsecond
        self._anchor = device_ns, offset_ns
        self._offset_ns, self._seen_at_ns = offset_ns, device_ns

    def ended_ns(self, device_ns: float, seen_ns: int) -> int:
        """When something ended that was seen at an instant of the host."""
        offset_ns = seen_ns - device_ns
        if self._offset_ns is not None:
            passed_ns = device_ns - self._seen_at_ns
            expected_ns = self._offset_ns + self._rate * passed_ns
            offset_ns = min(offset_ns, expected_ns + self._drift * abs(passed_ns))
        self._offset_ns, self._seen_at_ns = offset_ns, device_ns
        return min(round(device_ns + offset_ns), seen_ns)
