"""The hand-off between scheduler and workers in real processes, driven by shmsim's policies."""
