"""What both command lines share: where words go, progress, and what many commands are given.

Four consoles, so that nobody has to ask what may be said: `shmsim.program` mutes them by
``--json``, ``--quiet`` and ``--verbose``. Colours follow ``NO_COLOR`` and the terminal. What a
person named is printed by ``markup=False`` or `rich.markup.escape`: brackets are markup else.

Configs and profiles stand on scipy and Arrow, which take longer to load than most commands run, so
that what reads them is loaded where it is called: neither ``--help`` nor TAB needs it.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shmsim.policies import POLICIES, PRESETS

if TYPE_CHECKING:
    from shmsim.config import NamedPolicy, RunConfig
    from shmsim.profile import MachineProfile

_DRAW_EVERY_S = 1.0
_SAY_EVERY_S = 5.0  # into a log, where a line cannot be redrawn

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


def print_uncut(table: Table) -> None:
    """Print a table of names and numbers as wide as it is: a name that is cut names nothing."""
    without_bounds = console.options.update(width=_WIDEST)
    wide(console.measure(table, options=without_bounds).maximum).print(table)


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
