"""What every command of both programs has: three options, one answer, four exit codes.

A command prints on `shmsim.console.console` what people read, and returns an `Output` with the same
as data. Which of the two reaches stdout is decided here, once: ``--json`` prints the data, and only
that. Notes and progress go to stderr (`shmsim.console.diagnostics`), so that stdout can be piped.
"""

import contextlib
import dataclasses
import enum
import errno
import functools
import inspect
import json
import logging
import math
import os
import platform
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, NamedTuple, ParamSpec

import typer
from rich.logging import RichHandler
from rich.text import Text

from shmsim.console import console, details, diagnostics, errors
from shmsim.entry import command_begins
from shmsim.extras import how_to_add
from shmsim.nearest import did_you_mean_file

DONE: Final = 0
FAILURE: Final = 1
MISUSE: Final = 2
INTERRUPTED: Final = 130

EXIT_CODES: Final = (
    f"Exit codes: {DONE} done; {FAILURE} it failed, or a check does not hold; {MISUSE} wrong "
    f"arguments or files; {INTERRUPTED} interrupted by Ctrl-C."
)

PANEL: Final = "Of every command"
_P = ParamSpec("_P")


class Output(NamedTuple):
    """What a command found, as data.

    Parameters
    ----------
    data
        Numbers, texts, paths, arrays of NumPy, and tuples, dataclasses, lists and mappings of them.
    holds
        False if the command checks something that does not hold: exit code `FAILURE`.
    """

    data: Any
    holds: bool = True


class Written(enum.Enum):
    """Stands beside an option that names what the command will write: a file, or a folder of them.

    Whether it can be is found out before the work, which may take minutes.
    """

    FILE = "file"
    FOLDER = "folder"


class Program(typer.Typer):
    """A command line whose commands return `Output`.

    Parameters
    ----------
    help
        What the program is for.
    """

    def __init__(self, help: str) -> None:
        """Have no commands yet."""
        super().__init__(
            help=help,
            epilog=EXIT_CODES,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            callback=_program,
        )

    def subcommand(
        self, name: str, text: str | None = None
    ) -> Callable[[Callable[_P, Output]], Callable[_P, Output]]:
        """Make a command of the function below.

        Parameters
        ----------
        name
            Of the command.
        text
            Its help; without it the docstring.
        """

        def add(function: Callable[_P, Output]) -> Callable[_P, Output]:
            self.command(name, help=text, epilog=EXIT_CODES)(_as_command(function))
            return function

        return add


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shmsim {version('shmsim')}")
        raise typer.Exit(DONE)


def _program(
    *,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which version."),
    ] = False,
) -> None:
    del show_version


def _as_command(function: Callable[..., Output]) -> Callable[..., None]:
    """What typer is given: the function, and the options of every command."""
    own = inspect.signature(function, eval_str=True)
    kinds = {name: _written(parameter) for name, parameter in own.parameters.items()}

    @functools.wraps(function)
    def command(*, as_json: bool, quiet: bool, verbose: bool, **arguments: Any) -> None:
        paths = {name: value for name, value in arguments.items() if isinstance(value, Path)}
        written = {path: kind for name, path in paths.items() if (kind := kinds[name])}
        with (
            _speaking(as_json, quiet, verbose),
            _errors_explained(list(paths.values()), list(written)),
        ):
            for path, kind in written.items():
                _make_sure_it_can_be_written(path, kind)
            output = function(**arguments)
            if as_json:
                text = json.dumps(plain(output.data), indent=1, allow_nan=False)
                print(text, flush=True)  # noqa: T201 - for a machine, so not by rich
            if not output.holds:
                raise typer.Exit(FAILURE)

    parameters = [*own.parameters.values(), *_COMMON]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    command.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    return command


def _written(parameter: inspect.Parameter) -> Written | None:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Written)), None)


def _make_sure_it_can_be_written(path: Path, kind: Written) -> None:
    """Refuse what could not be written after all the work; make the folder that a file goes to.

    Raises
    ------
    OSError
        If it cannot be written, or is a folder in place of a file or the other way round.
    """
    if kind is Written.FILE and path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", str(path))
    if kind is Written.FOLDER and path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file; name a folder", str(path))
    if kind is Written.FILE:
        path.parent.mkdir(parents=True, exist_ok=True)
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir() and there != path:
        raise NotADirectoryError(errno.ENOTDIR, "is a file; name another folder", str(there))
    if not os.access(there, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written to; name another place", str(there))


def _flag(name: str, *words: str, text: str) -> inspect.Parameter:
    option = typer.Option(*words, help=text, rich_help_panel=PANEL)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=False, annotation=Annotated[bool, option])


