"""The costs that an experiment's model starts from: shipped, or measured here once."""

from pathlib import Path
from typing import Final

from realrun.calibrate import calibrate
from runner.experiment import Context
from shmsim.profile import MachineProfile

NAME: Final = "profile.json"


def profile_path(context: Context) -> Path:
    """Where the profile of ``plan["profile"]`` is; an empty name calibrates this box at first.

    What was calibrated goes into the results too: whoever doubts a prediction needs it.
    """
    path = context.folder / NAME
    if not path.exists():
        name = context.plan["profile"]
        if name:
            MachineProfile.shipped(name).write(path)
        else:
            profile = calibrate(context.progress)
            profile.write(context.files / NAME)
            profile.write(path)
    return path


def profile_of(context: Context) -> MachineProfile:
    """What is there."""
    return MachineProfile.read(profile_path(context))
