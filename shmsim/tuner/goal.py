"""What a choice of policy is for: limits against the default, then one figure to be least."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from shmsim.nearest import did_you_mean
from shmsim.units import US, format_ns, parse_duration_ns

CORES: Final = "cores"  #: CPU of scheduler and workers together
MEMORY: Final = "memory_bytes"  #: shared memory of rings and arena

_FIGURE: Final = re.compile(r"(tpot|itl|ttft-idle|ttft)(?:-(mean|p50|p99))?")
_PLAIN: Final = {"cpu": CORES, "memory": MEMORY}
#: As they are written; what somebody may have meant.
_NAMES: Final = (
    *_PLAIN,
    *(
        f"{name}{tail}"
        for name in ("tpot", "itl", "ttft-idle", "ttft")
        for tail in ("", "-mean", "-p50", "-p99")
    ),
)
_LIMIT: Final = re.compile(r"(\S+)\s*<=\s*(\S+)")
_PRICE: Final = re.compile(r"price[\s=]\s*(\S+)")

#: Part of a limit that does not matter either way, and the least there is of it.
_TOLERATED: Final = 0.25
_LEAST_SHARE: Final = 0.001
_LEAST_NS: Final = 10.0 * US
#: Differences that do not matter: a hundredth of a core, half a percent of anything else.
_ZONE_CORES: Final = 0.01
_ZONE_SHARE: Final = 0.005

Figures = Mapping[str, float]


class Limit(NamedTuple):
    """How much more than with the default a figure may be.

    Parameters
    ----------
    figure
        One of `shmsim.figures.FIGURES`, or `CORES`, or `MEMORY`.
    amount
        Nanoseconds, or a share of the default's.
    is_share
        Which of the two.
    """

    figure: str
    amount: float
    is_share: bool

    @property
    def tolerance(self) -> float:
        """How far from the limit nobody minds: a quarter of it, and 0.1 % or 10 us at least."""
        return max(_TOLERATED * self.amount, _LEAST_SHARE if self.is_share else _LEAST_NS)

    def excess(self, figures: Figures, default: Figures) -> float:
        """How much above the limit a run is; the default's is of the same tape."""
        value, base = figures[self.figure], default[self.figure]
        return (value / base - 1.0 if self.is_share else value - base) - self.amount

    def text(self) -> str:
        """As it is written."""
        amount = f"{100 * self.amount:g}%" if self.is_share else format_ns(self.amount, 9)
        plain = amount.replace(" ", "").replace("µ", "u")
        return f"{_written(self.figure)} <= +{plain}"


class Judged(NamedTuple):
    """A run by a goal.

    Parameters
    ----------
    objective
        What is to be least: cores, the price in cores, or a share of the default's figure.
    excess
        How much above each limit, negative below it.
    """

    objective: float
    excess: tuple[float, ...]


class Goal(NamedTuple):
    """What is better.

    Parameters
    ----------
    limits
        What must be kept to.
    figure
        What is to be least then: as of a limit; empty for the price.
    delay_price
        *r* of the price ``cores + r (TPOT / TPOT of the default - 1)``.
    """

    limits: tuple[Limit, ...]
    figure: str
    delay_price: float = 0.0

    @property
    def zone(self) -> float:
        """A difference in the objective that does not matter."""
        return _ZONE_CORES if self.figure in ("", CORES) else _ZONE_SHARE

    @property
    def figures(self) -> tuple[str, ...]:
        """All figures that it looks at, in order."""
        last = ("tpot_mean_ns", CORES) if not self.figure else (self.figure,)
        return tuple(dict.fromkeys((*(limit.figure for limit in self.limits), *last)))

    def judge(self, figures: Figures, default: Figures) -> Judged:
        """Judge a run against the default's run of the same tape."""
        excess = tuple(limit.excess(figures, default) for limit in self.limits)
        if not self.figure:
            delay = figures["tpot_mean_ns"] / default["tpot_mean_ns"] - 1.0
            return Judged(figures[CORES] + self.delay_price * delay, excess)
        if self.figure == CORES:
            return Judged(figures[CORES], excess)
        return Judged(figures[self.figure] / default[self.figure], excess)

    def rank(self, judged: Judged) -> tuple[float, float, float]:
        """What to sort by: how far limits are broken, the objective, what is left of the limits.

        Broken counts in tolerances, the objective in zones, so that of two whose difference does
        not matter the one comes first that is farther from its limits.
        """
        shares = [
            above / limit.tolerance for above, limit in zip(judged.excess, self.limits, strict=True)
        ]
        broken = sum(max(share, 0.0) for share in shares)
        return broken, float(round(judged.objective / self.zone)), max(shares, default=0.0)

    def breaks(self, judged: Judged) -> bool:
        """Whether a limit is broken by more than its tolerance."""
        pairs = zip(judged.excess, self.limits, strict=True)
        return any(above > limit.tolerance for above, limit in pairs)

    def without(self, figures: set[str]) -> "Goal":
        """The goal without its limits on some figures."""
        return self._replace(limits=tuple(x for x in self.limits if x.figure not in figures))

    def text(self) -> str:
        """As it is written, and as `parse_goal` reads it."""
        last = _written(self.figure) if self.figure else f"price {self.delay_price:g}"
        if not self.limits:
            return last
        return ", ".join([*(limit.text() for limit in self.limits), f"then {last}"])


