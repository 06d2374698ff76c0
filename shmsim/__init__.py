"""Model and policies for how the processes of an LLM engine wait for each other.

This module imports nothing but the clock, so that a policy can be imported without loading a
simulator, a socket library or a device.
"""

import time

__version__ = "0.1.0"

#: When the first module of this package was imported, ns of Unix time; see `shmsim.sources`.
IMPORTED_NS = time.time_ns()
