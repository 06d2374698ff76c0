"""A CPU as the device: the decoder on a thread beside the worker's."""

import ctypes
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import torch

from realrun.cores import stay_on
from realrun.cuda.registration import address_of
from realrun.cuda.upload import Uploaded, Uploader
from realrun.device.bulk import NO_UPLOADS, STRIDE, Bulk, Uploads
from realrun.device.computing import Computing
from realrun.device.instant import meet
from realrun.device.interface import Launched
from realrun.host import exact_timers
from realrun.model.collectives import leave
from realrun.model.decoder import Decoder
from realrun.model.rows import StepInput
from realrun.model.run import positions_of, prompts_of, run_eagerly
from realrun.ring import RingWriter
from realrun.segment import Segment
from realrun.waiter import Waiter
from realrun.waiting import Stopped
from shmsim.message import CallOne
from shmsim.roofline import ModelGeometry

_GOODBYE_S: Final = 5.0


class _Job(NamedTuple):
    """A step for the thread that computes."""

    serial: int
    inputs: StepInput
    positions: Any
    prompts: list[Any]


class _Landed:
    """The event behind a copy."""

    def __init__(self) -> None:
        self.is_over = False

    def query(self) -> bool:
        """Whether it has landed."""
        return self.is_over


class _Copy(NamedTuple):
    """A copy for the thread: like a device's, it knows addresses and keeps nothing alive."""

    address: int
    target: Any
    weight: int
    landed: _Landed


class _Lane:
    """Copies in the order of the steps, by the thread that computes."""

    def __init__(self, queue: Callable[[_Copy], None]) -> None:
        self.digest = torch.zeros((), dtype=torch.int64)
        self._queue = queue

    def copy(self, source: Any, weight: int, *, stays: bool) -> Uploaded:
        """See `realrun.cuda.upload.Lane.copy`."""
        copy = _Copy(source.data_ptr(), torch.empty_like(source), weight, _Landed())
        if stays:
            self._queue(copy)
        else:
            self.carry_out(copy)
        return Uploaded(copy.target, copy.landed)

    def carry_out(self, copy: _Copy) -> None:
        """Copy now."""
        ctypes.memmove(copy.target.data_ptr(), copy.address, copy.target.numel())
        copy.landed.is_over = True
        self.digest += copy.weight * copy.target[::STRIDE].sum()


class CpuDevice(Computing):
    """Computes each step on one thread, and publishes its end with the tokens.

    The CPU time of that thread stands in for a device's and is booked as `emulation_cpu_ns`.

    Parameters
    ----------
    segment, rank, waiter
        See `Computing`.
    n_rows, max_len
        Of the KV cache.
    geometry
        Of the model.
    make_decoder
        Makes this rank's decoder, on the thread that will run it.
    sleep_ns
        Sleep so long instead of computing; 0: compute.
    core
        Of the thread that computes; `realrun.cores.ANY`: as this one's.
    guard_ns
        See `realrun.device.instant.meet`.
    uploads
        How bulk comes to it.
    """

    def __init__(
        self,
        segment: Segment,
        rank: int,
        n_rows: int,
        max_len: int,
        waiter: Waiter,
        geometry: ModelGeometry,
        make_decoder: Callable[[], Decoder],
        sleep_ns: int,
        core: int,
        guard_ns: int,
        uploads: Uploads = NO_UPLOADS,
    ) -> None:
        """Start the thread, and wait until the model is there."""
        super().__init__(segment, rank, n_rows, max_len, waiter)
        self._geometry = geometry
        self._sleep_ns = sleep_ns
        self._guard_ns = guard_ns
        self._idle = segment.layout.idle_words(1 + rank)
        self._writer = RingWriter(segment, self.ring)
        self._tokens = b""
        self._staged: tuple[Any, list[Any]] = (None, [])
        self._jobs: SimpleQueue[_Job | _Copy | None] = SimpleQueue()
        self._lane = _Lane(self._jobs.put)
        self._uploader = None
        if uploads.memory != "none":
            start = address_of(segment.memory)
            shared = range(start, start + len(segment.memory))
            self._uploader = Uploader(self._lane, uploads, shared, pins=False)
        made: SimpleQueue[Decoder | Exception] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._compute, args=(make_decoder, made, core), name="device", daemon=True
        )
        self._thread.start()
        decoder = made.get()
        if isinstance(decoder, Exception):
            raise decoder
        self._decoder = decoder

    def load(self, call: CallOne) -> None:
        """Lay the inputs out."""
        _, inputs = self.place(call)
        positions = positions_of(inputs, self._decoder.idle, inputs.n_rows)
        self._staged = positions, prompts_of(inputs, self._geometry.vocab)

    def upload(self, bulk: Bulk) -> None:
        """Queue a copy before the step."""
        if self._uploader is not None:
            self._uploader.upload(bulk)

    def launch(self, call: CallOne, *, is_warm_up: bool) -> Launched:
        """Hand the step to the thread."""
        del is_warm_up
        step = self.begun(call)
        inputs = self._in_flight[-1].inputs
        self._jobs.put(_Job(step.serial, inputs, *self._staged))
        return step

    def arrived(self, payload: bytes) -> None:
        """Keep the tokens that came with the end."""
        self._tokens = payload

    def outputs(self, step: Launched) -> list[list[int]] | None:
        """Tokens of each sequence; None if it slept instead."""
        rows = self.last_inputs(step).rows
        if self._sleep_ns:
            return None
        tokens = memoryview(self._tokens).cast("q")
        return [[tokens[row]] for row in rows]

    def _compute(
        self,
        make_decoder: Callable[[], Decoder],
        made: "SimpleQueue[Decoder | Exception]",
        core: int,
    ) -> None:
        """The thread: one step after the other, until there is a None."""
        exact_timers()
        # A worker that spins on the core of the thread it waits for would wait for itself.
        stay_on(core)
        torch.set_num_threads(1)
        try:
            decoder = make_decoder()
        except (RuntimeError, ValueError, OSError) as error:
            made.put(error)
            return
        made.put(decoder)
        last_done_ns = 0
        while (job := self._jobs.get()) is not None:
            cpu_ns = time.thread_time_ns()
            if isinstance(job, _Copy):
                self._lane.carry_out(job)
                self.emulation_cpu_ns += time.thread_time_ns() - cpu_ns
                continue
            if self._sleep_ns:
                begun_ns = max(time.monotonic_ns(), last_done_ns)
                last_done_ns = begun_ns + self._sleep_ns
                try:
                    meet(self.segment, self._idle, last_done_ns, self._guard_ns)
                except Stopped:
                    return
            else:
                run_eagerly(decoder, job.inputs, job.positions, job.prompts)
            # Booked before the end is published: nobody may count in between.
            self.emulation_cpu_ns += time.thread_time_ns() - cpu_ns
            self._writer.publish(job.serial, 0, [decoder.tokens.numpy().tobytes()])

    def facts(self) -> dict[str, Any]:
        """What computes."""
        bulk = {} if self._uploader is None else {"bulk": self._uploader.facts()}
        return {"kind": "cpu", "torch": torch.__version__, "sleep_ns": self._sleep_ns, **bulk}

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)
        self._thread.join(_GOODBYE_S)
        leave()
