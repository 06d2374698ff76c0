"""Where a config and a profile meet: the costs of one run.

A profile may hold more than a run needs: what waiting for a GPU costs, by the way in which the ends
of its steps are observed. Whoever runs the model asks here: its engines, the tuner, the sweep.
"""

from shmsim.config import RunConfig
from shmsim.profile import MachineProfile


def costs_of_run(config: RunConfig, profile: MachineProfile) -> MachineProfile:
    """The profile with the costs that a run meets; asked again of what it gives, it gives the same.

    Parameters
    ----------
    config, profile
        What runs, and all costs of the machine.

    Returns
    -------
    MachineProfile
        Steps of a GPU (``device.kind = "cuda"``) are launched and waited for as there, observed as
        ``device.observe`` says; those of a CPU as the box does. Where a law says what steps take
        the profile stays as it is: launches are the box's, and waits by ``engine.device_wait``
        those for a GPU by the first way that it offers, if there is one.

    Raises
    ------
    ValueError
        If the profile holds the costs of another doorbell, or not those of the way; or if nobody
        says how a device that computes is waited for: the machine does so by the policy of the
        run, the model as for an echo device.
    """
    profile.check_doorbell(config.handoff.doorbell)
    device = config.device
    if not device.computes:
        return profile
    if not config.engine.device_wait:
        raise ValueError(
            "engine.device_wait is empty: the machine would wait for its device by the policy of "
            "each run, and the model as for an echo device; name the policy, such as "
            'device_wait = "spin"'
        )
    return profile.at_device(device.observe) if device.kind == "cuda" else profile.without_device()


def notes_on_costs(config: RunConfig, profile: MachineProfile) -> list[str]:
    """What a reader of figures must know of the costs behind them; mostly nothing.

    Returns
    -------
    list of str
        Which way to observe ends of steps stands for the one that the config asks for.

    Raises
    ------
    ValueError
        If the profile holds the costs of neither.
    """
    asked = config.device.observe
    if config.device.kind != "cuda" or profile.way_for(asked) == asked:
        return []
    return [
        f"the machine of the profile cannot observe ends of steps by {asked!r}: costs are those of "
        f"{profile.way_for(asked)!r}, to which its workers fall back"
    ]
