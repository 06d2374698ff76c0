"""What the steps of a model take on a GPU, by batch, by room for context, and after a pause.

The device is that of a run (`realrun.device.cuda`), which is loaded, launched and waited for as a
worker does it, one step at a time, by spinning on the word that the GPU writes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from realrun.cuda.checks import clocks
from realrun.cuda.parts import Measured, Say, spread
from realrun.device.cuda import CudaDevice
from realrun.layout import SegmentLayout
from realrun.model.geometry import geometry_of, model_of
from realrun.segment import Segment
from realrun.spec import TOKEN_BYTES
from realrun.waiter import Source, Waiter
from shmsim.config import DeviceConfig
from shmsim.message import CallOne
from shmsim.policies import PRESETS
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.wait import DEVICE_DONE, TYPICAL_COSTS

BATCHES: Final = (1, 2, 4, 8, 16, 32)
#: Pauses before a step, and how many steps follow one.
GAPS: Final = ((0, 60), (2 * MS, 60), (20 * MS, 20), (100 * MS, 10))
#: Tokens that the cache of a sequence has room for; attention reads all of it.
ROOMS: Final = (256, 4096)
PROMPTS: Final = (64, 512)
_PAUSED_BATCH: Final = 2
_PROMPT: Final = 64
_N: Final = 150
_N_PROMPTS: Final = 10
_N_WARM_UP: Final = 10
_SEED: Final = 1
#: Of batches up to here a launch is taken: it lasts longer the more rows there are to fill in.
_LAUNCHED_UP_TO: Final = 8


class Step(NamedTuple):
    """One step: its launch, inputs included, and what it took from there on; nanoseconds."""

    launch_ns: int
    step_ns: int


class Served:
    """Gives a device steps, one at a time.

    Parameters
    ----------
    device
        An idle one.
    """

    def __init__(self, device: Any) -> None:
        """Nobody is served."""
        self._device = device
        self._step = 0
        self._ids: tuple[str, ...] = ()
        self._context = 0

    def prefill(self, n_sequences: int, n_tokens: int) -> Step:
        """Forget all, and take in prompts of that many tokens."""
        self._device.forget()
        self._ids = tuple(f"{self._step}-{i}" for i in range(n_sequences))
        self._context = n_tokens
        n_all = n_sequences * n_tokens
        return self._run(CallOne(self._step, self._ids, (n_tokens,) * n_sequences, 0, n_all, 0))

    def decode(self) -> Step:
        """A token for each."""
        n = len(self._ids)
        step = self._run(CallOne(self._step, self._ids, (1,) * n, n, 0, n * self._context))
        self._context += 1
        return step

    def _run(self, call: CallOne) -> Step:
        device = self._device
        self._step += 1
        begun_ns = time.monotonic_ns()
        device.load(call)
        launched = device.launch(call, is_warm_up=False)
        launch_ns = time.monotonic_ns() - begun_ns
        launched_ns, done_ns = device.wait(launched)
        device.outputs(launched)
        for waiter in device.waiters:
            waiter.learn()
        # A short step may be over before its launch returns.
        return Step(launch_ns, max(done_ns - launched_ns, 1))


@contextmanager
def _device(n_rows: int, max_len: int, beside: int) -> Iterator[Served]:
    def make_waiter(source: Source) -> Waiter:
        uniform = Tape(0).uniform("worker0 device", "policy")
        return Waiter("worker0", DEVICE_DONE, source, PRESETS["spin"], TYPICAL_COSTS, uniform)

    config = DeviceConfig(kind="cuda", max_len=max_len)
    layout = SegmentLayout(1, n_devices=1, end_slot_bytes=2 * TOKEN_BYTES * n_rows)
    with Segment.create(layout, with_folder=True) as segment:
        geometry = geometry_of(model_of(config))
        device = CudaDevice(
            *(segment, 0, 1, "none", n_rows, config, geometry, _SEED, make_waiter, beside)
        )
        try:
            device.begin()
            yield Served(device)
        finally:
            device.close()


def steps_by_batch(beside: int, say: Say) -> Measured:
    """Measure decode steps of all batches, prompt chunks, launches, and steps after a pause.

    Parameters
    ----------
    beside
        Core of the thread that waits in the driver; `realrun.cores.ANY`: as this one's.

    Returns
    -------
    Measured
        Costs ``device_step``, ``device_prefill`` and ``device_launch``; facts ``model``, ``launch``
        (spread by batch) and ``gaps`` (pause, spread of the steps behind it, clocks before and
        after).
    """
    samples: list[tuple[str, float, list[int]]] = []
    launches: list[int] = []
    facts: dict[str, Any] = {"model": model_of(DeviceConfig(kind="cuda")), "launch": {}, "gaps": []}
    say("loading the model and capturing its graphs")
    with _device(max(BATCHES), DeviceConfig().max_len, beside) as served:
        for n_tokens in PROMPTS:
            say(f"prompt of {n_tokens} tokens")
            chunks = [served.prefill(1, n_tokens) for _ in range(_N_PROMPTS + 1)][1:]
            # Kernel by kernel, so that most of a chunk is over when its launch returns.
            took_ns = [chunk.launch_ns + chunk.step_ns for chunk in chunks]
            samples.append(("device_prefill", float(n_tokens), took_ns))
        for batch in BATCHES:
            say(f"batch {batch}")
            served.prefill(batch, _PROMPT)
            steps = [served.decode() for _ in range(_N_WARM_UP + _N)][_N_WARM_UP:]
            samples.append(("device_step", float(batch), [s.step_ns for s in steps]))
            facts["launch"][str(batch)] = spread(s.launch_ns for s in steps)
            if batch <= _LAUNCHED_UP_TO:
                launches += [s.launch_ns for s in steps]
        samples.append(("device_launch", 0.0, launches))
        for gap_ns, n in GAPS:
            say(f"steps after {gap_ns // MS} ms")
            facts["gaps"].append(_after_a_pause(served, gap_ns, n))
    return Measured(samples, facts)


def _after_a_pause(served: Served, gap_ns: int, n: int) -> dict[str, Any]:
    """Steps that begin a while after the one before ended; an idle GPU lowers its clocks."""
    index = 0
    served.prefill(_PAUSED_BATCH, _PROMPT)
    served.decode()
    before = clocks(index)
    steps = []
    for _ in range(n):
        time.sleep(gap_ns / 1e9)
        steps.append(served.decode())
    found = spread(s.step_ns for s in steps)
    return {"gap_ns": gap_ns, **found, "clocks_before": before, "clocks_after": clocks(index)}


def steps_by_room(beside: int, say: Say) -> Measured:
    """Measure decode steps with less and with more room for context.

    Parameters
    ----------
    beside
        See `steps_by_batch`.

    Returns
    -------
    Measured
        Facts ``rooms``: batch, tokens of room, spread.
    """
    rows = []
    for max_len in ROOMS:
        say(f"room for {max_len} tokens")
        with _device(_PAUSED_BATCH, max_len, beside) as served:
            served.prefill(_PAUSED_BATCH, _PROMPT)
            steps = [served.decode() for _ in range(_N_WARM_UP + _N)][_N_WARM_UP:]
        found = spread(s.step_ns for s in steps)
        rows.append({"batch": _PAUSED_BATCH, "max_len": max_len, **found})
    return Measured([], {"rooms": rows})
