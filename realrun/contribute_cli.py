"""The ``realrun contribute`` command; what is slow to load is loaded when it runs."""

from pathlib import Path
from typing import Annotated, Final

import typer

from shmsim.console import Bar, complete_profile, console, diagnostics
from shmsim.program import FAILURE, Output, Written
from shmsim.whole import write_whole

HELP: Final = """Write what came out as one file for the leaderboard, without private data.

RUN is a folder of 'realrun validate' or 'realrun run --out', or a policy file of 'shmsim tune' with
the profile that it was tuned on.

The file holds figures, settings and facts of the machine, chosen from a list; no host name, user
name or path, and no name that you gave to something. All of it is shown before it is saved.
"""


def contribute_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="What to contribute, see above.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Without it, bundle.json in its folder."),
        Written.FILE,
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "-p",
            help="Of a policy file: what it was tuned on.",
            autocompletion=complete_profile,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Save without asking, for scripts.")] = False,
) -> Output:
    """Show a bundle, and save it if the user agrees."""
    from realrun.contribute import bundle_of, text_of
    from shmsim.profile import MachineProfile

    if console.quiet and not yes:
        raise ValueError(
            "--json and --quiet show nothing that you could agree to; add --yes, or leave them out"
        )
    known = MachineProfile.read(profile) if profile is not None else None
    with Bar() as bar:
        bundle = bundle_of(run, known, bar.show)
    text = text_of(bundle)
    folder = run if run.is_dir() else run.parent
    path = out if out is not None else folder / "bundle.json"
    console.print(text, markup=False, soft_wrap=True)
    diagnostics.print(f"This is all of it, {len(text.encode())} bytes.")
    if not yes and not _agreed(path):
        diagnostics.print("nothing was saved")
        raise typer.Exit(FAILURE)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    console.print(
        f"bundle: {path}; to add this machine to the leaderboard, see "
        "experiments/leaderboard/README.md",
        markup=False,
        soft_wrap=True,
    )
    return Output({"bundle": path, **bundle})


def _agreed(path: Path) -> bool:
    try:
        return typer.confirm(f"Save it as {path}?", err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise ValueError("nobody answered, so nothing was saved; in a script, add --yes") from None
