"""What ways to wait change in a live vLLM: measured, and foretold."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.stats import kendalltau

from realrun.equivalence import Estimate
from shmsim.claims import Claim

QUANTITIES: Final = ("ms", "engine_cores")
#: A coin gets half of the pairs right.
ORDER_BOUND: Final = 0.8
#: As of the model bench: 3 % of TPOT; of cores, what a reader of a CPU panel would notice.
EFFECT_BOUND: Final = 0.03
CORES_BOUND: Final = 0.1


class Arm(NamedTuple):
    """One way to wait, by start of the engine: shapes ``(n_starts,)``.

    Parameters
    ----------
    ms, engine_cores
        Measured: ms per token, cores of EngineCore.
    predicted_ms, predicted_cores
        The same as foretold from what that start recorded while vLLM waited by itself.
    """

    ms: list[float]
    engine_cores: list[float]
    predicted_ms: list[float]
    predicted_cores: list[float]


class Effect(NamedTuple):
    """What an arm changes, over the reference in the same start.

    Parameters
    ----------
    measured, predicted
        Ratio of ms per token.
    error
        Predicted ratio over measured ratio, less 1.
    cores_error
        Cores of EngineCore, predicted less measured.
    """

    measured: Estimate
    predicted: Estimate
    error: Estimate
    cores_error: Estimate


class Order(NamedTuple):
    """How far the model orders the arms of a table as the machine does.

    Parameters
    ----------
    table, quantity
        Which, of the plan's tables and of `QUANTITIES`.
    tau
        Kendall's tau-b over all arms.
    n_right, n_pairs
        Pairs that the machine tells apart, and how many the model puts right.
    wrong
        The others, each the smaller one first as measured.
    """

    table: str
    quantity: str
    tau: float
    n_right: int
    n_pairs: int
    wrong: tuple[tuple[str, str], ...]


def read_arms(path: Path) -> dict[str, Arm]:
    """The arms of a comparison with predictions, as ``realrun vllm-predict`` stores them.

    Raises
    ------
    ValueError
        If the file is not there or is none of these.
    """
    try:
        content = json.loads(path.read_text())
        return {
            name: Arm(
                _of(row["measured"], "tpot_s"),
                _of(row["measured"], "scheduler"),
                _of(row["predicted"], "tpot_s"),
                _of(row["predicted"], "scheduler"),
            )
            for name, row in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no predictions of 'realrun vllm-ab --recorder -p profile.json': "
            f"{type(error).__name__}: {error}"
        ) from None


def _of(starts: list[dict[str, Any]], name: str) -> list[float]:
    if name == "tpot_s":
        return [1e3 * start[name] for start in starts]
    return [start["cores"][name] for start in starts]


def effect(arm: Arm, reference: Arm) -> Effect:
    """Compare start by start: what both arms of a start have in common does not count."""
    measured = np.divide(arm.ms, reference.ms)
    predicted = np.divide(arm.predicted_ms, reference.predicted_ms)
    return Effect(
        Estimate.of(measured.tolist()),
        Estimate.of(predicted.tolist()),
        Estimate.of((predicted / measured - 1).tolist()),
        Estimate.of(np.subtract(arm.predicted_cores, arm.engine_cores).tolist()),
    )


def order(
    table: str,
    quantity: str,
    measured: dict[str, Sequence[float]],
    predicted: dict[str, float],
    slack: float,
) -> Order:
    """Compare two orders of the same arms.

    Parameters
    ----------
    table, quantity
        Copied.
    measured
        What each arm showed, start by start. Two arms are told apart if one showed more in every
        start, and their medians differ by more than ``slack``.
    predicted
        One number for each arm.
    slack
        Relative.
    """
    median = {arm: float(np.median(values)) for arm, values in measured.items()}
    wrong, n_pairs = [], 0
    for pair in combinations(measured, 2):
        less, more = sorted(pair, key=median.__getitem__)
        differ = all(a < b for a, b in zip(measured[less], measured[more], strict=True))
        if not differ or median[more] - median[less] <= slack * median[more]:
            continue
        n_pairs += 1
        if not predicted[less] < predicted[more]:
            wrong.append((less, more))
    arms = list(measured)
    tau = kendalltau([median[a] for a in arms], [predicted[a] for a in arms]).statistic
    return Order(table, quantity, float(tau), n_pairs - len(wrong), n_pairs, tuple(wrong))


def orders(table: str, arms: dict[str, Arm], slack: float) -> list[Order]:
    """The order of a table's arms by each quantity."""
    columns = {"ms": ("ms", "predicted_ms"), "engine_cores": ("engine_cores", "predicted_cores")}
    found = []
    for quantity in QUANTITIES:
        of_machine, of_model = columns[quantity]
        measured = {name: getattr(arm, of_machine) for name, arm in arms.items()}
        predicted = {name: float(np.median(getattr(arm, of_model))) for name, arm in arms.items()}
        found.append(order(table, quantity, measured, predicted, slack))
    return found


def claims(
    effects: dict[tuple[str, str], Effect], found: Sequence[Order], seed: int
) -> list[Claim]:
    """Errors of every effect, and the share of pairs in the right order.

    An error is claimed at the end of its interval that is further from 0: an estimate within the
    bound would prove nothing. The range of a share is half a pair to either side.
    """
    made = []
    for (table, arm), one in effects.items():
        for name, error, unit, bound in (
            ("effect_error", one.error, "ratio", EFFECT_BOUND),
            ("cores_error", one.cores_error, "cores", CORES_BOUND),
        ):
            least, worst = sorted((abs(error.low), abs(error.high)))
            if error.low <= 0.0 <= error.high:
                least = 0.0
            name = f"live_vllm/{name}/{table}-{arm}"
            made.append(Claim(name, worst, least, worst, unit, bound, "<=", error.n, seed))
    for o in found:
        if not o.n_pairs:
            continue
        share, half = o.n_right / o.n_pairs, 0.5 / o.n_pairs
        name = f"live_vllm/{o.table}_{o.quantity}_pairs_right"
        low, high = max(0.0, share - half), min(1.0, share + half)
        made.append(Claim(name, share, low, high, "share", ORDER_BOUND, ">=", o.n_pairs, seed))
    return made
