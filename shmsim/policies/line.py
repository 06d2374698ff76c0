"""A line through the step times, by the features of the batch: recursive least squares.

Weights are in nanoseconds of wait per unit of feature, and errors relative to the expectation
(each wait counts with weight ``1 / expectation^2``). The covariance is inflated a little at each
wait, up to what is unknown at the start: old waits are forgotten where new ones come, and what is
never seen does not grow without end. All sums are written out: that takes 3 us in CPython, and a
matrix library's call overhead alone is longer.
"""

from typing import Final, NamedTuple

from shmsim.wait import WaitContext

_FORGETTING: Final = 0.998
_UNKNOWN_PROMPT: Final = 1600.0  # variance of its weight at the start; of the others 1


class Features(NamedTuple):
    """Of one wait, each of the order of 1."""

    constant: float
    decode: float
    prefill: float
    context: float


class Covariance(NamedTuple):
    """Of the four weights: the upper half of the matrix."""

    aa: float
    ab: float
    ac: float
    ad: float
    bb: float
    bc: float
    bd: float
    cc: float
    cd: float
    dd: float


class Line(NamedTuple):
    """Weights, their covariance (relative to ``unit_ns`` squared), and the first wait."""

    weights: Features
    covariance: Covariance
    unit_ns: float


def features_of(ctx: WaitContext) -> Features:
    """The features of a wait."""
    return Features(
        1.0, ctx.n_decode / 64.0, ctx.n_prefill_tokens / 1024.0, ctx.n_kv_tokens / 65536.0
    )


def expected_ns(line: Line, x: Features) -> float:
    """What the line expects."""
    a, b, c, d = line.weights
    return a * x.constant + b * x.decode + c * x.prefill + d * x.context


def first_line(wait_ns: float) -> Line:
    """What is known after a single wait: its length, and nothing of the features."""
    return reopened(Line(Features(wait_ns, 0.0, 0.0, 0.0), _CERTAIN, wait_ns))


_CERTAIN: Final = Covariance(*[0.0] * 10)


def reopened(line: Line) -> Line:
    """The same line, but nothing is certain any more: the next waits move it freely."""
    covariance = Covariance(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, _UNKNOWN_PROMPT, 0.0, 1.0)
    return Line(line.weights, covariance, line.unit_ns)


class Innovation(NamedTuple):
    """Variance that the line's own uncertainty adds, and the gain of each weight."""

    variance: float
    gain: Features


def innovation(line: Line, x: Features, scale_ns: float) -> Innovation:
    """How uncertain the expectation is, relative to ``scale_ns``, squared.

    The gain is for the noise that `learn_line` adds to the variance.
    """
    p = line.covariance
    per = line.unit_ns / scale_ns
    xa, xb, xc, xd = per * x.constant, per * x.decode, per * x.prefill, per * x.context
    ga = p.aa * xa + p.ab * xb + p.ac * xc + p.ad * xd
    gb = p.ab * xa + p.bb * xb + p.bc * xc + p.bd * xd
    gc = p.ac * xa + p.bc * xb + p.cc * xc + p.cd * xd
    gd = p.ad * xa + p.bd * xb + p.cd * xc + p.dd * xd
    variance = xa * ga + xb * gb + xc * gc + xd * gd
    if variance < 0.0:  # rounding, where waits of seconds and of microseconds follow each other
        variance = 0.0
    return Innovation(variance, Features(ga, gb, gc, gd))


def learn_line(line: Line, found: Innovation, off: float, noise: float) -> Line:
    """The line after one more wait.

    Parameters
    ----------
    line
        What was known.
    found
        Of `innovation`.
    off
        Wait less expectation, relative to the expectation.
    noise
        Variance of ``off`` that no line explains.
    """
    ga, gb, gc, gd = found.gain
    total = found.variance + noise
    step = off * line.unit_ns / total
    a, b, c, d = line.weights
    p = line.covariance
    # Variances of rarely seen features stay below what is unknown at the start.
    grow = 1.0 / _FORGETTING
    if p.aa + p.bb + p.dd + p.cc / _UNKNOWN_PROMPT > 3.0:
        grow = 1.0
    inverse = grow / total
    covariance = Covariance(
        grow * p.aa - ga * ga * inverse,
        grow * p.ab - ga * gb * inverse,
        grow * p.ac - ga * gc * inverse,
        grow * p.ad - ga * gd * inverse,
        grow * p.bb - gb * gb * inverse,
        grow * p.bc - gb * gc * inverse,
        grow * p.bd - gb * gd * inverse,
        grow * p.cc - gc * gc * inverse,
        grow * p.cd - gc * gd * inverse,
        grow * p.dd - gd * gd * inverse,
    )
    weights = Features(a + step * ga, b + step * gb, c + step * gc, d + step * gd)
    return Line(weights, covariance, line.unit_ns)
