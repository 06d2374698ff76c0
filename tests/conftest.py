"""For all tests."""

from hypothesis import settings

# How long an example takes depends on who else uses the machine; no test asserts it.
settings.register_profile("shmsim", deadline=None)
settings.load_profile("shmsim")
