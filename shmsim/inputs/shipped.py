"""Profiles that come with the package.

Each is a TOML file in ``shmsim/data/profiles``: few numbers for each cost, beside them where they
come from. A point gives some of the quantiles p0, p10, p25, p50, p75, p90, p99, p100, in
nanoseconds. Between them the distribution is straight in the logarithm over the normal score, as a
log-normal law is; beyond the outermost one it is level. Quantiles below the median that are not
given mirror those above it. Where values are not all positive the values themselves stand in for
their logarithms.
"""

import tomllib
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.distribution import QUANTILE_GRID, Curve, Distribution
from shmsim.nearest import instead
from shmsim.provenance import Source

_LEVELS: Final = {
    "p0": 0.0, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99,
    "p100": 1.0,
}  # fmt: skip
_OUTERMOST: Final = 0.0005  # stands for the least and the greatest, whose normal score is infinite


class Shipped(NamedTuple):
    """The parts of a `shmsim.profile.MachineProfile`; see there."""

    costs: dict[str, Curve]
    policy_costs: dict[str, dict[str, Curve]]
    machine: dict[str, Any]
    measured_at: str
    sources: dict[str, Source]


def shipped_names() -> list[str]:
    """Names of the profiles that come with the package."""
    folder = files("shmsim") / "data" / "profiles"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def read_shipped(name: str) -> Shipped:
    """Read a profile that comes with the package.

    Raises
    ------
    ValueError
        If there is none of that name, or a cost in it lacks its mark or its source.
    """
    if name not in shipped_names():
        raise ValueError(
            f"no profile {name!r} comes with the package{instead(name, shipped_names())}"
        )
    path = files("shmsim") / "data" / "profiles" / f"{name}.toml"
    return parse_shipped(tomllib.loads(path.read_text(encoding="utf-8")), name)


def parse_shipped(content: dict[str, Any], name: str) -> Shipped:
    """Build the parts of a profile from what its file holds; ``as_in`` names another profile.

    Raises
    ------
    ValueError
        If a cost lacks its mark or its source, or its points are not ascending.
    """
    others: dict[str, Shipped] = {}
    costs: dict[str, Curve] = {}
    policy_costs: dict[str, dict[str, Curve]] = {}
    sources: dict[str, Source] = {}
    for cost, table in (*content["costs"].items(), ("policy_costs", content["policy_costs"])):
        try:
            source = Source.of(table.get("mark", ""), table.get("source", ""))
            other = table.get("as_in")
            if other is not None and other not in others:
                others[other] = read_shipped(other)
            if cost == "policy_costs":
                policy_costs = others[other].policy_costs if other else _policies(table["of"])
                sources["plan"] = sources["after"] = source
            else:
                sources[cost] = source
                costs[cost] = others[other].costs[cost] if other else _curve(table)
        except (KeyError, ValueError) as error:
            raise ValueError(f"shipped profile {name}, {cost}: {error}") from None
    return Shipped(costs, policy_costs, content["machine"], content["measured_at"], sources)


def _curve(table: dict[str, Any]) -> Curve:
    points = table["points"]
    xs = tuple(float(point.get("x", 0.0)) for point in points)
    if not xs or list(xs) != sorted(set(xs)):
        raise ValueError(f"needs points along ascending x, got {list(xs)}")
    return Curve(table.get("by", ""), xs, tuple(_distribution(point) for point in points))


def _policies(table: dict[str, Any]) -> dict[str, dict[str, Curve]]:
    return {
        policy: {what: _curve(both[what]) for what in ("plan", "after")}
        for policy, both in table.items()
    }


def _distribution(point: dict[str, Any]) -> Distribution:
    """The distribution of a point; ``n`` is 0 where it was not counted."""
    from scipy.special import ndtri  # slow to load, and the names of profiles do without

    given = {_LEVELS[key]: float(point[key]) for key in _LEVELS if key in point}
    levels, values = list(given), list(given.values())
    if 0.5 not in given or values != sorted(values):
        raise ValueError(f"needs p50 and ascending quantiles, got {point}")
    median = given[0.5]
    positive = values[0] > 0
    if positive and levels[0] == 0.5:
        mirrored = [(1.0 - u, median * median / given[u]) for u in reversed(levels[1:])]
        levels = [u for u, _ in mirrored] + levels
        values = [value for _, value in mirrored] + values
    score = ndtri(np.clip(levels, _OUTERMOST, 1.0 - _OUTERMOST))
    grid = ndtri(np.clip(np.minimum(QUANTILE_GRID, 1.0), _OUTERMOST, 1.0 - _OUTERMOST))
    if positive:
        quantiles = np.exp(np.interp(grid, score, np.log(values)))
    else:
        quantiles = np.interp(grid, score, values)
    return Distribution(
        int(point.get("n", 0)),
        median,
        float(point.get("low", median)),
        float(point.get("high", median)),
        tuple(round(float(q), 1) for q in quantiles),
        tuple(float(r) for r in point.get("replicates", (median,))),
    )
