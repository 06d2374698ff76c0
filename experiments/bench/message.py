"""What is handed over: one call of a step, its reply, and payloads of any size."""

import importlib
import pickle
import statistics
import time
from typing import Any, Final

_N_REQUESTS: Final = 24

#: One step as a scheduler describes it to its workers, about 2.1 KB pickled.
CALL: Final[Any] = (
    "execute_model",
    (
        {
            "step": 104_729,
            "new_requests": [
                {"id": "cmpl-9f3b-0", "prompt_ids": list(range(1000, 1190)), "temperature": 0.7}
            ],
            "request_ids": [f"cmpl-7e1c04a9-{i}" for i in range(_N_REQUESTS)],
            "n_scheduled": {f"cmpl-7e1c04a9-{i}": 1 for i in range(_N_REQUESTS)},
            "n_computed": [1024 + 17 * i for i in range(_N_REQUESTS)],
            "new_block_ids": [[4096 + 3 * i, 4097 + 3 * i] for i in range(_N_REQUESTS)],
            "finished": ["cmpl-51d2-3", "cmpl-51d2-8"],
            "total_scheduled": _N_REQUESTS + 190,
        },
    ),
    {},
    None,
)

#: What every worker answers, about 150 B pickled.
REPLY: Final[Any] = ("success", {"step": 104_729, "sampled": list(range(20_000, 20_032))})

#: Not a call: whoever receives it returns from its loop.
LEAVE: Final = None


def payload(name: str) -> Any:
    """The object that a payload name stands for.

    Parameters
    ----------
    name
        ``"call"``, or ``"kind/bytes"`` with the kind ``bytes``, ``numpy`` or ``torch``.

    Raises
    ------
    ImportError
        If the library of that kind is not installed.
    """
    if name == "call":
        return CALL
    kind, _, size = name.partition("/")
    n_bytes = int(size)
    if kind == "bytes":
        return b"\x5a" * n_bytes
    if kind == "numpy":
        return importlib.import_module("numpy").full(n_bytes, 0x5A, dtype="uint8")
    if kind == "torch":
        torch = importlib.import_module("torch")
        return torch.full((n_bytes,), 0x5A, dtype=torch.uint8)
    raise ValueError(f"unknown payload {name!r}: write call, or bytes/N, numpy/N or torch/N")


def pickling_ns() -> int:
    """What plain pickling of the call takes when it is hot: the median of many times."""
    taken_ns = []
    for _ in range(500):
        start_ns = time.monotonic_ns()
        pickle.dumps(CALL, pickle.HIGHEST_PROTOCOL)
        taken_ns.append(time.monotonic_ns() - start_ns)
    return int(statistics.median(taken_ns))


def pickle_once() -> None:
    """Pickle and unpickle the call and the reply: what a round trip with one reader cannot avoid.

    Nothing but the round trip of plain pickle; a system whose own pickler costs more pays for it.
    """
    pickle.loads(pickle.dumps(CALL, pickle.HIGHEST_PROTOCOL))
    pickle.loads(pickle.dumps(REPLY, pickle.HIGHEST_PROTOCOL))
