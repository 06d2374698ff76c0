"""Checks, judges, stores, and says in lines what came out; for both ways to ask for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from realrun.calibrate_gpu import gpu_notes
from realrun.gpu_check.flow import Found, check, write_found
from realrun.gpu_check.judge import claims_of
from realrun.gpu_check.predictions import draw_predictions
from realrun.gpu_check.tables import cells_table, spent_sentence
from realrun.host import machine_facts
from shmsim.claims import Claim, write_claims
from shmsim.profile import MachineProfile


class Done(NamedTuple):
    """What a check says.

    Parameters
    ----------
    lines
        For people.
    notes
        What a reader of the figures must know.
    data
        The same for machines.
    holds
        Whether every claim does, and nothing failed. What was not finished is neither.
    """

    lines: list[str]
    notes: list[str]
    data: dict[str, Any]
    holds: bool


def carry_out(out: Path, progress: Callable[[str, float], None]) -> Done:
    """Check this machine.

    Parameters
    ----------
    out
        Folder for the results; made if it is missing.
    progress
        Told what is being done, and the share of the time that is over.

    Raises
    ------
    RuntimeError
        If there is no GPU that works; says why.
    OSError
        If nothing can be written there, or shared memory cannot be had.
    """
    out.mkdir(parents=True, exist_ok=True)
    found = check(out, progress)
    return told(out, found)


def told(out: Path, found: Found) -> Done:
    """Judge what was found, store it in a folder that has the profile, and say it."""
    claims = claims_of(found)
    write_claims(out / "claims.json", machine_facts(), claims)
    if found.rows:
        try:
            draw_predictions(out / "predicted.png", found.rows, found.predicted)
        except ModuleNotFoundError as error:
            reason = f"predicted.png, since {error.name} is not installed"
            found = found._replace(left_out=[*found.left_out, reason])
    write_found(out / "found.json", found)
    lines = [*cells_table(found), *map(_verdict, claims)]
    lines += [f"failed: {text}" for text in found.failures]
    lines += [spent_sentence(found)]
    lines += [f"left out: {text}" for text in found.left_out]
    lines += [f"results: {out}"]
    notes = gpu_notes(MachineProfile.read(out / "profile.json"))
    data = {"folder": out, "claims": claims, **json.loads((out / "found.json").read_text())}
    holds = not found.failures and all(claim.holds for claim in claims)
    return Done(lines, notes, data, holds)


def _verdict(claim: Claim) -> str:
    word = "pass" if claim.holds else "FAIL"
    return f"{word} {claim.id}: {claim.value:.4g} {claim.unit}, {claim.direction} {claim.bound:g}"