def parse_goal(text: str) -> Goal:
    """Read a goal: ``LIMIT, ..., then FIGURE``, or ``price R`` (also ``price=R``) for the figure.

    Figures are ``cpu``, ``memory``, and ``tpot``, ``itl``, ``ttft``, ``ttft-idle`` (that of
    requests which find the engine idle) with ``-mean``, ``-p50`` (unless said) or ``-p99``. A limit
    is ``FIGURE <= +1%`` or ``FIGURE <= +1ms``: more than the default's.

    Raises
    ------
    ValueError
        If it cannot be read; says which part, and what is allowed.

    Examples
    --------
    >>> parse_goal("tpot-p99 <= +1%, ttft-idle <= +1ms, then cpu").text()
    'tpot-p99 <= +1%, ttft-idle <= +1ms, then cpu'
    >>> parse_goal("price 10")
    Goal(limits=(), figure='', delay_price=10.0)
    """
    *limits, last = [part.strip() for part in text.split(",")]
    last = last.removeprefix("then ").strip()
    found = tuple(_parse_limit(limit) for limit in limits)
    price = _PRICE.fullmatch(last)
    if price is None:
        if "<=" in last:
            raise ValueError(f"goal {text!r} ends in a limit; add what is to be least: 'then cpu'")
        return Goal(found, _read_figure(last))
    try:
        delay_price = float(price[1])
    except ValueError:
        delay_price = -1.0
    if not 0 <= delay_price <= 1e6:
        raise ValueError(f"goal: the price must be a number from 0 to 1e6, got {price[1]!r}")
    return Goal(found, "", delay_price)


def _parse_limit(text: str) -> Limit:
    parts = _LIMIT.fullmatch(text)
    if parts is None or not parts[2].startswith("+"):
        raise ValueError(
            f"goal: cannot read the limit {text!r}; write it as 'tpot-p99 <= +1%' or "
            "'ttft-idle <= +1ms', which is more than the default's"
        )
    figure, amount = _read_figure(parts[1]), parts[2].removeprefix("+")
    if amount.endswith("%"):
        try:
            share = float(amount[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < float("inf"):
            raise ValueError(f"goal: {text!r} needs a percentage of at least 0")
        return Limit(figure, share, is_share=True)
    if not figure.endswith("_ns"):
        raise ValueError(f"goal: {text!r} must be a percentage, as in '{parts[1]} <= +10%'")
    try:
        return Limit(figure, float(parse_duration_ns(amount)), is_share=False)
    except ValueError as error:
        raise ValueError(f"goal: {text!r}: {error}") from None


def _read_figure(text: str) -> str:
    if text in _PLAIN:
        return _PLAIN[text]
    parts = _FIGURE.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"goal: unknown figure {text!r}{did_you_mean(text, _NAMES)}; there are cpu, "
            "memory, and tpot, itl, ttft, ttft-idle with -mean, -p50 or -p99"
        )
    name = parts[1].replace("ttft-idle", "ttft_after_idle")
    return f"{name}_{parts[2] or 'p50'}_ns"


def _written(figure: str) -> str:
    for text, name in _PLAIN.items():
        if figure == name:
            return text
    name = figure.removesuffix("_ns").replace("ttft_after_idle", "ttft-idle")
    return name.replace("_p50", "").replace("_", "-")
