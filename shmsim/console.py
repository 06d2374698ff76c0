"""What both command lines share: progress on stderr, errors in one line, exit codes."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shmsim.config import ConfigError, NamedPolicy, RunConfig, load_config, parse_policy
from shmsim.policy_file import read_policy

MISUSE = 2
FAILURE = 1
INTERRUPTED = 130

_DRAW_EVERY_S = 1.0
_SAY_EVERY_S = 5.0  # into a log, where a line cannot be redrawn

# What commands of both programs take.
ConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG.toml]",
        help="Engine, workload, device and policies; without it a closed loop of 40 requests.",
    ),
]
ProfileOption = Annotated[
    Path,
    typer.Option("--profile", "-p", help="Calibrated costs, from 'realrun calibrate -o FILE'."),
]

console = Console(highlight=False)
diagnostics = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def errors_explained() -> Iterator[None]:
    """Turn an expected error into one line on stderr and an exit code."""
    try:
        yield
    except typer.Exit:  # a RuntimeError, yet no failure of ours
        raise
    except ValueError as error:
        diagnostics.print(f"[red]error:[/] {_plain(error)}", soft_wrap=True)
        raise typer.Exit(MISUSE) from None
    except (OSError, RuntimeError) as error:
        diagnostics.print(f"[red]failed:[/] {_plain(error)}", soft_wrap=True)
        raise typer.Exit(FAILURE) from None
    except KeyboardInterrupt:
        diagnostics.print("interrupted; everything was stopped and cleaned up")
        raise typer.Exit(INTERRUPTED) from None


def _plain(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {text}"
    return text.replace("[", r"\[")


class Bar:
    """A progress bar on stderr; redrawn only when told, so that it takes no CPU meanwhile."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=diagnostics,
            auto_refresh=False,
            transient=True,
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
        self._progress.update(self._task, description=label, completed=share)
        # Drawing takes milliseconds of a core that somebody may be timing.
        if diagnostics.is_terminal:
            if time.monotonic() - self._said_at > _DRAW_EVERY_S:
                self._said_at = time.monotonic()
                self._progress.refresh()
        elif time.monotonic() - self._said_at > _SAY_EVERY_S:
            self._said_at = time.monotonic()
            diagnostics.print(f"{100 * share:3.0f} % {label}")


def load_or_default(path: Path | None) -> RunConfig:
    """Read the config a command was given; without one, the built-in one."""
    return load_config(path) if path is not None else RunConfig()


def load_policies(texts: list[str]) -> tuple[NamedPolicy, ...]:
    """Read policies from a command line: presets, kinds with parameters, or policy files.

    Raises
    ------
    ConfigError
        If one is unknown or two have one name.
    """
    policies = tuple(
        read_policy(Path(text)) if text.endswith(".json") else parse_policy(text) for text in texts
    )
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise ConfigError(f"two policies have the same name among {', '.join(names)}")
    return policies
