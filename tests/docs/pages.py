"""What the pages hold: examples, commands and links, found as a reader would."""

import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    {
        ROOT / "README.md",
        *DOCS.glob("*.md"),
        *ROOT.glob("experiments/README.md"),
        *ROOT.glob("experiments/*/README.md"),
        *ROOT.glob("experiments/bench/*.md"),
    }
)
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
PROGRAMS = ("shmsim", "realrun")

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^(?:\$ )?(?:\S*/)?(shmsim|realrun)(?: (.*))?$")
# What may stand behind a command: prose in a second column, a comment, another command.
_BEHIND = re.compile(r"\s{2,}|\s#|\s(?:&&|\||>|;)\s")
_SPAN = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A fenced block: its language, the name of the file it is, if any, and its text."""

    language: str
    title: str | None
    text: str


def blocks(name, *languages):
    """The blocks of a page in these languages, in order; all of them if none is named."""
    found = [
        Block(m["language"], m["title"], textwrap.dedent(m["text"]))
        for m in _BLOCK.finditer((ROOT / name).read_text(encoding="utf-8"))
    ]
    return [block for block in found if not languages or block.language in languages]


def command_of(line):
    """Program and words of a line that calls one of ours, else None."""
    found = _COMMAND.match(line.strip())
    if found is None:
        return None
    return found[1], shlex.split(_BEHIND.split(found[2] or "")[0])


def lines_of(block):
    """The commands of a block, each on one line, as its language shows them."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def commands(name):
    """Every call of ours in the blocks of a page."""
    lines = (
        line
        for block in blocks(name, "", "sh", "console")
        for line in block.text.replace("\\\n", " ").splitlines()
    )
    return [found for found in map(command_of, lines) if found is not None]


def spans(name):
    """What the prose of a page calls, in code spans."""
    prose = _BLOCK.sub("", (ROOT / name).read_text(encoding="utf-8"))
    found = (command_of(text) for text in _SPAN.findall(prose) if " " in text)
    return [call for call in found if call is not None]
