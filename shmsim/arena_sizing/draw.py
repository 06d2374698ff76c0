"""Draws what a named workload hands over."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmsim.arena_sizing.payloads import Payloads, payloads_of
from shmsim.arena_sizing.pixels import image_bytes, image_tokens, video_bytes, video_tokens
from shmsim.arena_sizing.retention import CopyTime, Retention
from shmsim.arena_sizing.workloads import NamedWorkload
from shmsim.units import S

Float64Array = NDArray[np.float64]

_Z95: Final = 1.6448536269514722  # standard normal 95th percentile
#: Bytes that a token of a prompt of text takes in a message: one number of 4 bytes.
_BYTES_PER_TEXT_TOKEN: Final = 4
#: Tokens of text, median and 95th percentile: Azure conversation trace 2023, as in shmsim.workload.
_PROMPT: Final = (1020.0, 4083.0)
_OUTPUT: Final = (129.0, 451.0)


def draw_payloads(
    workload: NamedWorkload,
    n: int,
    rate_per_s: float,
    copy: CopyTime,
    retention: Retention,
    seed: int,
) -> Payloads:
    """Draw what a workload hands over.

    Parameters
    ----------
    workload
        One of `shmsim.arena_sizing.workloads.WORKLOADS`.
    n
        How many requests.
    rate_per_s
        Requests each second, Poisson; 0 for the workload's own.
    copy, retention
        How long a slot is in use.
    seed
        Of the random numbers; arrivals, sizes and lengths have a stream each.
    """
    arrivals, sizes, prompts, outputs = (
        np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(4)
    )
    rate_per_s = rate_per_s or workload.rate_per_s
    arrival_ns = np.cumsum(arrivals.exponential(S / rate_per_s, n)).astype(np.int64)
    size = _log_normal(sizes, n, workload.size_p50, workload.size_p95)
    prompt = np.maximum(_log_normal(prompts, n, *_PROMPT), 1).astype(np.int64)
    output = np.maximum(_log_normal(outputs, n, *_OUTPUT), 1).astype(np.int64)
    n_bytes = np.empty(n, dtype=np.int64)
    hold_ns = np.empty(n, dtype=np.int64)
    for i in range(n):
        bulk, tokens = _payload(workload, float(size[i]))
        text = int(prompt[i])
        n_bytes[i] = bulk or text * _BYTES_PER_TEXT_TOKEN
        hold_ns[i] = retention.hold_ns(copy.ns(int(n_bytes[i])), tokens + text, int(output[i]))
    return payloads_of(arrival_ns, n_bytes, hold_ns)


def _payload(workload: NamedWorkload, size: float) -> tuple[int, int]:
    """Bytes and tokens beside the text."""
    if not workload.size_p50:
        return 0, 0
    if workload.frame_pixels:
        frame = workload.frame_pixels
        return video_bytes(size, frame), video_tokens(size, frame)
    return image_bytes(size), image_tokens(size)


def _log_normal(rng: np.random.Generator, n: int, p50: float, p95: float) -> Float64Array:
    if not p50:
        return np.zeros(n)
    values: Float64Array = p50 * np.exp(np.log(p95 / p50) / _Z95 * rng.standard_normal(n))
    return values
