"""The model where nothing contends, as a recurrence: no events, only sums and maxima of instants.

The same records as `shmsim.sim.run.simulate`, bit for bit, at hundreds of times the speed.
"""

from shmsim.sim.recurrence.ahead import compile_ahead
from shmsim.sim.recurrence.engine_run import UndecidedError
from shmsim.sim.recurrence.run import run_many, run_tapes, simulate_recurrence
from shmsim.sim.recurrence.scope import refuses

__all__ = [
    "UndecidedError",
    "compile_ahead",
    "refuses",
    "run_many",
    "run_tapes",
    "simulate_recurrence",
]
