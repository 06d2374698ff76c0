"""Sweeps: many policies on many workloads and machines, all on common tapes.

What to run (`plan`, `spec`), what makes a result reusable (`key`, `store`), and what comes out
(`tables`, `report`). `shmsim.sim.sweep` runs it.
"""
