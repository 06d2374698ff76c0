"""The systems under test: which class, which policy, which scenarios make sense for it."""

from typing import Any, Final, NamedTuple

#: Readers that spin at first meet the gap awake; readers that park at once do not. Where a system
#: does only one of both, the other scenario would be the same measurement under another name.
SPINS: Final = ("back_to_back", "gap_2ms", "idle_5s")
PARKS: Final = ("back_to_back", "parked", "idle_5s")


class Candidate(NamedTuple):
    """One system with one policy.

    Parameters
    ----------
    name
        As tables and claims call it.
    module, cls
        Where the driver finds the `system.System`.
    options
        Keyword arguments of the class.
    interpreter
        ``"python"``, ``"vllm"`` or ``"iceoryx"``: which of the interpreters given runs it.
    scenarios
        What is measured with small calls.
    carries
        Whether it can hand over payloads of any size.
    spins_on_s
        How long its readers go on spinning after a call; whoever is called next waits for that.
    """

    name: str
    module: str
    cls: str
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    interpreter: str = "python"
    scenarios: tuple[str, ...] = PARKS
    carries: bool = False
    spins_on_s: float = 0.0


CANDIDATES: Final = (
    Candidate("ours", "ours", "Ours", {}, "python", SPINS, True, 1.0),
    Candidate("ours, arena", "ours", "Ours", {"routes": "vllm-arena"}, "python", (), True, 1.0),
    Candidate("ours, socket", "ours", "Ours", {"routes": "all-socket"}, "python", (), True, 1.0),
    Candidate("ours, parks", "ours", "Ours", {"policy": "park", "tells_wakes": True}),
    Candidate("ours, bare ring", "own_ring", "BareRing", {}, "python", ("parked",)),
    Candidate("futex in C", "floor", "Futex"),
    Candidate("eventfd in C", "floor", "Eventfd"),
    Candidate("vLLM", "peer_vllm", "MessageQueues", {}, "vllm", SPINS, True, 1.0),
    Candidate("vLLM, 2 ms", "peer_vllm", "MessageQueues", {"busy_loop_s": 0.002}, "vllm", SPINS),
    # Not back to back: its second notification within 1.2 ms is dropped and costs up to 5 s.
    Candidate(
        "vLLM, parks",
        "peer_vllm",
        "MessageQueues",
        {"busy_loop_s": 0},
        "vllm",
        ("parked", "idle_5s"),
    ),
    Candidate("Pipe", "peer_pipes", "Pipe", carries=True),
    Candidate("Queue", "peer_pipes", "Queues", carries=True),
    Candidate("ZeroMQ PAIR", "peer_zmq", "Pairs", carries=True),
    Candidate("ZeroMQ PUB/SUB", "peer_zmq", "PubSub", carries=True),
    Candidate("iceoryx2", "peer_iceoryx", "PublishSubscribe", interpreter="iceoryx", carries=True),
)

#: Whom a ratio divides by, for each scenario.
VLLM: Final = {
    "back_to_back": "vLLM",
    "gap_2ms": "vLLM",
    "parked": "vLLM, parks",
    "idle_5s": "vLLM",
    "payload": "vLLM",
}
FLOOR: Final = "futex in C"
#: Whose wake-up is held against the floor's: the floor pickles nothing.
BARE: Final = "ours, bare ring"
#: Whom the claims are about, for each scenario.
OURS: Final = {
    "back_to_back": "ours",
    "gap_2ms": "ours",
    "parked": "ours, parks",
    "idle_5s": "ours",
}
