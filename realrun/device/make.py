"""Makes the device that a run asks for; torch is loaded by those that compute, and by no other."""

from collections.abc import Callable
from pathlib import Path

from realrun.device.bulk import NO_UPLOADS, Uploads
from realrun.device.echo import EchoDevice
from realrun.device.interface import Device
from realrun.device.receiver import NoDevice
from realrun.model.geometry import geometry_of, model_of
from realrun.ring import RingReader
from realrun.segment import Segment
from realrun.spec import RunSpec
from realrun.waiter import Source, Waiter
from shmsim.extras import how_to_add
from shmsim.tape import Tape
from shmsim.wait import DEVICE_DONE

_JOIN_S = 60.0


def make_device(
    segment: Segment, spec: RunSpec, rank: int, tape: Tape, rehearse: Callable[[Waiter], None]
) -> Device:
    """The device of one worker.

    Parameters
    ----------
    rehearse
        A harmless repeat of the work that follows a wait for it, on the thread that waits.

    Raises
    ------
    RuntimeError
        If it cannot be had; says why, and what to do.
    """
    config, n_ranks = spec.device, spec.engine.n_devices
    if not config.computes:
        return EchoDevice(segment, rank, config.step_time, tape, spec.echo_guard_ns)
    if rank >= n_ranks:
        return NoDevice()

    def make_waiter(source: Source) -> Waiter:
        return Waiter(
            f"worker{rank}",
            DEVICE_DONE,
            source,
            spec.device_policy,
            spec.costs,
            tape.uniform(f"worker{rank} device", "policy"),
            rehearse,
        )

    geometry = geometry_of(model_of(config))
    n_rows = spec.engine.max_sequences
    core = spec.cores_of(1 + rank).device
    bulk = spec.payload
    uploads = NO_UPLOADS
    if bulk.carries_bulk:
        most_bytes = bulk.bytes_of(spec.engine.max_batched_tokens)
        uploads = Uploads(bulk.memory, most_bytes, spec.engine.depth)
    try:
        import torch
    except ModuleNotFoundError:
        raise RuntimeError(
            f'device.kind = "{config.kind}" needs torch, which is not installed here; leave '
            f"device.kind out for the echo device, or install torch, {how_to_add('torch')}"
        ) from None
    if config.kind == "cuda":
        from realrun.device.cuda import CudaDevice

        return CudaDevice(
            *(segment, rank, n_ranks, spec.collective, n_rows),
            *(config, geometry, spec.seed, make_waiter, core),
            uploads=uploads,
        )
    from realrun.device.cpu import CpuDevice
    from realrun.model.collectives import join
    from realrun.model.decoder import Decoder
    from realrun.model.weights import random_weights

    def make_decoder() -> Decoder:
        folder = Path(segment.ticket.folder)
        all_reduce = join(spec.collective, rank, n_ranks, folder, "cpu", _JOIN_S)
        weights = random_weights(geometry, spec.seed, "cpu", torch.float32, rank, n_ranks)
        decoder = Decoder(geometry, weights, n_rows, config.max_len, all_reduce, config.kernels)
        decoder.prepare()
        return decoder

    waiter = make_waiter(RingReader(segment, segment.layout.ends[rank], 0))
    return CpuDevice(
        *(segment, rank, n_rows, config.max_len, waiter, geometry, make_decoder),
        *(config.sleep_ns, core, spec.echo_guard_ns, uploads),
    )
