"""The ``realrun vllm-soak`` command; it loads what it runs on when it runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from shmsim.console import Bar, console
from shmsim.program import Output, Written

_WINDOWS = ["0ms", "0.5ms", "1ms", "2ms"]


def soak_command(
    python: Annotated[
        Path, typer.Option("--python", help="Interpreter that has vLLM, and this package.")
    ],
    window: Annotated[
        list[str], typer.Option("--window", help="Time to look before sleeping; repeatable.")
    ] = _WINDOWS,
    steps: Annotated[int, typer.Option(min=2, help="Steps at each window.")] = 100_000,
    control: Annotated[
        str,
        typer.Option(
            help="The same on vLLM's own bell, for so long at most: it may stand still for seconds "
            "in every step; 0s leaves that out."
        ),
    ] = "2min",
    workers: Annotated[int, typer.Option(help="Tensor-parallel workers.")] = 1,
    sync: Annotated[bool, typer.Option("--sync", help="Without async scheduling.")] = False,
    engine: Annotated[
        Path | None,
        typer.Option(help="JSON file of arguments for vllm.LLM, in place of the tiny model's."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for results; a later call goes on with them."),
        Written.FOLDER,
    ] = Path("runs/vllm-soak"),
    claims_path: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE", help="Claims file, for shmsim claims."),
        Written.FILE,
    ] = None,
) -> Output:
    """Count stalls of a live vLLM that sleeps early: on our bell there must be none.

    Every window is waited out on our bell, then on vLLM's own. 100000 steps of the tiny model take
    8 minutes for each window; what is finished is kept if the rest is interrupted.
    """
    from realrun.host import machine_facts
    from realrun.vllm.engine import Setup, cpu_environment, find_vllm
    from realrun.vllm.generate import engine_arguments, write_tiny_model
    from realrun.vllm.soak import SoakPlan, soak
    from realrun.vllm.soak_report import print_soak, soak_claims
    from shmsim.claims import write_claims
    from shmsim.config import ConfigError
    from shmsim.units import S, parse_duration_ns

    version = find_vllm(python)
    own = json.loads(engine.read_text()) if engine is not None else {}
    control_s = parse_duration_ns(control) / S
    plan = SoakPlan(workers, not sync, version, own, steps, control_s)
    windows_ns = [parse_duration_ns(text) for text in window]
    if min(windows_ns) < 0 or plan.control_s < 0:
        raise ConfigError("a window, and the time for the control, are 0 or more")
    out.mkdir(parents=True, exist_ok=True)
    model = (out / "model").absolute()
    write_tiny_model(model)
    arguments = {**engine_arguments(model, workers, asynchronous=plan.asynchronous), **own}
    setup = Setup(python, arguments, "", None, None, cpu_environment(version, workers))
    with Bar() as bar:
        plan, found = soak(
            plan, windows_ns, setup, out, lambda share, label: bar.show(label, share)
        )
    print_soak(plan, found)
    claims = soak_claims(plan, found)
    if claims_path is not None:
        write_claims(claims_path, {**machine_facts(), "engine": version}, claims)
    console.print(f"{version}; results: {out}", markup=False, soft_wrap=True)
    return Output(
        {"folder": out, "engine": version, "windows": found, "claims": claims},
        holds=all(claim.holds for claim in claims),
    )
