"""Whether the way to wait that was switched on is the one that was waited by, in every process."""

from collections.abc import Iterator, Mapping

from realrun.vllm.control import Counters


def moved(before: Counters, after: Counters) -> Counters:
    """How far the counters of a process went."""
    return Counters(*after[:3], *(b - a for a, b in zip(before[3:], after[3:], strict=True)))


def check_in_force(
    name: str, went: Mapping[str, Counters], workers: int, *, by_policy: bool
) -> None:
    """In every process the counters that must move, move; and those that must not, do not.

    Parameters
    ----------
    name
        Of what was to be in force, for the error.
    went
        How far the counters of each process went, by its name.
    workers
        How many of them there are beside the scheduler.
    by_policy
        Whether plans were to carry out the waits, not vLLM.

    Raises
    ------
    RuntimeError
        If it was not in force somewhere.
    """
    for process in ("scheduler", *(f"worker{rank}" for rank in range(workers))):
        if process not in went:
            raise RuntimeError(f"{name}: {process} counts nothing; is the plugin in force there?")
    if not went["scheduler"].sent:
        raise RuntimeError(f"{name}: no message was counted; is the plugin in force?")
    for process, counted in went.items():
        for fault in _faults(counted, by_policy=by_policy):
            raise RuntimeError(f"{name} was not in force in {process}: {fault}; {counted}")


def _faults(counted: Counters, *, by_policy: bool) -> Iterator[str]:
    ours, theirs = counted.waits, counted.vllm_waits
    if not (ours if by_policy else theirs) + counted.at_once:
        yield "nothing was read that way"
    # One wait begins before the switch is seen, and one sleeper may still be on vLLM's socket.
    few = max(2, max(counted.sent, ours + theirs + counted.at_once) // 20)
    if (theirs if by_policy else ours + counted.slot_waits) > few:
        yield "it waited otherwise"
    if (counted.pinged if by_policy else counted.sent - counted.pinged) > few:
        yield "it pinged" if by_policy else "it did not ping"
    if counted.overtaken > few:
        yield "our ring was not in step with vLLM's"
