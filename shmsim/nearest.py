"""What somebody may have meant who misspelt a name: the nearest there are, then how to see all."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_MOST: Final = 3
_LISTED: Final = 24  # a longer list buries what is to be read
_ALIKE: Final = 0.5  # of difflib: from here on a name is near
#: Names that fall behind the nearest by more than this are not named beside it.
_NEARLY: Final = 0.1


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Names that come near, the nearest first; case, dashes and underscores aside.

    Examples
    --------
    >>> nearest("step_ahead", ["spin", "step-ahead", "StepAhead"])
    ['step-ahead', 'StepAhead']
    >>> nearest("zzz", ["spin"])
    []
    """
    names = list(known)
    alike = {name: _likeness(_plain(word), _plain(name)) for name in names}
    # Of names that differ in nothing else, the one that is written as the word was.
    best = sorted(names, key=lambda name: (-alike[name], -_likeness(word, name)))[:_MOST]
    least = max(_ALIKE, alike[best[0]] - _NEARLY) if best else _ALIKE
    return [name for name in best if alike[name] >= least]


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """Ask whether the nearest names were meant, to stand behind an error; empty if none is near.

    Parameters
    ----------
    word
        What was given.
    known
        What there is.
    before
        Stands before each name, as the section of a key.

    Examples
    --------
    >>> did_you_mean("prak", ["spin", "park"])
    '; did you mean park?'
    """
    return _asked([before + name for name in nearest(word, known)])


def instead(word: str, known: Iterable[str], lister: str = "") -> str:
    """Say what could stand instead of an unknown name: the nearest, then all, or what lists them.

    Parameters
    ----------
    word
        What was given.
    known
        What there is.
    lister
        A command that lists all, for names that are many.

    Examples
    --------
    >>> instead("prak", ["spin", "park"])
    '; did you mean park?; known are spin, park'
    >>> instead("prak", ["spin", "park"], "shmsim policies")
    "; did you mean park?; 'shmsim policies' lists all 2"
    """
    names = list(known)
    meant = did_you_mean(word, names)
    if lister:
        return f"{meant}; '{lister}' lists all {len(names)}"
    listed = ", ".join(filter(None, names[:_LISTED])) or "none"
    more = f" and {len(names) - _LISTED} others" if len(names) > _LISTED else ""
    return f"{meant}; known are {listed}{more}"


def did_you_mean_file(path: Path) -> str:
    """Ask whether a file or folder was meant that is there, where the one that was named is not.

    Its last part may be misspelt, or one of the folders on the way to it.
    """
    missing = next((p for p in reversed((path, *path.parents)) if not p.exists()), None)
    if missing is None:
        return ""
    try:
        there = sorted(entry.name for entry in missing.parent.iterdir())
    except OSError:
        return ""
    rest = path.relative_to(missing)
    meant: dict[str, str] = {}
    for name in there:
        instead_of_it = missing.with_name(name) / rest
        if instead_of_it.exists() and instead_of_it.suffix == path.suffix:
            # All have the same suffix, and by that alone they would come near.
            meant.setdefault(name.removesuffix(path.suffix), str(instead_of_it))
    word = missing.name.removesuffix(path.suffix)
    return _asked([meant[name] for name in nearest(word, meant)])


def _asked(names: list[str]) -> str:
    if not names:
        return ""
    return f"; did you mean {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}?"


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