_COMMON: Final = (
    _flag("as_json", "--json", text="Print the data as JSON, and nothing else, on stdout."),
    _flag("quiet", "--quiet", "-q", text="Print nothing but errors (and the data, with --json)."),
    _flag("verbose", "--verbose", "-v", text="Say more on stderr, with an error its traceback."),
)


@contextlib.contextmanager
def _speaking(as_json: bool, quiet: bool, verbose: bool) -> Iterator[None]:
    """Let through what was asked for."""
    said = {console: not (as_json or quiet), diagnostics: not quiet, details: verbose}
    before = {each: each.quiet for each in said}
    for each, is_said in said.items():
        each.quiet = not is_said
    handler = RichHandler(console=diagnostics, show_time=False, show_path=False)
    logger = logging.getLogger("shmsim")
    logger.addHandler(handler)
    logger.propagate = False
    began_s, cpu_s = time.monotonic(), _cpu_s()
    details.print(f"shmsim {version('shmsim')}, Python {platform.python_version()}")
    try:
        yield
    finally:
        # Also where it failed: how long it took until then is worth knowing.
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        details.print(
            f"took {time.monotonic() - began_s:.2f} s, {_cpu_s() - cpu_s:.2f} s of CPU with its "
            f"processes, and {peak_mib:.0f} MiB at most in this one"
        )
        logger.removeHandler(handler)
        logger.propagate = True
        for each, was_quiet in before.items():
            each.quiet = was_quiet


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@contextlib.contextmanager
def _errors_explained(paths: list[Path], written: list[Path]) -> Iterator[None]:
    """Turn an expected error into one line on stderr and an exit code.

    Parameters
    ----------
    paths
        What the command was given: one that is missing may be misspelt.
    written
        Where it writes: of a full disk the system says no more than that it is full.
    """
    try:
        command_begins()
        yield
    except (typer.Exit, BrokenPipeError):  # no failure of ours; typer ends quietly for the latter
        raise
    except ValueError as error:
        _explain("error", error, paths)
        raise typer.Exit(MISUSE) from None
    except (OSError, RuntimeError) as error:
        _explain("failed", error, paths, written)
        raise typer.Exit(FAILURE) from None
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "everything was stopped and cleaned up"
        errors.print(f"interrupted; {said}", markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def _explain(what: str, error: Exception, paths: list[Path], written: Sequence[Path] = ()) -> None:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {text}"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC and written:
        text += f"; it writes to {', '.join(map(str, written))}"
    if "No module named 'torch'" in text:
        text += f"; {how_to_add('torch')}"
    text += _meant(text, [*paths, *_missing(error)])
    details.print(traceback.format_exc(), markup=False)
    errors.print(Text.assemble((f"{what}:", "red"), f" {text}"), soft_wrap=True)


def _missing(error: BaseException) -> Iterator[Path]:
    """Files that were missing: who catches such an error writes a sentence of it, with its name."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FileNotFoundError) and isinstance(cause.filename, str):
            yield Path(cause.filename)
        cause = cause.__context__


def _meant(text: str, paths: list[Path]) -> str:
    """Ask which file or folder was meant, where a text names one that is missing."""
    asked = (did_you_mean_file(path) for path in paths if str(path) in text)
    return next(filter(None, asked), "")


def plain(value: Any) -> Any:
    """Make of data what JSON can hold.

    Named tuples and dataclasses become objects by their fields, paths texts; what is no number
    (NaN) and what is infinite becomes null.

    Raises
    ------
    TypeError
        If there is something else in it.

    Examples
    --------
    >>> plain({"x": (1.5, float("nan")), "at": PurePath("runs/a")})
    {'x': [1.5, None], 'at': 'runs/a'}
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # of NumPy, which not every command has loaded
        return plain(value.tolist())
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):  # before tuple, which a named tuple is too
        return plain(value._asdict())
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
