"""What prompts say: nobody's words, but the same for the same request everywhere."""

from zlib import crc32

import numpy as np
import numpy.typing as npt

_ODD = 2_654_435_761  # Knuth's multiplicative hash (The Art of Computer Programming 3, 6.4)


def prompt_tokens(request_id: str, start: int, n_tokens: int, vocab: int) -> npt.NDArray[np.int64]:
    """Token ids of a part of a prompt, each in [0, vocab), shape ``(n_tokens,)``."""
    at = np.arange(start, start + n_tokens, dtype=np.uint64)
    mixed = (at + np.uint64(crc32(request_id.encode()))) * np.uint64(_ODD)
    return ((mixed >> np.uint64(16)) % np.uint64(vocab)).astype(np.int64)
