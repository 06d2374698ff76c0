"""A spinner that finds itself descheduled gives the core to whom it may be waiting for."""

import subprocess
import sys
from pathlib import Path

import pytest

from realrun.host import usable_cores
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from tests.real.runs import ROOT

pytestmark = pytest.mark.real

#: With turns of a scheduler's slice each, about 3 ms, this would take a minute.
N_ROUNDS = 10_000
PLAYER = Path(__file__).with_name("plays_ping_pong.py")


@pytest.mark.timeout(40)
def test_two_spinners_on_one_core_do_not_take_turns_of_a_time_slice():
    core = str(usable_cores()[0])
    with Segment.create(SegmentLayout(1)) as segment:
        players = [
            subprocess.Popen(
                [sys.executable, str(PLAYER), segment.ticket.to_json(), side, str(N_ROUNDS), core],
                cwd=ROOT,
            )
            for side in ("serve", "return")
        ]
        try:
            assert [player.wait(30) for player in players] == [0, 0]
        finally:
            for player in players:
                player.kill()
                player.wait()
