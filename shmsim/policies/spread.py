"""How far waits fall from where they were expected, and when it pays to be awake.

The law is a logistic one with a scale of its own on either side of the expectation, and a share of
strays that come at some later time. Its hazard rises until the strays take over, so there is one
stretch of time in which ``B h > 1``, and both its ends have closed forms. (With B the block
penalty and h the hazard, spinning is right exactly there: waits.md, section 3.)
"""

import math
from typing import Final, NamedTuple

LN2: Final = math.log(2.0)
LEAST_STRAYS: Final = 1e-3
_MEAN_OFF: Final = 2.0 * LN2  # mean distance from the middle of a logistic law, in scales
_LEAST_SCALE: Final = 1e-3


class Spread(NamedTuple):
    """Scales left and right of the expectation, relative to it, and the share of strays."""

    left: float
    right: float
    strays: float


class Window(NamedTuple):
    """When to be awake, counted from the expectation; empty if the end is not behind the start."""

    start: float
    end: float


def learn_spread(spread: Spread, off: float, is_stray: bool, weight: float) -> Spread:
    """The spread after one more wait.

    Parameters
    ----------
    spread
        What was known.
    off
        Wait less expectation, relative to the expectation; a stray's is clipped.
    is_stray
        Whether it fell too far off to belong to the law.
    weight
        Of this wait, in (0, 1].
    """
    left, right, strays = spread
    if off < 0.0:
        left += weight * (-off / _MEAN_OFF - left)
    else:
        right += weight * (off / _MEAN_OFF - right)
    # Neither side may vanish while the other one is what waits fall on.
    least_left = 0.2 * right
    least_right = 0.2 * left
    if left < least_left:
        left = least_left
    if right < least_right:
        right = least_right
    if left < _LEAST_SCALE:
        left = _LEAST_SCALE
    if right < _LEAST_SCALE:
        right = _LEAST_SCALE
    strays += 0.02 * ((1.0 if is_stray else 0.0) - strays)
    if strays < LEAST_STRAYS:
        strays = LEAST_STRAYS
    return Spread(left, right, strays)


def awake_window(spread: Spread, penalty: float) -> Window:
    """The stretch in which the hazard exceeds 1 over the penalty; all relative."""
    left, right, strays = spread
    if penalty <= right:
        return Window(0.0, 0.0)
    core = 1.0 - strays
    # Right of the middle, with u = 1 - F: B u (1 - u) / right - u > strays / (core share).
    weight_right = 2.0 * right / (left + right)
    ratio = penalty / right
    rest = strays / (core * weight_right)
    root = (ratio - 1.0) * (ratio - 1.0) - 4.0 * ratio * rest
    if root <= 0.0:
        return Window(0.0, 0.0)
    root = math.sqrt(root)
    u = (ratio - 1.0 - root) / (2.0 * ratio)
    if u < 1e-12:
        u = 1e-12
    end = right * math.log((1.0 - u) / u)
    u = (ratio - 1.0 + root) / (2.0 * ratio)
    if u < 0.5:
        return Window(right * math.log((1.0 - u) / u), end)
    # Left of it, with x = F: B (share / left) x (1 - x) > 1 - share x.
    share = core * 2.0 * left / (left + right)
    steep = penalty * share / left
    root = (steep + share) * (steep + share) - 4.0 * steep
    if root <= 0.0:
        return Window(0.0, end)
    x = 2.0 / (steep + share + math.sqrt(root))
    if x >= 0.5:
        return Window(0.0, end)
    return Window(left * math.log(x / (1.0 - x)), end)


def survival(spread: Spread, off: float) -> float:
    """Share of the waits still to come at this distance from the expectation."""
    left, right, strays = spread
    if off < 0.0:
        x = math.exp(off / left)
        return 1.0 - (1.0 - strays) * 2.0 * left / (left + right) * x / (1.0 + x)
    x = math.exp(-off / right)
    return strays + (1.0 - strays) * 2.0 * right / (left + right) * x / (1.0 + x)


def awake_time(spread: Spread, start: float, end: float) -> float:
    """Mean time awake of who is awake from ``start`` until the event or ``end``."""
    rest = _remainder(spread, start) - _remainder(spread, end)
    return (1.0 - spread.strays) * rest + spread.strays * (end - start)


def _remainder(spread: Spread, off: float) -> float:
    """Integral of the survival, strays left out, from a distance to infinity."""
    left, right, _ = spread
    weight_right = 2.0 * right / (left + right)
    if off >= 0.0:
        return weight_right * right * math.log(1.0 + math.exp(-off / right))
    weight_left = 2.0 * left / (left + right)
    gone = LN2 - math.log(1.0 + math.exp(off / left))
    return weight_right * right * LN2 - off - weight_left * left * gone
