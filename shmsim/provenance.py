"""Where a number comes from."""

from typing import Final, NamedTuple

#: Measured on the machine it stands for; published by somebody else; or taken over from elsewhere
#: because nobody measured it there.
MARKS: Final = ("measured", "published", "assumed")


class Source(NamedTuple):
    """How far a number can be trusted, and where to look it up.

    Parameters
    ----------
    mark
        One of `MARKS`.
    text
        File, document or experiment, and what was done to the number; not empty.
    """

    mark: str
    text: str

    @classmethod
    def of(cls, mark: str, text: str) -> "Source":
        """Check and build.

        Raises
        ------
        ValueError
            If the mark is unknown or the text empty.
        """
        if mark not in MARKS:
            raise ValueError(f"mark must be one of {', '.join(MARKS)}; got {mark!r}")
        if not text.strip():
            raise ValueError(f"a number marked {mark} needs a text that says where it comes from")
        return cls(mark, text)


CALIBRATED: Final = Source("measured", "realrun calibrate, on this machine")
