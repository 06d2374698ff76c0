"""Which engine runs a config: the fastest that gives the bits of the definition, SimPy."""

from typing import Final

from shmsim.config import RunConfig
from shmsim.metrics import Summary, summarize
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.wait import WaitPolicy

#: From the fastest to the one that can run everything.
ENGINES: Final = ("recurrence", "events", "simpy")


def choose(config: RunConfig, profile: MachineProfile, engine: str = "auto") -> str:
    """Name the engine for a config.

    Parameters
    ----------
    config, profile
        As of `shmsim.sim.run.simulate`.
    engine
        One of `ENGINES`, or ``"auto"`` for the first of them that can run the config.

    Raises
    ------
    ValueError
        If there is no engine of that name, or it cannot run the config; says why, and which can.
    """
    if engine != "auto" and engine not in ENGINES:
        raise ValueError(f"no engine {engine!r}; there are auto, {', '.join(ENGINES)}")
    if engine != "auto":
        reason = _reason(engine, config, profile)
        if reason is not None:
            able = [name for name in ENGINES if _reason(name, config, profile) is None]
            raise ValueError(
                f"the engine {engine!r} cannot run this config: {reason}; take "
                f"{' or '.join(map(repr, able))}, or 'auto'"
            )
        return engine
    return next(name for name in ENGINES if _reason(name, config, profile) is None)


def simulate_with(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    engine: str = "auto",
) -> RunRecords:
    """`shmsim.sim.run.simulate` by any engine; all give the same records, bit for bit.

    Parameters
    ----------
    config, policy, profile, replication
        As of `simulate`.
    engine
        As of `choose`.

    Raises
    ------
    ValueError
        As of `choose`, and where `simulate` raises one.
    TypeError
        If the policy does not compile and an engine was named that needs it to; with ``"auto"``
        such a policy runs in SimPy.
    """
    name = _engine_of(config, policy, profile, engine)
    if name == "recurrence":
        from shmsim.sim.recurrence import UndecidedError, simulate_recurrence

        try:
            return simulate_recurrence(config, policy, profile, replication)
        except UndecidedError:
            if engine != "auto":
                raise
            name = _instead_of_recurrence(config, profile)
    if name == "events":
        from shmsim.sim.events import simulate_events

        return simulate_events(config, policy, profile, replication)
    from shmsim.sim.run import simulate

    return simulate(config, policy, profile, replication)


def summarize_with(
    config: RunConfig,
    policy: WaitPolicy,
    profile: MachineProfile,
    replication: int = 0,
    engine: str = "auto",
) -> Summary:
    """The figures of `simulate_with`'s records, bit for bit, by compiled engines without rows.

    For sliders: the first run of a policy class compiles, the others fly.

    Parameters and errors are those of `simulate_with`. Of the laws, a compiled engine that keeps no
    steps and waits is held to those that look at neither.
    """
    name = _engine_of(config, policy, profile, engine)
    if name == "recurrence":
        from shmsim.sim.recurrence import UndecidedError, run_many

        try:
            return run_many(config, [policy], profile, replication, threads=1)[0]
        except UndecidedError:
            if engine != "auto":
                raise
            name = _instead_of_recurrence(config, profile)
    if name == "events":
        from shmsim.sim.events import simulate_arrays

        return simulate_arrays(config, policy, profile, replication).summary()
    from shmsim.sim.run import simulate

    return summarize(simulate(config, policy, profile, replication))


def _engine_of(config: RunConfig, policy: WaitPolicy, profile: MachineProfile, engine: str) -> str:
    """As `choose`, where nobody named an engine one that can run the policy as well."""
    name = choose(config, profile, engine)
    if engine == "auto" and name != "simpy" and not compiles(policy):
        return "simpy"
    return name


def _instead_of_recurrence(config: RunConfig, profile: MachineProfile) -> str:
    """Who takes a policy that the recurrence leaves undecided."""
    return "events" if _reason("events", config, profile) is None else "simpy"


def _reason(engine: str, config: RunConfig, profile: MachineProfile) -> str | None:
    """Why an engine cannot run a config; numba is loaded only where it is asked for."""
    if engine == "recurrence":
        from shmsim.sim.recurrence import refuses

        return refuses(config, profile)
    if engine == "events":
        from shmsim.sim.events import supports

        return supports(config, profile)
    return None


def compiles(policy: WaitPolicy) -> bool:
    """Whether a policy stays within what the compiled engines can compile; compiles it if so."""
    from shmsim.sim.compiled import check_policy

    try:
        check_policy(policy, 0)
    except TypeError:
        return False
    return True
