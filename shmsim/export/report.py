"""From a policy to an answer: what to set, why, and what it costs."""

import math
from pathlib import Path
from typing import Final, NamedTuple

from shmsim.config import NamedPolicy, RunConfig
from shmsim.export.beside import how_beside
from shmsim.export.choose import Candidate, Offers, offers_for
from shmsim.export.engines import GENERIC, Engine, Setting, load_engine
from shmsim.export.formats import Answer
from shmsim.export.judge import Progress, Verdict, judge
from shmsim.export.pause import Round
from shmsim.export.price import STEP_NS, context, trained
from shmsim.export.shm import shm_need
from shmsim.policies.parameters import parameters_of
from shmsim.profile import MachineProfile
from shmsim.routing import MIB, VLLM_ARENA
from shmsim.run_costs import notes_on_costs
from shmsim.units import FOREVER_NS, MS, format_ns
from shmsim.wait import KIND_NAMES, TYPICAL_COSTS, WaitCosts, WaitPolicy

_ON: Final = "1"
#: Cores that something must gain to be worth a setting.
_WORTH: Final = 0.01


class Request(NamedTuple):
    """What is to be exported, and what is known.

    Parameters
    ----------
    wanted
        The policy.
    engine
        The rows of one version.
    config
        Workload and engine; None if not given.
    profile
        What waiting costs; None if not given.
    spin_round
        How long one round of a spin takes; None if not known.
    replications
        Runs of each way to wait, if both config and profile are there.
    policy_path
        The file of the policy, if it has one.
    """

    wanted: NamedPolicy
    engine: Engine
    config: RunConfig | None
    profile: MachineProfile | None
    spin_round: Round | None
    replications: int
    policy_path: Path | None = None


def export(request: Request, progress: Progress) -> Answer:
    """Choose settings for a policy.

    An engine's default is kept unless something else does what was asked for, or comes nearest to
    it, and is not shown by the model to gain nothing.

    Raises
    ------
    ValueError
        If the engine counts rounds and nobody knows how long one takes, or the model lacks a cost.
    """
    engine, config = request.engine, request.config
    costs = TYPICAL_COSTS
    if request.profile is not None:
        costs = request.profile.wait_costs(config.delay_price if config else 10.0)
    offers = offers_for(engine, request.wanted.policy, costs, request.spin_round)
    said = [f"{engine.name} {engine.version}: {engine.waits}"] if engine.waits else []
    if engine.name != GENERIC and engine.is_newer_than_the_table:
        said.append(
            f"the table was made for {engine.newest}; see whether {engine.version} still has these"
        )
    if config is not None and request.profile is not None and engine.name != GENERIC:
        chosen, reasons = _judged(request, offers, progress)
        reasons += notes_on_costs(config, request.profile)
    else:
        chosen, reasons = _ranked(request, offers, costs)
    said += reasons
    if chosen.note and not chosen.is_default:
        said.append(f"mind: {chosen.note}")
    if engine.name == GENERIC:
        said += _in_words(request.wanted.policy, costs, request.spin_round)
    elif engine.window is not None and request.spin_round is not None:
        said.append(request.spin_round.source)
    settings = [] if chosen.is_default else [(engine.setting(n), v) for n, v in chosen.values]
    more, remarks = _by_config(engine, config) if config else ([], [])
    settings += more
    said += remarks
    need = shm_need(
        engine,
        {row.name: value for row, value in settings},
        config.engine.workers if config else 1,
    )
    if need.mib:
        workers = "" if config else "; for one worker, give --config for more"
        said.append(f"/dev/shm: at least {need.mib} MiB ({need.parts}{workers})")
    beside: list[tuple[str, str]] = []
    if not settings:
        said.append("nothing to set" if offers.exact else "no setting of its own to change")
    if offers.exact is None:
        for row in engine.beside:
            variable, how = how_beside(engine, row, request.wanted, request.policy_path, costs)
            beside.append(variable)
            said += how
        if engine.name != GENERIC and not engine.beside:
            said += [
                f"from {engine.name} {row.since} on this package carries {request.wanted.name} out "
                f"({row.page})"
                for row in load_engine(engine.name).beside
            ]
    return Answer(engine, tuple(settings), need.mib, tuple(said), tuple(beside))


def _ranked(request: Request, offers: Offers, costs: WaitCosts) -> tuple[Candidate, list[str]]:
    """Choose without a model."""
    name, engine = request.wanted.name, request.engine
    missing = [
        what
        for what, given in (("--config", request.config), ("-p PROFILE", request.profile))
        if given is None
    ]
    judged = f"; give {' and '.join(missing)} to see what that costs" if missing else ""
    if offers.exact is not None:
        if engine.name == GENERIC:
            return offers.exact, [f"{name}, for a hand-off of your own"]
        if offers.exact.is_default:
            return offers.exact, [f"{name} is what it does by itself: keep the default"]
        return offers.exact, [f"{_settings(offers.exact)} makes it wait as {name} does{judged}"]
    found = offers.nearest(costs)
    return found, [
        _cannot(request),
        f"nearest of what it has: {describe(found.policy)} "
        f"({'its default' if found.is_default else _settings(found)}), the cheapest of "
        f"{len(offers.candidates)} on steps of {format_ns(STEP_NS)}{judged}",
    ]


