"""Erlang's loss formula: how often all slots are taken when nobody waits for one (1917)."""

import scipy


def erlang_b(slots: int, load: float) -> float:
    """Share of payloads that find every slot taken.

    Arrivals are Poisson; the law of the hold times does not matter, only their mean.

    Parameters
    ----------
    slots
        How many slots, at least 0.
    load
        Payloads each second times mean hold time: slots that would be in use if there were always
        one more. At least 0.

    Examples
    --------
    >>> erlang_b(1, 1.0)
    0.5
    """
    if load <= 0:
        return 0.0 if slots else 1.0
    return float(scipy.stats.poisson.pmf(slots, load) / scipy.stats.poisson.cdf(slots, load))


def slots_for(load: float, probability: float) -> int:
    """Least slots with which payloads find all of them taken no more often than that.

    Raises
    ------
    ValueError
        If the probability is not between 0 and 1.
    """
    if not 0 < probability < 1:
        raise ValueError(
            f"a probability of falling back must be above 0 and below 1, got {probability}; no "
            "finite arena promises 0"
        )
    slots = 0
    while erlang_b(slots, load) > probability:
        slots += 1
    return slots
