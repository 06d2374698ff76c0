"""What the two ends of a queue have in common: the arm in force, and how a row is kept."""

import threading

from realrun.vllm.beside import Beside
from realrun.vllm.calls import Call
from realrun.vllm.process import Process


class End:
    """One end of one queue; used by one thread at a time.

    Parameters
    ----------
    process
        What all ends share.
    beside
        Our ring.
    site, rank
        Which wait of the loop it is (`shmsim.wait`), and of which worker's queue.

    Attributes
    ----------
    is_used
        Whether our ring was used when what goes on here began.
    keeps
        Whether a row is kept of it.
    """

    def __init__(self, process: Process, beside: Beside, site: int, rank: int) -> None:
        """Start without history."""
        self._process = process
        self._tally = process.tally()
        self._beside = beside
        self._words = beside.words
        self._places = beside.stamps()
        self._place = next(self._places)  # of the next message's stamp
        self._site = site
        self._rank = rank
        self.is_used = self.keeps = False
        self._arm = 0
        self._sequence = 0  # of the last message
        self._thread = 0
        self._began_ns = self._published_ns = self._ended_ns = 0

    def _keep(
        self,
        kind: int,
        call: Call,
        pending: int,
        seen_ns: int,
        waited: tuple[int, int, int, int, int, int],
        work_ns: int,
        between_ns: int,
        n_bytes: int,
        route: int,
    ) -> None:
        """Write a row; parameters are fields of `realrun.vllm.trace.Row`.

        `waited` has those from ``stage`` to ``preempted``.
        """
        trace = self._process.trace
        assert trace is not None
        self._thread = self._thread or threading.get_native_id()
        trace.write(
            (
                self._site,
                self._rank,
                self._thread,
                call.kind,
                call.step,
                self._sequence,
                self._arm,
                pending,
                self._began_ns,
                self._published_ns,
                seen_ns,
                self._ended_ns,
                *waited,
                work_ns,
                between_ns,
                n_bytes,
                route,
                call.n_decode,
                call.n_prefill_tokens,
                call.n_kv_tokens,
                kind,
            )
        )
