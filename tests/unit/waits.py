"""Contexts and outcomes of single waits, for tests of policies."""

from shmsim.units import US
from shmsim.wait import SCHEDULER_RECV, StageCpu, WaitContext, WaitCosts, WaitOutcome

COSTS = WaitCosts(60 * US, 15 * US, 80 * US, 120 * US, 30 * US, 10.0)


def context(
    *,
    since_seen_ns=0,
    pending=True,
    costs=COSTS,
    n_decode=4,
    n_prefill_tokens=0,
    n_kv_tokens=4000,
    uniform=0.5,
):
    return WaitContext(
        SCHEDULER_RECV, 0, since_seen_ns, pending, n_decode, n_prefill_tokens, n_kv_tokens,
        uniform, costs,
    )  # fmt: skip


def outcome(published_after_ns, seen_after_ns=None, *, stage=0, preempted=0, overshoot_ns=0):
    seen_ns = max(published_after_ns, 0) if seen_after_ns is None else seen_after_ns
    cpu = StageCpu(0, 0, 0, 0)
    return WaitOutcome(published_after_ns, seen_ns, stage, cpu, overshoot_ns, False, preempted)


GOLDEN = 0.6180339887498949


def after_waits(policy, *waits_ns, **known):
    """Let it learn from waits, each with another number, spread evenly."""
    for i, wait_ns in enumerate(waits_ns):
        ctx = context(**{"uniform": i * GOLDEN % 1.0, **known})
        policy = policy.after(ctx, outcome(wait_ns))
    return policy
