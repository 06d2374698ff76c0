"""How long a payload keeps its slot: its copy to the device, and the steps that still need it."""

from typing import TYPE_CHECKING, Final, NamedTuple

from shmsim.nearest import did_you_mean
from shmsim.steptime import StepTimeLaw

if TYPE_CHECKING:
    from shmsim.profile import MachineProfile

#: Until when a slot is in use.
HOLDS: Final = ("copied", "prefilled", "finished")


class Retention(NamedTuple):
    """What keeps a slot in use.

    Parameters
    ----------
    until
        ``"copied"``: until the copy to the device has landed, which is noticed after the step it
        was made for. ``"prefilled"``: until the last chunk of the prompt has run, as of prompt
        embeddings in vLLM (#51207). ``"finished"``: until the request has, where the tensor stays
        with it.
    chunk_tokens
        Tokens of a prompt that one step takes, at most.
    step_ns
        What a step of decode takes.
    prompt_step_ns, per_token_ns
        What a step with part of a prompt takes, and for each token of it.
    """

    until: str
    chunk_tokens: int
    step_ns: float
    prompt_step_ns: float
    per_token_ns: float

    def hold_ns(self, copy_ns: int, prompt_tokens: int, output_tokens: int) -> int:
        """How long a payload is held.

        Parameters
        ----------
        copy_ns
            Of its copy to the device.
        prompt_tokens, output_tokens
            Of its request.
        """
        tokens = prompt_tokens
        if self.until == "copied":
            tokens = min(tokens, self.chunk_tokens)
        n_chunks = -(-tokens // self.chunk_tokens)
        held_ns = copy_ns + n_chunks * self.prompt_step_ns + tokens * self.per_token_ns
        if self.until == "finished":
            held_ns += output_tokens * self.step_ns
        return max(int(held_ns), 1)


def retention_of(until: str, law: StepTimeLaw, chunk_tokens: int, n_decode: int) -> Retention:
    """Take the times of steps from a law.

    Parameters
    ----------
    until
        One of `HOLDS`.
    law
        Of the device.
    chunk_tokens
        Tokens of a prompt that one step takes, at most.
    n_decode
        Sequences of a step of decode.

    Raises
    ------
    ValueError
        If ``until`` is unknown, or the law does not reach that far.
    """
    if until not in HOLDS:
        raise ValueError(
            f"a slot is held until it is one of {', '.join(HOLDS)}; got {until!r}"
            + did_you_mean(until, HOLDS)
        )
    base_ns = law.mean_ns(1, 0, 0)
    per_token_ns = max(law.mean_ns(0, chunk_tokens, 0) - base_ns, 0.0) / chunk_tokens
    return Retention(until, chunk_tokens, law.mean_ns(n_decode, 0, 0), base_ns, per_token_ns)


class CopyTime(NamedTuple):
    """Time of a copy to the device by size; beyond the largest known size in proportion to it.

    Parameters
    ----------
    sizes, times_ns
        Medians at ascending sizes.
    source
        Where they come from.
    """

    sizes: tuple[float, ...]
    times_ns: tuple[float, ...]
    source: str

    @classmethod
    def of(cls, profile: "MachineProfile", memory: str) -> "CopyTime":
        """From a profile.

        Raises
        ------
        ValueError
            If the profile was made without a device.
        """
        name = f"h2d_{memory}"
        curve = profile.costs.get(name)
        if curve is None:
            raise ValueError(
                f"the profile of {profile.machine.get('cpu', 'this machine')} does not know what a "
                f"copy to a device costs ({name}); take one that does, as -p h200, or give hold "
                "times in a file of payloads"
            )
        times_ns = tuple(point.median for point in curve.points)
        return cls(curve.xs, times_ns, f"{name} of {profile.machine.get('cpu')}")

    def ns(self, n_bytes: int) -> int:
        """Of one copy."""
        sizes, times_ns = self.sizes, self.times_ns
        if n_bytes >= sizes[-1]:
            return int(times_ns[-1] * n_bytes / sizes[-1]) if sizes[-1] else int(times_ns[-1])
        for index in range(1, len(sizes)):
            if n_bytes < sizes[index]:
                share = max(n_bytes - sizes[index - 1], 0) / (sizes[index] - sizes[index - 1])
                return int(times_ns[index - 1] + share * (times_ns[index] - times_ns[index - 1]))
        return int(times_ns[-1])
