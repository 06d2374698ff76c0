"""Random runs of the model for the two engines, and where they first differ."""

from pathlib import Path

from hypothesis import strategies as st

from shmsim import difference
from shmsim.config import (
    CoresConfig,
    DeviceConfig,
    EngineConfig,
    HandoffConfig,
    PayloadConfig,
    RunConfig,
    WorkloadConfig,
)
from shmsim.message import largest_bytes
from shmsim.policies import POLICIES, PRESETS
from shmsim.profile import Curve, Distribution, MachineProfile
from shmsim.routing import MIB, ROUTE_PRESETS, SlotClass
from shmsim.units import MS, US
from tests.theory.noisy import noisy_profile
from tests.theory.test_payloads import bulk_profile
from tests.toy import constant, toy_profile

#: Policies of the first library, each compiled in a second or two; tests of all are slow.
FEW = ("spin", "yield", "vllm-1s", "competitive", "sleep-100ms", "park", "wake-ahead")


def _with_io_threads(profile):
    """Rings are carried by I/O threads, as with ZMQ."""
    points = tuple(Distribution.of([[ns, 2 * ns]]) for ns in (8 * US, 20 * US))
    profile.costs["io_thread_cpu"] = Curve("asleep_ns", (0.0, 2e6), points)
    return profile


def _with_costs_at_the_device(profile):
    """Waits for the device cost something else than waits for messages."""
    for name, ns in (("wake_latency", 9 * US), ("park_cpu", 3 * US), ("slow_after_park", US)):
        profile.costs[f"device_{name}"] = Curve("asleep_ns", (0.0,), (constant(ns),))
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0,), (constant(4 * US),))
    return profile


def _with_slow_rings(profile):
    """Rings reach further readers so late that timers of theirs end before."""
    points = tuple(Distribution.of([[ns, 2 * ns]]) for ns in (30 * US, 200 * US))
    profile.costs["notify_further"] = Curve("asleep_ns", (0.0, 2e6), points)
    return profile


PROFILES = {
    "toy": bulk_profile(toy_profile()),
    "free": bulk_profile(toy_profile(**dict.fromkeys(toy_profile().costs, 0))),
    "noisy": bulk_profile(noisy_profile()),
    "io-threads": _with_io_threads(bulk_profile(noisy_profile())),
    "at-device": _with_costs_at_the_device(bulk_profile(noisy_profile())),
    "io-threads-at-device": _with_io_threads(_with_costs_at_the_device(bulk_profile())),
    "slow-rings": _with_slow_rings(bulk_profile(noisy_profile())),
    "slow-rings-io-threads": _with_slow_rings(_with_io_threads(bulk_profile(noisy_profile()))),
    "lacking": toy_profile(),
    **{name: MachineProfile.shipped(name) for name in ("h200", "vm-2cpu", "h100-tp2")},
}


@st.composite
def engines(draw):
    workers = draw(st.integers(1, 3))
    return EngineConfig(
        workers=workers,
        calls_per_step=draw(st.integers(1, 2)),
        scheduling=draw(st.sampled_from(("sync", "async"))),
        max_sequences=draw(st.sampled_from((1, 2, 3, 8))),
        max_batched_tokens=draw(st.sampled_from((1, 5, 16, 64, 2048))),
        device_wait=draw(st.sampled_from(("", "", "spin", "park", "wake-ahead"))),
        devices=draw(st.sampled_from((0, 0, 1, workers))),
        batches_in_flight=draw(st.sampled_from((2, 2, 3, 5, 16))),
    )


def cores():
    shared = st.builds(
        CoresConfig,
        n=st.integers(1, 4),
        engines=st.sampled_from((1, 1, 1, 2)),
        quota=st.sampled_from((0.0, 0.0, 0.3, 0.9, 1.5)),
        period_ns=st.sampled_from((1 * MS, 10 * MS, 100 * MS)),
        slice_ns=st.sampled_from((100 * US, 700 * US, 1400 * US, 3 * MS)),
        tick_ns=st.sampled_from((100 * US, 1 * MS, 4 * MS)),
        steal_every_ns=st.sampled_from((0, 0, 2 * MS, 10 * MS)),
        steal_ns=st.sampled_from((200 * US, 3 * MS)),
        guarded=st.booleans(),
        slowdown=st.sampled_from((0.0, 0.0, 0.07)),
    )
    unshared = st.builds(
        CoresConfig,
        engines=st.integers(1, 2),
        quota=st.sampled_from((0.0, 0.0, 0.5, 2.0)),
        period_ns=st.sampled_from((2 * MS, 20 * MS)),
        guarded=st.booleans(),
    )
    return shared | unshared


