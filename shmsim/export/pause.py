"""How long one round of a spin takes: what turns a duration into a count of rounds, and back."""

import tomllib
from importlib.resources import files
from typing import NamedTuple

from shmsim.profile import MachineProfile
from shmsim.units import format_ns


class Round(NamedTuple):
    """One round of a spin with the pause hint.

    Parameters
    ----------
    ns
        How long it takes; positive.
    source
        How that is known.
    """

    ns: float
    source: str


def round_of(given_ns: int, profile: MachineProfile | None) -> Round | None:
    """What is known about a round: given, measured, or assumed from the name of the CPU.

    Parameters
    ----------
    given_ns
        As given on the command line; 0 if it was not.
    profile
        Its machine may hold ``round_ns``, which ``realrun calibrate`` measures.

    Returns
    -------
    Round or None
        None if nothing is known.
    """
    if given_ns > 0:
        return Round(given_ns, f"one round takes {format_ns(given_ns)}, as given")
    if profile is None:
        return None
    cpu = str(profile.machine.get("cpu", ""))
    measured_ns = float(profile.machine.get("round_ns", 0))
    if measured_ns > 0:
        return Round(measured_ns, f"one round takes {format_ns(measured_ns)}, by the profile")
    path = files("shmsim") / "data" / "engines" / "pause.toml"
    for row in tomllib.loads(path.read_text(encoding="utf-8"))["cpu"]:
        if row["pattern"].lower() in cpu.lower():
            return Round(
                row["round_ns"],
                f"assumed, not measured: one round takes {format_ns(row['round_ns'])} on "
                f"{cpu} ({row['source']}); --round says better",
            )
    return None
