"""Model and policies for how the processes of an LLM engine wait for each other.

This module imports nothing, so that a policy can be imported without loading a simulator, a
socket library or a device.
"""

__version__ = "0.1.0"
