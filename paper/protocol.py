"""What tests/protocol shows, as protocol.toml tells it."""

import tomllib
from typing import NamedTuple

from paper.records import HERE


class Property(NamedTuple):
    """One property of the hand-off.

    Parameters
    ----------
    holds, needs
        What holds over every interleaving, and what for; in words.
    shown_by, broken_in
        The tests that show it, and those in which it breaks without what it needs: ``FILE::NAME``
        below ``tests/protocol``.
    """

    holds: str
    needs: str
    shown_by: list[str]
    broken_in: list[str]

    @property
    def tests(self) -> list[str]:
        """All of them."""
        return [*self.shown_by, *self.broken_in]


def properties() -> list[Property]:
    """In the order of the table."""
    rows = tomllib.loads((HERE / "protocol.toml").read_text())["property"]
    return [Property(**row) for row in rows]
