"""Claims: numbers with a bound each; experiments write them, ``shmsim claims`` prints them."""

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmsim.whole import write_whole

_DIRECTIONS: Final = ("<=", ">=")


class Claim(NamedTuple):
    """One number that a text relies on.

    Parameters
    ----------
    id
        ``"experiment/quantity_unit"``.
    value, low, high
        The number and its interval, or its range over repeats.
    unit
        ``"ns"``, ``"cores"``, ``"ratio"`` and so on.
    bound, direction
        It holds if ``value direction bound``; direction is ``"<="`` or ``">="``.
    n, seed
        Sample size, and seed of the random numbers (0 where none were drawn).
    """

    id: str
    value: float
    low: float
    high: float
    unit: str
    bound: float
    direction: str
    n: int
    seed: int

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of its bound."""
        return self.value <= self.bound if self.direction == "<=" else self.value >= self.bound


def write_claims(
    path: Path, machine: dict[str, Any], claims: list[Claim], origin: dict[str, Any] | None = None
) -> None:
    """Store claims with the machine they were measured on, and what code measured them when."""
    content = {
        "machine": machine,
        **({} if origin is None else {"origin": origin}),
        "claims": [{**claim._asdict(), "holds": claim.holds} for claim in claims],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_claims(path: Path) -> list[Claim]:
    """Read a claims file.

    Raises
    ------
    ValueError
        If it is missing, damaged, or says of a claim that it holds when its numbers do not.
    """
    try:
        rows = json.loads(path.read_text())["claims"]
        claims = []
        for row in rows:
            claim = Claim(**{name: row[name] for name in Claim._fields})
            if claim.direction not in _DIRECTIONS or not math.isfinite(claim.value):
                raise ValueError(f"claim {claim.id} has no finite value or an unknown direction")
            if row["holds"] != claim.holds:
                raise ValueError(
                    f"claim {claim.id} says holds = {row['holds']}; its numbers differ"
                )
            claims.append(claim)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a claims file: {error}") from None
    return claims
