"""The whole loop in one command: the operator's commands, run one after another."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from rich.markup import escape

from realrun.host import machine_facts, warnings_about
from shmsim.console import console, details, diagnostics
from shmsim.whole import write_whole
from shmsim.workload import read_trace

_CONFIG: Final = """\
# Written by 'realrun demo'; edit it and run the commands again.
[engine]
workers = 1            # one per GPU
calls_per_step = 2     # execute_model and sample_tokens, as vLLM does
# One batch at a time. vLLM schedules "async" unless told otherwise (since 0.14.0): two batches in
# flight, so that waits overlap with work and cost less. Write "async" to see that; it needs a third
# thread, whose spinning takes time from the others where there are two cores.
scheduling = "sync"

[device]
kind = "echo"          # a device clock: no GPU needed
step = "2ms"           # a decode step of a 1B model on an H200
per_sequence = "10us"
per_prefill_token = "5us"
jitter = 0.01          # coefficient of variation

[workload]
{workload}

[run]
seed = 1
repeats = 2
delay_price = 10       # core-seconds you would pay to take a second off the critical path; also the
                       # goal of 'shmsim tune', and what the verdict weighs by
"""
_GENERATED: Final = """\
# Token counts by the quantiles of Azure's conversation trace of 2023, Poisson arrivals.
kind = "open"
requests = 16
rate_per_s = 2.0
burstiness = 1.0
prompt_p50 = 1020
prompt_p95 = 4083
output_p50 = 129
output_p95 = 451
max_output_tokens = 300"""
_TRACED: Final = """\
kind = "trace"
trace = {path}
requests = 16
speed = 1.0            # as fast as recorded
max_output_tokens = 300"""
_BASELINES: Final = ("spin", "vllm-1s", "forks-2ms", "park")


def run_demo(folder: Path, trace: Path | None) -> dict[str, Any]:
    """Calibrate, tune, run, compare.

    Parameters
    ----------
    folder
        Where everything is written.
    trace
        A trace to serve, or None for a generated workload.

    Returns
    -------
    dict
        Where the results are, the verdict, and what was compared.

    Raises
    ------
    ValueError
        If the trace is wrong.
    RuntimeError
        If a step fails.
    """
    started = time.monotonic()
    if trace is not None:
        read_trace(trace)  # before a minute of calibration, not after
    folder.mkdir(parents=True, exist_ok=True)
    config, profile, policy = (folder / n for n in ("config.toml", "profile.json", "policy.json"))
    write_whole(config, demo_config(trace))
    facts = machine_facts()
    console.print(
        f"this box: {facts['cpu']}, {len(facts['affinity'])} usable cores, "
        f"kernel {facts['kernel']}",
        markup=False,
    )
    for warning in warnings_about(facts):
        console.print(f"[yellow]note:[/] {escape(warning)}", soft_wrap=True)
    _command("realrun", "calibrate", "-o", str(profile))
    _command("shmsim", "tune", str(config), "-p", str(profile), "-o", str(policy), "--quick")
    policies = [part for name in (*_BASELINES, str(policy)) for part in ("--policy", name)]
    _command(
        "realrun", "validate", str(config), "-p", str(profile), *policies, "-o", str(folder)
    )  # fmt: skip
    _command("realrun", "report", str(folder))
    took_s = time.monotonic() - started
    console.print(
        f"\ndone in {took_s:.0f} s; look at {folder / 'report.html'}, "
        f"edit {config} and run any of the commands above again; what your engine can be told: "
        f"shmsim export {policy} --engine vllm -p {profile} -c {config}",
        markup=False,
    )
    return {
        "folder": folder,
        "report": folder / "report.html",
        "verdict": (folder / "verdict.txt").read_text(),
        "table": json.loads((folder / "validation.json").read_text())["table"],
        "took_s": took_s,
    }


def demo_config(trace: Path | None) -> str:
    """The config that the demo writes, for people to edit; of a trace, or a generated workload."""
    workload = _GENERATED
    if trace is not None:
        workload = _TRACED.format(path=json.dumps(str(trace.resolve())))
    return _CONFIG.format(workload=workload)


def _command(*words: str) -> None:
    """Run one of our commands as an operator would; its output goes where ours goes."""
    console.print(f"\n$ {' '.join(words)}", style="bold", markup=False, soft_wrap=True)
    program, *arguments = words
    arguments += ["--quiet"] * diagnostics.quiet + ["--verbose"] * (not details.quiet)
    said = subprocess.DEVNULL if console.quiet else None
    # Not subprocess.call: on Ctrl-C that kills its child a quarter of a second later, before it has
    # stopped its own children and stored what is finished.
    command = [sys.executable, "-m", f"{program}.cli", *arguments]
    with subprocess.Popen(command, stdout=said) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    if code:
        raise RuntimeError(f"'{' '.join(words)}' ended with exit code {code}")
