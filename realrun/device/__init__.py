"""The device a worker runs its steps on: one that stands in, a CPU, or a GPU."""
