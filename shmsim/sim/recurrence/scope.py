"""Which configs the recurrence can run: those in which nobody waits for anything but a message.

The order of what happens at one instant is the model's by definition (`shmsim.sim.clock`). The
recurrence knows it where it can matter; configs in which it might not are refused here.
"""

from shmsim.config import RunConfig
from shmsim.profile import COSTS, MachineProfile
from shmsim.run_costs import costs_of_run
from shmsim.sim.recurrence.device import is_known


def refuses(config: RunConfig, profile: MachineProfile) -> str | None:
    """Why a config needs an engine with events; None if the recurrence gives the same bits.

    Parameters
    ----------
    config, profile
        As for `shmsim.sim.run.simulate`.

    Returns
    -------
    str or None
        A reason that says what is in the way, and how it could be avoided.

    Raises
    ------
    ValueError
        As of `shmsim.run_costs.costs_of_run`.
    """
    return (
        _cores(config)
        or _payload(config)
        or _rings(config)
        or _engine(config)
        or _costs(config, profile)
    )


def _cores(config: RunConfig) -> str | None:
    cores = config.cores
    if cores.n or cores.quota or (cores.steal_every_ns and cores.steal_ns):
        return "threads share [cores]; without n, quota and steal each has a core to itself"
    return None


def _payload(config: RunConfig) -> str | None:
    if config.payload.carries_bulk:
        return "steps carry bulk ([payload]), whose copies and slots are queued for"
    return None


def _rings(config: RunConfig) -> str | None:
    engine, n_slots = config.engine, config.handoff.slots
    most = engine.calls_per_step * engine.depth
    if n_slots <= most:
        return (
            f"a ring of handoff.slots = {n_slots} can fill with {most} messages in flight, so that "
            f"its writer waits; {most + 1} slots are enough"
        )
    if engine.n_devices < engine.workers:
        return (
            f"only engine.devices = {engine.n_devices} of {engine.workers} workers have a device; "
            "the others keep nobody waiting, so that they can fall behind until the ring is full"
        )
    return None


def _engine(config: RunConfig) -> str | None:
    engine = config.engine
    if engine.max_batched_tokens < engine.max_sequences:
        return (
            f"engine.max_batched_tokens = {engine.max_batched_tokens} is less than max_sequences = "
            f"{engine.max_sequences}, so that a sequence may have to miss a step"
        )
    if engine.device_wait and engine.depth > 2:
        return (
            f"with engine.batches_in_flight = {engine.batches_in_flight} a reply thread can be at "
            "its next wait by engine.device_wait before its main thread learns from the last one; "
            "with 2 it cannot, nor without device_wait"
        )
    law = config.device.step_time
    if not is_known(law):
        return f"the step-time law {type(law).__name__} has no compiled form"
    return None


def _costs(config: RunConfig, profile: MachineProfile) -> str | None:
    costs = costs_of_run(config, profile).costs

    def least_ns(name: str) -> float:
        return min(point.quantiles[0] for point in costs[name].points)

    names = [name for name, (by, _) in COSTS.items() if by != "policy"]
    names += ["notify_further"] if "notify_further" in costs else []
    for name in names:
        # What is slower after a rest may be measured as negative; it counts as 0 then.
        if "slow_after" not in name and least_ns(name) < 0:
            return f"the profile's cost {name} can be negative: {least_ns(name):g} ns"
    reading = ("wait_exit", "ring_read", "decode_request")
    if sum(int(least_ns(name)) for name in reading) < 1:
        return (
            f"the costs {', '.join(reading)} can all be 0, so that several workers may read and "
            "launch at the very instant of the publication"
        )
    return None