#: Nine requests, bursts and pauses between them.
TRACE = Path(__file__).with_name("events_trace.csv")


def traces():
    """Requests that come as a trace has them, all of it or a window, faster or as recorded."""
    return st.builds(
        WorkloadConfig,
        kind=st.just("trace"),
        trace=st.just(str(TRACE)),
        requests=st.integers(1, 9),
        start_ns=st.sampled_from((0, 150 * MS)),
        speed=st.sampled_from((0.5, 1.0, 40.0)),
        max_output_tokens=st.sampled_from((0, 2)),
    )


def workloads():
    return drawn_workloads() | drawn_workloads() | traces()


@st.composite
def drawn_workloads(draw):
    prompt, output = draw(st.sampled_from((3, 20, 200))), draw(st.sampled_from((1, 2, 5, 9)))
    return WorkloadConfig(
        kind=draw(st.sampled_from(("closed", "open"))),
        requests=draw(st.integers(1, 6)),
        rate_per_s=draw(st.sampled_from((2.0, 50.0, 1000.0))),
        burstiness=draw(st.sampled_from((0.3, 1.0))),
        concurrency=draw(st.integers(1, 4)),
        prompt_p50=prompt,
        prompt_p95=prompt * draw(st.integers(1, 3)),
        output_p50=output,
        output_p95=output * draw(st.integers(1, 2)),
    )


def devices():
    affine = st.builds(
        DeviceConfig,
        step_ns=st.sampled_from((1 * US, 80 * US, 700 * US, 2 * MS, 9 * MS)),
        per_sequence_ns=st.sampled_from((0, 10 * US)),
        per_prefill_token_ns=st.sampled_from((0, 1 * US)),
        jitter=st.sampled_from((0.0, 0.01, 0.3)),
    )
    roofline = st.builds(
        DeviceConfig,
        kind=st.just("roofline"),
        model=st.just("qwen3-0.6b"),
        gpu=st.just("h200"),
        tensor_parallel=st.integers(1, 3),
        overhead_ns=st.sampled_from((0, 300 * US)),
        all_reduce_ns=st.sampled_from((0, 10 * US)),
        jitter=st.sampled_from((0.0, 0.1)),
    )
    return affine | affine | roofline


@st.composite
def payloads(draw):
    if draw(st.booleans()):
        return PayloadConfig()
    arena = draw(
        st.sampled_from(
            (
                (),
                (SlotClass(64 * MIB, 1),),
                (SlotClass(64 * MIB, 3),),
                (SlotClass(1 * MIB, 2), SlotClass(32 * MIB, 1)),
            )
        )
    )
    return PayloadConfig(
        bytes_per_prefill_token=draw(st.sampled_from((0, 10, 1 * MIB))),
        bytes_per_step=draw(st.sampled_from((0, 900, 1 * MIB, 20 * MIB, 80 * MIB))),
        routes=draw(st.sampled_from(tuple(ROUTE_PRESETS))),
        divert_bytes=draw(st.sampled_from((500, 1 * MIB, 8 * MIB))),
        arena=arena,
        memory=draw(
            st.sampled_from(("none", "pageable", "pinned", *(("registered",) if arena else ())))
        ),
        output_bytes=draw(st.sampled_from((0, 4096))),
    )


@st.composite
def configs(draw):
    engine = draw(engines())
    least = largest_bytes(engine.max_sequences)
    return RunConfig(
        engine=engine,
        handoff=HandoffConfig(
            slots=draw(st.sampled_from((2, 3, 8))),
            slot_bytes=draw(st.sampled_from((0, least + 1000, 10 * MIB))),
            replies=draw(st.sampled_from(("rank0", "all"))),
        ),
        workload=draw(workloads()),
        device=draw(devices()),
        cores=draw(cores()),
        payload=draw(payloads()),
        seed=draw(st.integers(0, 3)),
        delay_price=draw(st.sampled_from((1.0, 10.0))),
        pin=draw(st.booleans()),
    )


def policies(names=FEW):
    return st.sampled_from([PRESETS[name] for name in names])


def every_policy():
    """Every preset, and every class at its start."""
    return st.sampled_from([*PRESETS.values(), *(kind() for kind in POLICIES.values())])


def first_difference(simpy, events):
    """Name the earliest row that differs, with both sides; None if there is none."""
    found = difference.first_difference(simpy, events)
    if found is None:
        return None
    return f"{found.place}\n  SimPy  {found.expected}\n  events {found.found}"
