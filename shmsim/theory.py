"""Closed forms that say what waiting must cost."""

from shmsim.metrics import Summary


def wait_cost(cores: float, delay_share: float, delay_price: float) -> float:
    """Price of a way to wait, in cores: ``J = CPU + r * delay``, both per second of run.

    Parameters
    ----------
    cores
        CPU time over wall time of everyone who waits.
    delay_share
        Delay on the critical path over wall time: 0.01 is a step 1 % longer.
    delay_price
        Core-seconds one would pay per second of delay, *r*.
    """
    return cores + delay_price * delay_share


def run_cost(summary: Summary, reference: Summary, n_workers: int, delay_price: float) -> float:
    """Price of a run against a reference run of the same workload, in cores."""
    if not (summary.tpot.n and reference.tpot.n):
        raise ValueError(
            "no request of this workload has two output tokens, so there is no time per output "
            "token to weigh; give workload.output_p50 a larger value"
        )
    cores = summary.scheduler_cores + n_workers * summary.worker_cores
    delay_share = summary.tpot.mean / reference.tpot.mean - 1.0
    return wait_cost(cores, delay_share, delay_price)


def spin_then_park_cost_ns(wait_ns: int, window_ns: int, block_penalty_ns: int) -> int:
    """Cost in spin time of one wait: the spin, and the block penalty if it outlasts the window."""
    return wait_ns if wait_ns <= window_ns else window_ns + block_penalty_ns