def _judged(request: Request, offers: Offers, progress: Progress) -> tuple[Candidate, list[str]]:
    """Choose by the model."""
    assert request.config is not None
    assert request.profile is not None
    config = request.config
    *verdicts, wanted = judge(
        config,
        request.profile,
        # Spinners of these engines do not give way; those of this library do.
        [
            *((c.policy, False) for c in offers.candidates),
            (request.wanted.policy, config.cores.guarded),
        ],
        request.replications,
        progress,
    )
    priced = dict(zip(offers.candidates, verdicts, strict=True))
    default = offers.default
    assert default is not None, "every engine does something by itself"
    lines = []
    chosen = offers.exact
    if chosen is None:
        chosen = min(priced, key=lambda candidate: priced[candidate].price.value)
        if priced[chosen].gain_over(priced[default]).value < _WORTH:
            chosen = default
        of = "its default" if chosen.is_default else _settings(chosen)
        more = wanted.gain_over(priced[chosen]).text()
        lines = [
            _cannot(request),
            f"nearest of what it has: {describe(chosen.policy)} ({of})",
            f"in the model {request.wanted.name}: {_figures(wanted)}",
            f"in the model the nearest: {_figures(priced[chosen])}; its price, cores plus "
            f"{config.delay_price:g} times the share of delay, is {more} higher",
        ]
    if chosen.is_default:
        return chosen, [*lines, "that is what it does by itself: keep the default"]
    gain = priced[chosen].gain_over(priced[default])
    lines.append(
        f"{_settings(chosen)}: {_figures(priced[chosen])}, price {gain.text()} lower than of its "
        f"default ({_figures(priced[default])})"
    )
    if gain.value < _WORTH or math.isnan(gain.low) or gain.low <= 0:
        return default, [
            *lines,
            f"no gain of {_WORTH} cores or more that could be told from chance: keep the default",
        ]
    return chosen, lines


def _cannot(request: Request) -> str:
    engine = request.engine
    why = f" ({engine.no_window})" if engine.no_window else ""
    return (
        f"{engine.name} {engine.version} cannot be told to wait as {request.wanted.name} does: "
        f"{describe(request.wanted.policy)}{why}"
    )


def _settings(candidate: Candidate) -> str:
    return " ".join(
        f"{name}{' ' if name.startswith('-') else '='}{value}" for name, value in candidate.values
    )


def _figures(verdict: Verdict) -> str:
    return f"TPOT {verdict.tpot_ns.text(MS)} ms on {verdict.cores.text()} cores"


def _by_config(engine: Engine, config: RunConfig) -> tuple[list[tuple[Setting, str]], list[str]]:
    """Settings for what a config says beside the policy, and remarks on what cannot be set."""
    settings: list[tuple[Setting, str]] = []
    remarks: list[str] = []
    keys = dict(engine.by_key)
    has = {row.name: row for row in engine.settings}
    plan = config.payload.plan
    name = keys.get("arena")
    if plan.classes and name is not None:
        if name in has:
            settings.append((has[name], _ON))
            if plan != VLLM_ARENA:
                remarks.append(
                    f"{name} has slots of its own, 8 of 256 MiB from 8 MiB on, and not those of "
                    "payload.arena"
                )
        else:
            try:
                engine.setting(name)
            except ValueError as error:
                remarks.append(f"payload.arena cannot be had: {error}")
    name = keys.get("slot_bytes")
    mib = -(-config.handoff.slot_bytes // MIB)
    if name in has and config.handoff.slot_bytes >= MIB and str(mib) != has[name].default:
        settings.append((has[name], str(mib)))
    for scheduling in ("sync", "async"):
        flag = keys.get(scheduling)
        if flag in has and config.engine.scheduling == scheduling:
            remarks.append(
                f'the config has engine.scheduling = "{scheduling}", which is not how '
                f"{engine.name} {engine.version} schedules by itself: what is said here holds "
                f"with {flag}"
            )
    if config.engine.depth > 2:
        remarks.append(
            f"the config has engine.batches_in_flight = {config.engine.batches_in_flight}, and "
            f"{engine.name} {engine.version} has no setting for that: with asynchronous scheduling "
            "it has two"
        )
    return settings, remarks


def describe(policy: WaitPolicy) -> str:
    """Write a policy with its parameters."""
    fields = ", ".join(
        f"{name.removesuffix('_ns')} {_value(name, value)}"
        for name, value in parameters_of(policy).items()
    )
    return f"{type(policy).__name__} {fields}".rstrip()


def _value(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not name.endswith("_ns"):
        return f"{value:g}"
    return format_ns(value) if value >= 0 else "B"


def _in_words(policy: WaitPolicy, costs: WaitCosts, spin_round: Round | None) -> list[str]:
    """What a policy does in a wait for a step, and how many rounds its spins are."""
    lines = [describe(policy), f"in a wait for a step, after some of {format_ns(STEP_NS)}:"]
    began_ns = 0
    for stage in trained(policy, costs).plan(context(costs)):
        if stage.until_ns <= began_ns:
            continue
        until = "for ever" if stage.until_ns >= FOREVER_NS else f"until {format_ns(stage.until_ns)}"
        line = f"  {KIND_NAMES[stage.kind]} {until}"
        if KIND_NAMES[stage.kind] == "spin" and stage.until_ns < FOREVER_NS and spin_round:
            line += f" ({(stage.until_ns - began_ns) / spin_round.ns:.0f} rounds)"
        lines.append(line)
        began_ns = stage.until_ns
        if stage.until_ns >= FOREVER_NS:
            break
    if spin_round is not None:
        lines.append(spin_round.source)
    return lines
