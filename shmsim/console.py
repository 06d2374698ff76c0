"""What both command lines share: where words go, progress, and what many commands are given.

Four consoles, so that nobody has to ask what may be said: `shmsim.program` mutes them by
``--json``, ``--quiet`` and ``--verbose``. Colours follow ``NO_COLOR`` and the terminal. What a
person named is printed by ``markup=False`` or `rich.markup.escape`: brackets are markup else.

Configs and profiles stand on scipy and Arrow, which take longer to load than most commands run, so
that what reads them is loaded where it is called: neither ``--help`` nor TAB needs it.
"""

import codecs
import copy
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from shmsim.policies import POLICIES, PRESETS

if TYPE_CHECKING:
    from shmsim.config import NamedPolicy, RunConfig
    from shmsim.profile import MachineProfile

_DRAW_EVERY_S = 1.0
_SAY_EVERY_S = 5.0  # into a log, where a line cannot be redrawn

#: What a terminal of few letters shows in place of ours: half a table is worse than "us" for µs.
_SPELT: Final = {
    "µ": "u", "±": "+-", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "…": "...", "∞": "inf",
}  # fmt: skip


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Write with what an encoding has what it lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_SPELT.get(letter, "?") for letter in lacking), error.end


codecs.register_error("shmsim.spelt", _spelt)
for _stream in (sys.stdout, sys.stderr):
    # Not only ASCII: what Latin-1 lacks are the lines of a table.
    if "utf" not in (getattr(_stream, "encoding", None) or "utf").lower():
        _stream.reconfigure(errors="shmsim.spelt")  # type: ignore[union-attr]

#: Where no terminal says how wide it is, as in a pipe: so that no cell is cut.
_PIPED_COLUMNS = 120
_WIDEST = 1000
_columns = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_COLUMNS

console = Console(highlight=False, emoji=False, width=_columns)
"""Results, for people; on stdout."""

diagnostics = Console(stderr=True, highlight=False, emoji=False)
"""Notes and progress."""

details = Console(stderr=True, highlight=False, emoji=False, quiet=True)
"""What only ``--verbose`` says."""

errors = Console(stderr=True, highlight=False, emoji=False)
"""Why it failed; never muted."""


def wide(columns: int) -> Console:
    """A console for results that is at least so wide, however narrow the terminal."""
    width = max(console.width, columns)
    return Console(highlight=False, emoji=False, width=width, quiet=console.quiet)


def print_uncut(table: Table, n_keys: int = 1) -> None:
    """Print a table of names and numbers with each of them whole: half a number is a wrong one.

    Where a terminal is too narrow for all columns they come below each other, each time beside the
    first ones, which say what a row is. Into a pipe a table goes in one piece, however wide.
    """
    for column in table.columns:
        # Words of a header may stand below each other, those of a cell not.
        cells = [_bounds(cell).maximum for cell in column.cells]
        column.width = max(_bounds(column.header).minimum, *cells, 0)
    parts = [table] if _columns is not None else _in_parts(table, n_keys, console.width)
    for part in parts:
        width = max(console.width, _bounds(part).minimum)
        for column in part.columns:
            spare = width - _bounds(part).minimum
            header = _bounds(column.header).maximum
            column.width = max(column.width or 0, min(header, (column.width or 0) + spare))
        wide(width).print(part)


def _bounds(what: RenderableType) -> Measurement:
    """Least and most columns of a terminal that something takes by itself."""
    return console.measure(what, options=console.options.update(width=_WIDEST))


def _in_parts(table: Table, n_keys: int, width: int) -> Iterator[Table]:
    """Tables of the keys and as many of the other columns as there is room for, at least one."""
    keys, others = table.columns[:n_keys], table.columns[n_keys:]
    while others:
        n = len(others)
        while n > 1 and _bounds(_with_columns(table, [*keys, *others[:n]])).minimum > width:
            n -= 1
        yield _with_columns(table, [*keys, *others[:n]])
        others = others[n:]


def _with_columns(table: Table, columns: list[Column]) -> Table:
    some = copy.copy(table)
    some.columns = [dataclasses.replace(each, _index=i) for i, each in enumerate(columns)]
    return some


