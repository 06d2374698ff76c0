"""What an engine can do instead of a policy, and which of it comes nearest."""

from typing import Final, NamedTuple

from shmsim.export.alike import awake_until, plan_alike, window_of
from shmsim.export.engines import GENERIC, Engine, Window
from shmsim.export.pause import Round
from shmsim.export.price import typical_price
from shmsim.policies import BusySpin, Park, SpinThenPark
from shmsim.units import FOREVER_NS, format_ns
from shmsim.wait import WaitCosts, WaitPolicy

#: A window this near to the one that was asked for stands for it.
_CLOSE: Final = 0.1
#: How many times dearer something must be by the closed form to be given up for another.
_CLEARLY: Final = 1.2


class Candidate(NamedTuple):
    """One way in which an engine can wait.

    Parameters
    ----------
    policy
        What it then does.
    values
        Settings that bring it about, as (name, value).
    note
        What to mind; may be empty.
    is_default
        Whether it does so by itself.
    """

    policy: WaitPolicy
    values: tuple[tuple[str, str], ...]
    note: str
    is_default: bool


class Offers(NamedTuple):
    """All ways to wait that an engine has, as far as they matter here.

    Parameters
    ----------
    candidates
        At least one; none of them twice.
    exact
        The one that does what was asked for; None if none does.
    """

    candidates: tuple[Candidate, ...]
    exact: Candidate | None

    @property
    def default(self) -> Candidate | None:
        """What the engine does by itself."""
        return next((c for c in self.candidates if c.is_default), None)

    def nearest(self, costs: WaitCosts) -> Candidate:
        """The cheapest on steps of 2 ms with a short idle period among a hundred.

        That is a rough guess, so what the engine does by itself stays unless something is clearly
        cheaper.
        """
        prices = {c: typical_price(c.policy, costs) for c in self.candidates}
        found = min(self.candidates, key=prices.__getitem__)
        if self.default is not None and prices[self.default] < _CLEARLY * prices[found]:
            return self.default
        return found


def offers_for(
    engine: Engine, wanted: WaitPolicy, costs: WaitCosts, spin_round: Round | None
) -> Offers:
    """What a version of an engine offers to whoever wants a policy.

    Parameters
    ----------
    engine
        The rows of one version.
    wanted
        The policy.
    costs
        Of waiting, for policies that look at them.
    spin_round
        How long one round of a spin takes; an engine that counts rounds needs it.

    Raises
    ------
    ValueError
        If it is needed and not known.
    """
    if engine.name == GENERIC:
        own = Candidate(wanted, (), "", is_default=False)
        return Offers((own,), own)
    if engine.window is not None:
        if spin_round is None:
            raise ValueError(
                f"{engine.name} counts how often it looks, and how long one look takes here is not "
                "known; give a profile of a CPU that is known (-p), or time a loop of pause "
                "instructions and give what one takes, as in --round 30ns"
            )
        return _by_window(engine, engine.window, wanted, costs, spin_round)
    candidates = tuple(
        Candidate(offer.policy, offer.values, offer.note, not offer.values)
        for offer in engine.offers
    )
    exact = next((c for c in candidates if plan_alike(c.policy, wanted, costs)), None)
    return Offers(candidates, exact)


def _by_window(
    engine: Engine, window: Window, wanted: WaitPolicy, costs: WaitCosts, spin_round: Round
) -> Offers:
    asked_ns = window_of(wanted, costs)
    default = engine.setting(window.setting).default
    windows_ns = (0, FOREVER_NS, asked_ns, awake_until(wanted, costs))
    values = [default, *(_value(window, ns, spin_round) for ns in windows_ns if ns is not None)]
    candidates = tuple(
        _candidate(window, value, spin_round, is_default=value == default)
        for value in dict.fromkeys(values)
    )
    if asked_ns is None:
        return Offers(candidates, None)
    value = _value(window, asked_ns, spin_round)
    got_ns = window_ns_of(window, value, spin_round)
    is_near = got_ns == asked_ns or abs(got_ns - asked_ns) <= _CLOSE * asked_ns
    found = next(c for c in candidates if dict(c.values)[window.setting] == value)
    return Offers(candidates, found if is_near else None)


def _value(window: Window, window_ns: int, spin_round: Round) -> str:
    """The setting for a window, as near as it gets."""
    if window_ns >= FOREVER_NS and window.endless:
        return window.endless
    count = max(round(window_ns / (window.rounds * spin_round.ns)), window.lowest)
    return str(min(count, window.highest) if window.highest else count)


def window_ns_of(window: Window, value: str, spin_round: Round) -> int:
    """How long a value of the setting looks, nanoseconds."""
    if window.endless and value == window.endless:
        return FOREVER_NS
    return round(int(value) * window.rounds * spin_round.ns)


def _candidate(window: Window, value: str, spin_round: Round, *, is_default: bool) -> Candidate:
    window_ns = window_ns_of(window, value, spin_round)
    policy: WaitPolicy = SpinThenPark(window_ns)
    if window_ns == 0:
        policy = Park()
    elif window_ns >= FOREVER_NS:
        policy = BusySpin()
    note = f"with {window.setting} {value} it looks {_shown(window_ns)} before it sleeps"
    return Candidate(
        policy,
        ((window.setting, value),),
        f"{note}; {window.note}" if window.note else note,
        is_default,
    )


def _shown(window_ns: int) -> str:
    if window_ns >= FOREVER_NS:
        return "for ever"
    return f"for {format_ns(window_ns)}" if window_ns else "only once"
