"""A GPU as the device: the decoder in CUDA graphs, its ends by one of five ways."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from realrun.cuda.checks import check_idle, check_memory, choose_gpu, clocks
from realrun.cuda.clock import DeviceClock
from realrun.cuda.driver import USES_HOST_PAGE_TABLES, DriverError, driver
from realrun.cuda.ends import BY_GPU, Ended, Ends
from realrun.cuda.graphs import DecodeGraphs
from realrun.cuda.registration import Registration, address_of
from realrun.cuda.sleep import cycles_per_ns
from realrun.cuda.upload import CudaLane, Uploader
from realrun.cuda.word import Word
from realrun.device.bulk import NO_UPLOADS, Bulk, Uploads
from realrun.device.computing import Computing
from realrun.device.interface import Launched
from realrun.device.watchdog import within
from realrun.layout import PAYLOAD
from realrun.model.collectives import CAPTURABLE, join, leave
from realrun.model.decoder import Decoder
from realrun.model.run import prompts_of, run_chunks
from realrun.model.weights import random_weights
from realrun.segment import Segment
from realrun.spec import TOKEN_BYTES
from realrun.waiter import Source, Waiter
from shmsim.config import DeviceConfig
from shmsim.message import CallOne
from shmsim.roofline import ModelGeometry

_NS_PER_MS: Final = 1e6
_JOIN_S: Final = 60.0
_CAPTURE_S: Final = 240.0
_COMPILE_S: Final = 400.0  # the same, where kernels are compiled first


class CudaDevice(Computing):
    """Runs steps on one GPU.

    Inputs and outputs of a step lie in its slot of the end ring, which the GPU copies from and to
    if the segment can be registered; the slot is used again when the ring has come round, twice the
    steps in flight later, and both copies are long over. Decoding is one graph; prompt chunks are
    launched kernel by kernel.

    Parameters
    ----------
    segment, rank
        See `Computing`.
    n_ranks, collective
        How many GPUs share the model, and how they add up their parts.
    n_rows
        Of the KV cache.
    config
        Says how long contexts are, how ends are observed, and where inputs are copied from.
    geometry, seed
        Of the model and its random weights.
    make_waiter
        Makes the waiter for a source of ends.
    core
        Of the thread that waits in the driver; `realrun.cores.ANY`: as this one's.
    uploads
        How bulk comes to it. The arena is registered for ``"registered"`` only.

    Raises
    ------
    realrun.cuda.checks.NoGpu
        If there is no GPU for this rank, it is too small, or somebody else is on it.
    RuntimeError
        If the ranks do not find together.
    """

    def __init__(
        self,
        segment: Segment,
        rank: int,
        n_ranks: int,
        collective: str,
        n_rows: int,
        config: DeviceConfig,
        geometry: ModelGeometry,
        seed: int,
        make_waiter: Callable[[Source], Waiter],
        core: int,
        uploads: Uploads = NO_UPLOADS,
    ) -> None:
        """Load the model and capture its graphs."""
        if collective not in CAPTURABLE:
            raise RuntimeError(
                f"device.collective = {collective!r}: {collective} cannot be part of a CUDA graph; "
                "leave it out for nccl, or run on CPUs"
            )
        shares = collective == "symm"
        index = choose_gpu(rank, n_ranks, shares=shares)
        if not shares:
            check_idle(index)
        torch.cuda.set_device(index)
        self._index = index
        self._shares = n_ranks > torch.cuda.device_count()
        self._device = torch.device("cuda", index)
        torch.zeros(1, device=self._device)  # makes the context that the driver's calls work in
        check_memory(geometry, n_ranks, n_rows, config.max_len, index)
        self._driver = driver()
        arena_at = segment.layout.arena_layout.data_at
        n_registered = arena_at if uploads.memory != "registered" else len(segment.memory)
        self._registration = Registration(self._driver, segment.memory, n_registered)
        self._config = config
        is_registered = self._registration.is_registered
        self._memory = config.memory
        if config.memory == "registered" and not is_registered:
            self._memory = "pinned"
        ring = segment.layout.ends[rank]
        self._word: Word | None = None
        if is_registered:
            self._word = Word(segment, ring, self._registration, self._driver)
        self._not_observed = ""
        self._observe = self._way_to_observe(config.observe)
        choose = partial(torch.cuda.set_device, index)
        self._ends = Ends(segment, ring, self._observe, self._ended_ns, choose, core)
        super().__init__(segment, rank, n_rows, config.max_len, make_waiter(self._ends))

        self._geometry = geometry
        self._stream = torch.cuda.Stream(self._device)
        self._uploader = None
        if uploads.memory != "none":
            start = address_of(segment.memory)
            shared = range(start, start + len(segment.memory))
            if uploads.memory == "registered" and not is_registered:
                uploads = uploads._replace(memory="pinned")
            lane = CudaLane(self._device, self._stream, uploads.most_bytes)
            self._uploader = Uploader(lane, uploads, shared, pins=True)
        # Tokens are read after the wait that the event of the step ends, so nobody else waits.
        self._inputs, self._outputs = self._staging(n_rows)
        self._clock = DeviceClock()
        self._device_ns = 0.0
        self._stamps = [torch.cuda.Event(enable_timing=True) for _ in range(ring.n_slots)]
        is_blocking = self._observe != "sync"
        self._end_events = [torch.cuda.Event(blocking=is_blocking) for _ in range(ring.n_slots)]
        self._positions = torch.zeros(n_rows, dtype=torch.int64, device=self._device)
        limit_s = _COMPILE_S if config.kernels == "compiled" else _CAPTURE_S
        with within(limit_s, f"worker {rank}: loading the model and capturing its graphs"):
            folder = Path(segment.ticket.folder)
            all_reduce = join(collective, rank, n_ranks, folder, self._device, _JOIN_S)
            with torch.cuda.stream(self._stream):
                dtype = torch.bfloat16
                weights = random_weights(geometry, seed, self._device, dtype, rank, n_ranks)
                self._decoder = Decoder(
                    geometry, weights, n_rows, config.max_len, all_reduce, config.kernels
                )
                self._graphs = DecodeGraphs(self._decoder, self._positions)
                self._sleep_cycles = 0
                if config.sleep_ns:
                    self._sleep_cycles = max(1, round(config.sleep_ns * cycles_per_ns()))
            self._stream.synchronize()
        self._prompts: list[Any] = []
        self._clocks_before = clocks(index)
        self._before = self._anchor_event()
        self._clock.anchor(0.0, self._anchored_ns)

    def _way_to_observe(self, wanted: str) -> str:
        """The way that was asked for, or the next best that this machine allows."""
        if wanted not in BY_GPU:
            return wanted
        if self._word is None:
            self._not_observed = self._registration.reason
            return "blocking"
        if wanted == "write":
            try:  # the number that is there already
                self._word.move("write", torch.cuda.current_stream(), 0)
                torch.cuda.synchronize()
            except DriverError as error:
                self._not_observed = str(error)
                return "copy"
        return wanted

    def _staging(self, n_rows: int) -> tuple[list[Any], list[Any]]:
        """Where inputs and outputs of a step lie on the host, one pair for each slot."""
        inputs, outputs = [], []
        for slot in range(self.ring.n_slots):
            if self._memory == "registered":
                at = self.ring.slot_at(1 + slot) + PAYLOAD
                pair = [
                    torch.frombuffer(
                        self.segment.memory, dtype=torch.int64, count=n_rows, offset=offset
                    )
                    for offset in (at, at + TOKEN_BYTES * n_rows)
                ]
            else:
                pins = self._memory == "pinned"
                pair = [torch.zeros(n_rows, dtype=torch.int64, pin_memory=pins) for _ in range(2)]
            inputs.append(pair[0])
            outputs.append(pair[1])
        return inputs, outputs

    def load(self, call: CallOne) -> None:
        """Start to copy positions and prompts to the GPU."""
        serial, inputs = self.place(call)
        slot = (serial - 1) % self.ring.n_slots
        with torch.cuda.stream(self._stream):
            if inputs.decode:
                n_rows = self._graphs.bucket_for(inputs.n_rows)
                staged = self._inputs[slot].numpy()
                staged[:n_rows] = self._decoder.idle
                for row, position in inputs.decode:
                    staged[row] = position
                self._positions[:n_rows].copy_(self._inputs[slot][:n_rows], non_blocking=True)
            self._prompts = [
                prompt.to(self._device, non_blocking=True)
                for prompt in prompts_of(inputs, self._geometry.vocab)
            ]

    def upload(self, bulk: Bulk) -> None:
        """Start to copy before the step."""
        if self._uploader is not None:
            self._uploader.upload(bulk)

    def launch(self, call: CallOne, *, is_warm_up: bool) -> Launched:
        """Queue the step, the copy of its tokens, and the news of its end."""
        del is_warm_up
        serial = self._serial + 1
        slot = (serial - 1) % self.ring.n_slots
        inputs = self._loaded
        if inputs is None:
            raise RuntimeError(f"step {call.step} was launched but not loaded")
        end = self._end_events[slot]
        self._ends.prepare(serial)
        with torch.cuda.stream(self._stream):
            if self._sleep_cycles:
                torch.cuda._sleep(self._sleep_cycles)
            else:
                if inputs.decode:
                    self._graphs.replay(inputs.n_rows)
                run_chunks(self._decoder, inputs, self._prompts)
            self._outputs[slot].copy_(self._decoder.tokens, non_blocking=True)
            self._stamps[slot].record()
            if self._word is not None and self._observe in BY_GPU:
                self._word.move(self._observe, self._stream, serial)
            # Behind the word: who is woken by this event must find it.
            end.record()
        # Known to the ends before anybody can wait for it.
        self._ends.expect(serial, end)
        return self.begun(call)

    def outputs(self, step: Launched) -> list[list[int]] | None:
        """Tokens of each sequence; None if it slept instead."""
        rows = self.last_inputs(step).rows
        if self._sleep_cycles:
            return None
        tokens = self._outputs[(step.serial - 1) % self.ring.n_slots].tolist()
        return [[tokens[row]] for row in rows]

    def begin(self) -> None:
        """Forget what was learnt; the GPU is idle, so look how its clock lies to the host's."""
        super().begin()
        before, self._before = self._before, self._anchor_event()
        self._device_ns += before.elapsed_time(self._before) * _NS_PER_MS
        self._clock.anchor(self._device_ns, self._anchored_ns)

    def _anchor_event(self) -> Any:
        """An event of an idle stream, and when it came to pass (`_anchored_ns`)."""
        event = torch.cuda.Event(enable_timing=True)
        self._stream.synchronize()
        event.record(self._stream)
        event.synchronize()  # which spins
        self._anchored_ns = time.monotonic_ns()
        return event

    def _ended_ns(self, ended: Ended) -> int:
        """When a step ended, by the host's clock."""
        stamp = self._stamps[(ended.serial - 1) % self.ring.n_slots]
        self._device_ns += self._before.elapsed_time(stamp) * _NS_PER_MS
        self._before = stamp
        return self._clock.ended_ns(self._device_ns, ended.seen_ns)

    def facts(self) -> dict[str, Any]:
        """What it is, how it is used, and its clocks before and after."""
        properties = torch.cuda.get_device_properties(self._index)
        bulk = {} if self._uploader is None else {"bulk": self._uploader.facts()}
        return {
            **bulk,
            "kind": "cuda",
            "name": properties.name,
            "index": self._index,
            "memory_bytes": properties.total_memory,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "observe": self._observe,
            "memory": self._memory,
            "not_registered": self._registration.reason,
            "not_observed": self._not_observed,
            # Several ranks on one GPU take turns of time slices.
            "emulated": self._shares,
            "host_page_tables": self._driver.attribute(USES_HOST_PAGE_TABLES, self._index),
            "sleep_ns": self._config.sleep_ns,
            "kernels": self._config.kernels,
            "clocks_before": self._clocks_before,
            "clocks_after": clocks(self._index),
        }

    def close(self) -> None:
        """Wait for the GPU, unregister, and leave the other ranks."""
        self._stream.synchronize()
        self._ends.close()
        self._graphs.close()
        self._registration.close()
        leave()
