"""Runs the model for a config and a policy."""

from shmsim.config import CoresConfig, EngineConfig, RunConfig, parse_policy
from shmsim.laws import check_laws
from shmsim.message import largest_bytes
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.run_costs import costs_of_run
from shmsim.sim.box import Box
from shmsim.sim.contended import CARRYING
from shmsim.sim.cores import AMPLE, Schedule
from shmsim.sim.loop import StepLoop
from shmsim.tape import Tape
from shmsim.wait import WaitPolicy


def simulate(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    *,
    traces: bool = False,
) -> RunRecords:
    """Run the model once; the same arguments give the same records, byte for byte.

    Parameters
    ----------
    config, policy, profile, replication
        What to run, on which costs, with which luck.
    traces
        Whether to record who ran on which core and when, where cores are modelled.

    Returns
    -------
    RunRecords
        Of all engines together, if the config has several: their processes are called
        ``"engine0/scheduler"`` and so on, and requests and steps are numbered engine by engine.
    """
    return together(simulate_box(config, policy, profile, replication, traces=traces))


def together(found: list[RunRecords]) -> RunRecords:
    """The records of all engines of one box as one; of the cores each has the same."""
    if len(found) == 1:
        return found[0]
    return RunRecords(
        [row for records in found for row in records.steps],
        [row for records in found for row in records.waits],
        [row for records in found for row in records.requests],
        [row for records in found for row in records.processes],
        slices=found[0].slices,
        cores=found[0].cores,
        meta=found[0].meta,
    )


def simulate_box(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    *,
    traces: bool = False,
) -> list[RunRecords]:
    """Run as many engines as the config says on one box; their records, one of each.

    Parameters are those of `simulate`. Every engine has a workload and luck of its own; what is
    recorded of the cores is the same for all.
    """
    profile = costs_of_run(config, profile)
    engine, n_engines = config.engine, config.cores.engines
    box = Box(
        _schedule(config.cores),
        n_engines * (1 + engine.workers),
        pins=config.pin,
        is_guarded=config.cores.guarded,
        slowdown=config.cores.slowdown,
        tape=Tape(config.seed, replication),
        traces=traces,
    )
    loops = []
    for number in range(n_engines):
        tape = Tape(config.seed, n_engines * replication + number)
        loops.append(
            StepLoop(
                profile,
                engine,
                config.device.step_time,
                config.workload.build(tape),
                policy,
                tape,
                config.delay_price,
                n_replies=engine.workers if config.handoff.replies == "all" else 1,
                n_slots=config.handoff.slots,
                payload=config.payload,
                slot_bytes=config.handoff.slot_bytes or largest_bytes(engine.max_sequences),
                device_policy=_device_policy(engine),
                box=box,
                shares_cores=config.shares_cores(),
                name=f"engine{number}/" if n_engines > 1 else "",
            )
        )
    box.run(loops)
    found = [loop.records() for loop in loops]
    sign_and_check(found, config, policy, profile, replication)
    return found


def sign_and_check(
    found: list[RunRecords],
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int,
    *,
    has_steps: bool = True,
) -> None:
    """Say in the records of each engine where they come from, and hold them to the laws.

    Without steps and waits (``has_steps`` false) to those that look at neither.
    """
    engine = config.engine
    # Beside its main thread a process may have one for replies, and one that carries rings.
    n_threads = (2 if engine.scheduling == "async" else 1) + (CARRYING in profile.costs)
    for number, records in enumerate(found):
        records.meta = {
            "world": "model",
            "policy": repr(policy),
            "seed": config.seed,
            "replication": config.cores.engines * replication + number,
        }
        check_laws(
            records,
            n_workers=engine.workers,
            n_threads=n_threads,
            n_devices=engine.n_devices,
            has_steps=has_steps,
        )


def _device_policy(engine: EngineConfig) -> WaitPolicy | None:
    return parse_policy(engine.device_wait).policy if engine.device_wait else None


def has_cores(cores: CoresConfig) -> bool:
    """Whether threads share cores in the model; if not, each has one, of which nothing is known."""
    return _schedule(cores) != AMPLE


def _schedule(cores: CoresConfig) -> Schedule:
    if not (cores.n or cores.quota or (cores.steal_every_ns and cores.steal_ns)):
        return AMPLE
    return Schedule(
        cores.n,
        cores.slice_ns,
        cores.tick_ns,
        int(cores.quota * cores.period_ns),
        cores.period_ns,
        cores.steal_every_ns,
        cores.steal_ns,
    )
