r"""What the text names, and whether all of it is there.

The text names a number by ``\result{key}``, a table by ``\usetable{name}``, a picture by
``\usepicture{name}``. ``\recorded{record}{then}{else}`` and ``\held{claim}{then}{else}`` choose by
what is stored; what they do not choose need not be there.
"""

import difflib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_NAMED: Final = re.compile(r"\\(result|usetable|usepicture)(?:\[[^]]*\])?\{([^{}]*)\}")
_CHOICE: Final = re.compile(r"\\(recorded|held)\{([^{}]*)\}")
_COMMENT: Final = re.compile(r"(?<!\\)%.*")


class Known(NamedTuple):
    """Everything a text may name.

    Parameters
    ----------
    results, tables, pictures
        Keys and names.
    recorded
        Names of the records that are stored.
    held
        Claims, and whether each holds.
    """

    results: Collection[str]
    tables: Collection[str]
    pictures: Collection[str]
    recorded: Collection[str]
    held: dict[str, bool]


def sources(folder: Path) -> list[Path]:
    """The files of the text, in order."""
    return [folder / "main.tex", *sorted((folder / "sections").glob("*.tex"))]


def chosen(text: str, known: Known) -> str:
    """The text without the branches that are not chosen, and without comments.

    Raises
    ------
    ValueError
        If a claim is unknown or a brace is not closed.
    """
    text = _COMMENT.sub("", text)
    while match := _CHOICE.search(text):
        kind, name = match[1], match[2]
        if kind == "recorded":
            is_so = name in known.recorded
        elif name in known.held:
            is_so = known.held[name]
        else:
            raise ValueError(_unknown("claim", name, known.held))
        then, after = _argument(text, match.end())
        otherwise, after = _argument(text, after)
        text = text[: match.start()] + (then if is_so else otherwise) + text[after:]
    return text


def unknown(folder: Path, known: Known) -> Iterator[str]:
    """One line for everything that the text names and that is not there."""
    parts = {"result": known.results, "usetable": known.tables, "usepicture": known.pictures}
    for path in sources(folder):
        for kind, name in _NAMED.findall(chosen(path.read_text(), known)):
            if "#" not in name and name not in parts[kind]:
                yield f"{path.name}: {_unknown(kind, name, parts[kind])}"


def named(folder: Path, kind: str) -> set[str]:
    """All names of a kind (``"result"``, ``"usetable"``, ``"usepicture"``), in every branch."""
    texts = [_COMMENT.sub("", path.read_text()) for path in sources(folder)]
    return {name for text in texts for found, name in _NAMED.findall(text) if found == kind}


def _argument(text: str, at: int) -> tuple[str, int]:
    """The group in braces that begins at or behind a position, and where it ends."""
    begun = at + len(text[at:]) - len(text[at:].lstrip())
    if text[begun : begun + 1] != "{":
        raise ValueError(f"expected a group in braces, found {text[begun : begun + 20]!r}")
    depth = 0
    for index in range(begun, len(text)):
        if text[index] in "{}" and text[index - 1] != "\\":
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return text[begun + 1 : index], index + 1
    raise ValueError(f"a brace is not closed: {text[begun : begun + 40]!r}")


def _unknown(kind: str, name: str, among: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(among), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint}"