def complete_policy(incomplete: str) -> list[str]:
    """Presets, kinds and policy files that begin so, for a shell."""
    names = [*PRESETS, *(f"{kind}:" for kind in POLICIES)]
    return [*(n for n in names if n.startswith(incomplete)), *_files(incomplete, ".json")]


def complete_profile(incomplete: str) -> list[str]:
    """Profiles that come along and files that begin so, for a shell."""
    from shmsim.inputs.shipped import shipped_names

    return [
        *(name for name in shipped_names() if name.startswith(incomplete)),
        *_files(incomplete, ".json"),
    ]


def _files(incomplete: str, suffix: str) -> list[str]:
    """Folders, and files with a suffix, that begin so."""
    folder, _, name = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).iterdir())
    except OSError:
        return []
    prefix = incomplete[: len(incomplete) - len(name)]
    return [
        f"{prefix}{path.name}{'/' * path.is_dir()}"
        for path in found
        if path.name.startswith(name) and (path.is_dir() or path.suffix == suffix)
    ]


# What commands of both programs take.
ConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG.toml",
        help="Engine, workload, device and policies; without it a closed loop of 40 requests.",
    ),
]
ProfileOption = Annotated[
    Path,
    typer.Option(
        "--profile",
        "-p",
        help="Costs of waiting: a file of 'realrun calibrate -o FILE', or a profile that comes "
        "along, such as vm-2cpu ('shmsim profile --list').",
        autocompletion=complete_profile,
    ),
]


class Bar:
    """Progress on stderr; drawn only when told, so that it takes no CPU meanwhile.

    On a terminal it is a bar. Elsewhere, as in a log, it is silent; ``--verbose`` writes a line now
    and then.
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=diagnostics,
            auto_refresh=False,
            transient=True,
            disable=diagnostics.quiet or not diagnostics.is_terminal,
        )
        self._task = self._progress.add_task("", total=1.0)
        self._said_at = 0.0

    def __enter__(self) -> "Bar":
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def show(self, label: str, share: float) -> None:
        """Say what is being done, and how much is: 0 to 1."""
        # Drawing takes milliseconds of a core that somebody may be timing.
        every_s = _SAY_EVERY_S if self._progress.disable else _DRAW_EVERY_S
        self._progress.update(self._task, description=label, completed=share)
        if time.monotonic() - self._said_at > every_s:
            self._said_at = time.monotonic()
            if self._progress.disable:
                details.print(f"{100 * share:3.0f} % {label}", markup=False)
            else:
                self._progress.refresh()


def load_or_default(path: Path | None) -> "RunConfig":
    """Read the config a command was given; without one, the built-in one."""
    from shmsim.config import RunConfig, load_config

    config = load_config(path) if path is not None else RunConfig()
    details.print(f"config: {path or 'built in'}: {config}", markup=False, soft_wrap=True)
    return config


def load_profile(path: Path) -> "MachineProfile":
    """Read the profile that a command was given: a file, or the name of one that comes along.

    Raises
    ------
    ValueError
        If it is missing or damaged; names the nearest that there is.
    """
    from shmsim.profile import MachineProfile

    if not path.suffix and path.parent == Path() and not path.exists():
        return MachineProfile.shipped(str(path))
    return MachineProfile.read(path)


def load_policies(texts: list[str]) -> tuple["NamedPolicy", ...]:
    """Read policies from a command line: presets, kinds with parameters, or policy files.

    Raises
    ------
    ConfigError
        If one is unknown or two have one name.
    """
    from shmsim.config import ConfigError, parse_policy
    from shmsim.policy_file import read_policy

    policies = tuple(
        read_policy(Path(text)) if text.endswith(".json") else parse_policy(text) for text in texts
    )
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two policies have the same name among {', '.join(names)}; give one another, by "
            'name=... behind its kind, or as "name" in its file'
        )
    for policy in policies:
        details.print(f"policy {policy.name}: {policy.policy}", markup=False, soft_wrap=True)
    return policies
