"""The launch board: when each worker launched a step, for all to see."""

import time

from realrun.segment import Segment


class LaunchBoard:
    """One worker's view of the board.

    Parameters
    ----------
    segment
        Holds it.
    rank
        This worker.
    """

    def __init__(self, segment: Segment, rank: int) -> None:
        """Nothing was launched."""
        self._segment = segment
        self._board = segment.layout.board
        self._rank = rank

    def post(self, serial: int) -> int:
        """Note that this worker has launched a step; returns when."""
        cell_at = self._board.cell_at(serial, self._rank)
        # The stamp first: whoever sees the serial finds it.
        launched_ns = time.monotonic_ns()
        self._segment.store(cell_at + 8, launched_ns)
        self._segment.store(cell_at, serial)
        return launched_ns

    def found(self, serial: int, worker: int) -> tuple[int, int]:
        """Which step is noted in a worker's cell for this one, and when it was launched.

        An earlier step: it has not launched this one yet. A later one: the reader comes too late.
        """
        cell_at = self._board.cell_at(serial, worker)
        found = self._segment.load(cell_at)
        return found, self._segment.load(cell_at + 8)
