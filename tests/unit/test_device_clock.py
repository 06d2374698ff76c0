"""The clock of a device, seen from the host."""

import numpy as np
import pytest

from realrun.cuda.clock import DeviceClock
from shmsim.units import MS, US, S


@pytest.mark.parametrize("drift", [0.0, 8e-6, -8e-6])
def test_ends_are_told_to_microseconds_however_late_they_are_seen(drift):
    rng = np.random.default_rng(5)
    clock = DeviceClock()
    start_ns = 7 * S

    def host_ns(device_ns):
        return start_ns + device_ns * (1 + drift)

    clock.anchor(0.0, round(host_ns(0.0)) + 500)
    clock.anchor(1.0 * S, round(host_ns(1.0 * S)) + 700)
    for step in range(1, 1000):
        device_ns = 1.0 * S + step * 2 * MS
        truly_ns = host_ns(device_ns)
        late_ns = 80 * US + rng.exponential(20 * US)  # who parks always is
        ended_ns = clock.ended_ns(device_ns, round(truly_ns + late_ns))
        since_anchor_s = step * 2 * MS / S
        # An anchor is good to a microsecond, and two of them a second apart to two millionths.
        assert abs(ended_ns - truly_ns) < 1 * US + 2.5 * US * since_anchor_s


def test_nothing_ends_after_it_was_seen():
    clock = DeviceClock()
    clock.anchor(0.0, 1000)
    for device_ns, seen_ns in ((1e6, 1_000_900), (2e6, 2_000_400), (3e6, 3_009_000)):
        assert clock.ended_ns(device_ns, seen_ns) <= seen_ns


def test_an_earlier_sighting_corrects_the_offset():
    clock = DeviceClock()
    clock.anchor(0.0, 50 * US)  # seen late
    assert clock.ended_ns(1e6, MS + 3 * US) == MS + 3 * US
    assert clock.ended_ns(2e6, 2 * MS + 40 * US) <= 2 * MS + 4 * US
