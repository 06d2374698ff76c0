"""The model compiled: the records of SimPy, bit for bit, a hundred times as fast.

`simulate_events` takes the place of `shmsim.sim.run.simulate`; `simulate_arrays` is for sweeps.
"""

from shmsim.sim.events.run import (
    EventRun,
    simulate_arrays,
    simulate_events,
    simulate_events_box,
    supports,
)

__all__ = ["EventRun", "simulate_arrays", "simulate_events", "simulate_events_box", "supports"]
