"""The ``realrun vllm-*`` commands; each loads what it runs on when it runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from realrun.vllm.soak_cli import soak_command
from shmsim.console import (
    Bar,
    complete_policy,
    complete_profile,
    console,
    load_policies,
    load_profile,
    print_uncut,
)
from shmsim.program import Output, Program, Written
from shmsim.wait import TYPICAL_COSTS
from shmsim.whole import write_whole

if TYPE_CHECKING:
    from realrun.vllm.prediction import ArmPrediction
    from realrun.vllm.stored import Stored
    from shmsim.profile import MachineProfile

_ARMS = ["park", "wake-ahead", "step-ahead", "forks-2ms", "window=2ms"]


def add_commands(app: Program) -> None:
    """Add them to the ``realrun`` command."""
    app.subcommand("vllm-import")(import_command)
    app.subcommand("vllm-switch")(switch_command)
    app.subcommand("vllm-ab")(ab_command)
    app.subcommand("vllm-predict")(predict_command)
    app.subcommand("vllm-soak")(soak_command)


def import_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="REALRUN_VLLM_TRACE of the engine.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where the run is stored; else DIR/run."),
        Written.FOLDER,
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "-p",
            help="Of this box: makes profile.json and config.toml of the engine.",
            autocompletion=complete_profile,
        ),
    ] = None,
) -> Output:
    """Make one run of what the processes of a vLLM recorded, and say where its cores go.

    Writes the records (Parquet) and timeline.json.gz for the Perfetto UI; with a profile also what
    'shmsim simulate OUT/config.toml -p OUT/profile.json --policy ...' needs to predict.
    """
    from realrun.host import usable_cores
    from realrun.vllm.importer import shares, to_records
    from realrun.vllm.model import engine_config, engine_facts, engine_profile
    from realrun.vllm.report import shares_table
    from realrun.vllm.traces import read_traces
    from shmsim.timeline import write_timeline

    traces = read_traces(folder)
    records = to_records(traces)
    out = out or folder / "run"
    records.write(out)
    write_timeline(records, out / "timeline.json.gz")
    if profile is not None:
        facts = engine_facts(traces)
        engine_profile(load_profile(profile), facts).write(out / "profile.json")
        write_whole(out / "config.toml", engine_config(facts, len(usable_cores())))
    found = shares(traces)
    print_uncut(shares_table(found))
    console.print(
        f"{len(records.steps)} steps: {out} (records, timeline.json.gz)",
        markup=False,
        soft_wrap=True,
    )
    return Output({"folder": out, "steps": len(records.steps), "shares": found})


def switch_command(
    control: Annotated[
        Path, typer.Argument(metavar="CONTROL", help="REALRUN_VLLM_CONTROL of the engine.")
    ],
    arm: Annotated[
        int | None,
        typer.Argument(metavar="N", help="0 for vLLM's own waiting, N for its N-th policy."),
    ] = None,
) -> Output:
    """Choose how a running vLLM waits, and show what its processes have counted.

    In force a policy shows in 'waits' that grow while 'vllm waits' and 'pinged' stand still.
    """
    from realrun.vllm.control import Control
    from realrun.vllm.report import counters_table
    from shmsim.config import ConfigError

    if not control.exists():
        raise ConfigError(f"there is no {control}: was the engine started with it?")
    mapped = Control.open(control, 0)
    if arm is not None:
        mapped.arm = arm
    print_uncut(counters_table(mapped))
    console.print(f"in force: {mapped.arm}")
    return Output({"in_force": mapped.arm, "processes": mapped.read()})


def ab_command(
    python: Annotated[
        Path, typer.Option("--python", help="Interpreter that has vLLM, and this package.")
    ],
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            help="A preset, KIND:key=value,..., a policy file, or window=2ms for vLLM's own "
            "waiting with another window; repeatable.",
            autocompletion=complete_policy,
        ),
    ] = _ARMS,
    workers: Annotated[int, typer.Option(help="Tensor-parallel workers.")] = 1,
    sync: Annotated[bool, typer.Option("--sync", help="Without async scheduling.")] = False,
    streams: Annotated[int, typer.Option(help="Requests at once.")] = 1,
    tokens: Annotated[int, typer.Option(help="Tokens of each generation.")] = 400,
    starts: Annotated[
        int,
        typer.Option(
            help="Engine starts, at least 2; one that others disturbed is made once more, up to "
            "half as many."
        ),
    ] = 3,
    rounds: Annotated[int, typer.Option(help="Rounds in each; a round runs every arm twice.")] = 2,
    idle: Annotated[
        str, typer.Option(help="Time first tokens after so long; 0s leaves that out.")
    ] = "0s",
    engine: Annotated[
        Path | None,
        typer.Option(help="JSON file of arguments for vllm.LLM, in place of the tiny model's."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "-p",
            help="Of this box: costs that policies are told and, with --recorder, that the model "
            "predicts every arm with.",
            autocompletion=complete_profile,
        ),
    ] = None,
    delay_price: Annotated[
        float,
        typer.Option(
            "--delay-price",
            min=0.0,
            max=1e6,
            help="Core-seconds that a second of delay is worth, as policies are told: "
            "run.delay_price of a config.",
        ),
    ] = TYPICAL_COSTS.delay_price,
    recorder: Annotated[
        bool, typer.Option("--recorder", help="One more arm: vLLM as it is, recorded.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for one comparison, in place of the one that is there; else one named by "
            "the cell in runs/vllm-ab.",
        ),
        Written.FOLDER,
    ] = None,
    claims_path: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE", help="Claims file, for shmsim claims."),
        Written.FILE,
    ] = None,
) -> Output:
    """Run ways to wait against each other in a live vLLM, and hold each against vLLM's own.

    Without --engine a tiny Llama with random weights serves, also on a box without a GPU.
    """
    from realrun.host import machine_facts
    from realrun.vllm.ab import Plan, blocks_that_count, run, summarize
    from realrun.vllm.engine import cpu_environment, find_vllm, message_costs
    from realrun.vllm.prediction_report import prediction_claims
    from realrun.vllm.report import (
        comparison_claims,
        print_comparison,
        recorder_claim,
        recorder_sentence,
    )
    from realrun.vllm.stored import (
        PROFILE,
        TRACE_FOLDER,
        Stored,
        write_comparison,
        write_costs,
    )
    from shmsim.claims import write_claims
    from shmsim.config import ConfigError
    from shmsim.units import S, parse_duration_ns

    if starts < 2:
        raise ConfigError(f"an interval needs at least 2 starts, got {starts}")
    idle_s = parse_duration_ns(idle) / S
    plan = Plan(workers, not sync, streams, tokens, starts, rounds, idle_s, delay_price)
    version = find_vllm(python)
    box = None if profile is None else load_profile(profile)
    own = json.loads(engine.read_text()) if engine is not None else {}
    out = out or Path("runs/vllm-ab") / plan.cell
    out.mkdir(parents=True, exist_ok=True)
    arms, floor = _arms(policy, out)
    if box is not None:
        box.write(out / PROFILE)
    costs = write_costs(out, box, delay_price)
    with Bar() as bar:
        compared = run(
            plan,
            python,
            arms,
            out,
            costs,
            own,
            cpu_environment(version, workers),
            lambda done, total, label: bar.show(label, done / total),
            (out / TRACE_FOLDER).absolute() if recorder else None,
        )
    plan, blocks, disturbed = compared
    stored = Stored(*compared, version, machine_facts())
    write_comparison(out, stored)
    results = summarize(blocks_that_count(blocks, disturbed), floor)
    print_comparison(compared, results)
    claims = comparison_claims(plan, results)
    predictions: list[ArmPrediction] = []
    if recorder:
        took = message_costs(python)
        claims.append(recorder_claim(plan, results, took))
        console.print(recorder_sentence(plan, results, took), soft_wrap=True)
    if recorder and box is not None:
        predictions = _predict(out, stored, box)
        claims += prediction_claims(plan, predictions)
    if claims_path is not None:
        write_claims(claims_path, {**stored.machine, "engine": version}, claims)
    console.print(f"{version}; results: {out}", markup=False, soft_wrap=True)
    return Output(
        {
            "folder": out,
            "engine": version,
            "disturbed": disturbed,
            "arms": results,
            "predictions": predictions,
            "claims": claims,
        }
    )


def _arms(texts: list[str], out: Path) -> tuple[list[tuple[str, str]], str | None]:
    """Name and policy file of each arm, and the name of the one that parks."""
    from realrun.vllm.arms import WINDOW
    from realrun.vllm.stored import clear
    from shmsim.policies import Park
    from shmsim.policy_file import write_policy

    policies = iter(load_policies([text for text in texts if not text.startswith(WINDOW)]))
    clear(out)  # what was read may have been there
    arms, floor = [], None
    for text in texts:
        if text.startswith(WINDOW):
            arms.append((text, text))
            continue
        named = next(policies)
        path = out / f"arm{len(arms) + 1}.json"
        write_policy(path, named, {})
        arms.append((named.name, str(path.absolute())))
        if isinstance(named.policy, Park):
            floor = named.name
    return arms, floor


def predict_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="What 'realrun vllm-ab --recorder -o' stored."),
    ],
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "-p",
            help="Of the box that it ran on; else the one that vllm-ab was given.",
            autocompletion=complete_profile,
        ),
    ] = None,
    claims_path: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE", help="Claims file, for shmsim claims."),
        Written.FILE,
    ] = None,
) -> Output:
    """Predict every arm of a stored comparison from records of vLLM's own waiting.

    Starts no engine: after a change of the model, or with another profile, the same measurements
    judge it again, at the price of delay that they were made at. vllm-ab does the same at its end,
    if it has a profile and records.
    """
    from realrun.vllm.prediction_report import prediction_claims
    from realrun.vllm.stored import PROFILE, read_comparison
    from shmsim.claims import write_claims

    stored = read_comparison(folder)
    found = _predict(folder, stored, load_profile(profile or folder / PROFILE))
    claims = prediction_claims(stored.plan, found)
    if claims_path is not None:
        write_claims(claims_path, {**stored.machine, "engine": stored.engine}, claims)
    return Output({"folder": folder, "predictions": found, "claims": claims})


def _predict(folder: Path, stored: "Stored", profile: "MachineProfile") -> "list[ArmPrediction]":
    """Predict, print and store."""
    from realrun.vllm.prediction import predict_arms, write_predictions
    from realrun.vllm.prediction_report import print_predictions

    with Bar() as bar:
        found = predict_arms(
            folder,
            stored,
            profile,
            lambda done, total, label: bar.show(label, done / total),
        )
    write_predictions(folder, found)
    print_predictions(stored.plan, found)
    return found
