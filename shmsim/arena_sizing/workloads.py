"""Workloads that have a name: text only, one image for each request, video."""

from typing import Final, NamedTuple

from shmsim.nearest import instead


class NamedWorkload(NamedTuple):
    """What each request carries beside its text.

    Parameters
    ----------
    what
        For people, with what is assumed.
    rate_per_s
        Requests each second, Poisson, where no other rate is given.
    size_p50, size_p95
        Pixels of an image or seconds of a video, log-normal; 0 for neither.
    frame_pixels
        Pixels of a frame, before it is scaled down; 0 for images.
    """

    what: str
    rate_per_s: float
    size_p50: float
    size_p95: float
    frame_pixels: int


#: Rates and the spread of sizes are assumptions, but for the rate and lengths of text (Azure).
WORKLOADS: Final[dict[str, NamedWorkload]] = {
    "text": NamedWorkload("prompts of text", 5.53, 0.0, 0.0, 0),
    "one-image": NamedWorkload(
        "an image of 1024 x 1024 pixels for each request", 5.53, 1024.0 * 1024, 1024.0 * 1024, 0
    ),
    "photos": NamedWorkload(
        "an image for each request, 1 megapixel (median) to 8 (p95)", 5.53, 1e6, 8e6, 0
    ),
    "video": NamedWorkload(
        "a video of 720p for each request, 10 s (median) to 60 s (p95)", 0.5, 10.0, 60.0, 1280 * 720
    ),
}


def named_workload(name: str) -> NamedWorkload:
    """The workload of a name.

    Raises
    ------
    ValueError
        If there is none, with the nearest there is.
    """
    if name not in WORKLOADS:
        raise ValueError(f"no workload {name!r}{instead(name, WORKLOADS)}")
    return WORKLOADS[name]
