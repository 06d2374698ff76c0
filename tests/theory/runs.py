"""Short runs of the model on the toy profile."""

from shmsim.config import EngineConfig
from shmsim.sim.loop import StepLoop
from shmsim.steptime import StepTime
from shmsim.tape import Tape
from shmsim.units import MS
from shmsim.workload import Request, Workload
from tests.toy import toy_profile

#: Whatever makes another way of waiting dearer than spinning.
FREE = dict.fromkeys(
    (
        "wake_latency",
        "park_cpu",
        "doze_cpu",
        "notify_armed",
        "timer_overshoot",
        "rehearsal",
        "worker_rehearsal",
    ),
    0,
)


def one_request(n_output):
    """A single request, so that every step after the first decodes one sequence."""
    return Workload((Request(0, 10, n_output),), 1)


def run(
    policy,
    workload,
    *,
    profile=None,
    step_time=StepTime(2 * MS),  # noqa: B008 - immutable
    workers=1,
    calls=1,
    scheduling="sync",
    max_sequences=64,
    max_batched_tokens=2048,
    in_flight=2,
    seed=1,
    replication=0,
    **more,
):
    """Records of one run of the model."""
    limits = max_sequences, max_batched_tokens
    engine = EngineConfig(workers, calls, scheduling, *limits, batches_in_flight=in_flight)
    tape = Tape(seed, replication)
    profile = profile or toy_profile()
    return StepLoop(profile, engine, step_time, workload, policy, tape, 10.0, **more).run()


def token_times(records):
    """When every token of every request left, by request."""
    return [request.token_ns for request in records.requests]
