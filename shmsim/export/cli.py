"""The command ``shmsim export``; what is slow to load is loaded when it runs."""

from pathlib import Path
from typing import Annotated, Final

import typer

from shmsim.console import (
    Bar,
    complete_policy,
    complete_profile,
    console,
    load_policies,
    load_profile,
)
from shmsim.export.engines import GENERIC, engine_names, load_engine
from shmsim.export.formats import FORMATS, check_format, render
from shmsim.program import Output
from shmsim.units import parse_duration_ns

HELP: Final = f"""Write a policy as the settings that an engine really has, ready to paste.

\b
shmsim export policy.json --engine vllm --engine-version 0.33.0
shmsim export park --engine libgomp -p profile.json --format compose
shmsim export policy.json -e vllm -p profile.json -c CONFIG.toml -f kubernetes

Engines: {", ".join(engine_names())}. Each has a table of settings with the versions that have \
them, their defaults and where that is written (docs/export.md); a setting that the version lacks \
is never written.

An engine that cannot do what the policy does is given the nearest it has. With -p and -c the \
model tells what that costs, and an engine's default is kept where nothing else gains.

Engines that count spins are given counts, by the time one round takes: --round, else what the \
profile says, else what is known of its CPU; the output says which.

Everything that is said about the settings comes as a comment, so that the output is a valid file.
"""


def export_command(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="A preset, KIND:key=value,... or a policy file.",
            autocompletion=complete_policy,
        ),
    ],
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            "-e",
            help=f"One of {', '.join(engine_names())}.",
            autocompletion=engine_names,
        ),
    ],
    engine_version: Annotated[
        str, typer.Option("--engine-version", help="Without it, the newest in the table.")
    ] = "",
    profile_path: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "-p",
            help="Costs of waiting on the machine.",
            autocompletion=complete_profile,
        ),
    ] = None,
    config_path: Annotated[
        Path | None, typer.Option("--config", "-c", help="Workload, workers, arena.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"One of {', '.join(FORMATS)}.",
            autocompletion=lambda: list(FORMATS),
        ),
    ] = "env",
    spin_round: Annotated[
        str, typer.Option("--round", help="How long one round of a spin takes, as in 30ns.")
    ] = "",
    replications: Annotated[
        int, typer.Option("--replications", "-r", min=2, help="Runs of each way in the model.")
    ] = 5,
) -> Output:
    """Write a policy as settings of an engine."""
    from shmsim.config import load_config
    from shmsim.export.pause import round_of
    from shmsim.export.report import Request, export

    check_format(form)  # before the model runs for nothing
    (wanted,) = load_policies([policy])
    known = load_engine(engine)
    rows = known if engine == GENERIC else known.at(engine_version or known.newest)
    profile = load_profile(profile_path) if profile_path is not None else None
    request = Request(
        wanted,
        rows,
        load_config(config_path) if config_path is not None else None,
        profile,
        round_of(parse_duration_ns(spin_round) if spin_round else 0, profile),
        replications,
        Path(policy) if policy.endswith(".json") else None,
    )
    with Bar() as bar:
        answer = export(request, lambda done, total: bar.show(f"model: run {done}", done / total))
    text = render(answer, form)
    console.out(text, highlight=False)  # to be pasted, so not wrapped
    return Output(
        {
            "engine": rows.name,
            "version": rows.version,
            "environment": dict(answer.environment),
            "flags": answer.flags,
            "shm_mib": answer.shm_mib,
            "beside": dict(answer.beside),
            "said": answer.said,
            "text": text,
        }
    )
