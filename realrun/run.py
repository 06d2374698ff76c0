"""Starts the processes of one run, watches them, and gathers their records.

Whatever ends a run (the last request, Ctrl-C, a killed worker, an error) leaves no process, no
shared memory and no file behind.
"""

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from realrun.causes import cause_in, reason_in
from realrun.host import machine_facts, usable_cores
from realrun.layout import CALL_ID, FLAGS, ORIGIN_AT, READY
from realrun.model.geometry import check_shares, geometry_of, model_of
from realrun.placement import assign_cores
from realrun.ring import WARM_UP
from realrun.segment import Segment
from realrun.spec import RunSpec, policy_to_json
from shmsim.config import EngineConfig, RunConfig
from shmsim.profile import MachineProfile
from shmsim.records import RunRecords
from shmsim.tape import Tape
from shmsim.units import S
from shmsim.wait import WaitPolicy, echo_guard_ns

_LOOK_EVERY_S: Final = 0.02
_START_LIMIT_S: Final = 60.0
_LOADING_LIMIT_S: Final = 420.0  # with a model to load and graphs to capture
_STALL_LIMIT_S: Final = 30.0  # beyond the longest step and the longest idle period
#: Of what the scheduler says about a run.
_KEPT: Final[tuple[str, ...]] = ("tokens_crc32", "bulk_digest")
_GRACE_S: Final = 0.3  # who is told to stop has nothing left to save

#: Called with the number of steps so far.
Progress = Callable[[int], None]


class RunFailed(RuntimeError):  # noqa: N818 - the outcome, by its name
    """A run that did not finish; says which process failed and how."""


class OutOfTime(RunFailed):
    """A run that was stopped because it had no more time, whatever it was at."""


def make_spec(
    config: RunConfig, policy: WaitPolicy, profile: MachineProfile, replication: int
) -> RunSpec:
    """What the processes of one run are told.

    Raises
    ------
    ValueError
        If the config asks for what only the model has, or the profile is of another doorbell.
    """
    profile.check_doorbell(config.handoff.doorbell)
    _refuse_what_only_the_model_has(config)
    if config.device.computes:
        geometry = geometry_of(model_of(config.device))
        check_shares(geometry, config.engine.n_devices)
        _check_contexts(config, replication)
    costs = profile.wait_costs(config.delay_price, config.shares_cores(len(usable_cores())))
    return RunSpec(
        config.engine,
        config.handoff,
        config.workload,
        config.device,
        config.payload,
        policy,
        costs,
        config.seed,
        replication,
        assign_cores(config),
        echo_guard_ns(costs),
    )


def _check_contexts(config: RunConfig, replication: int) -> None:
    """Refuse a workload with a request that the KV cache cannot hold."""
    requests = config.workload.build(Tape(config.seed, replication)).requests
    longest = max(r.prompt_tokens + r.output_tokens for r in requests)
    if longest > config.device.max_len:
        raise ValueError(
            f"the longest request has {longest} tokens and device.max_len is "
            f"{config.device.max_len}; raise that, or shorten the requests (workload.prompt_p95, "
            "workload.max_output_tokens)"
        )


def _refuse_what_only_the_model_has(config: RunConfig) -> None:
    engine, plain = config.engine, EngineConfig()
    computes = config.device.computes
    if computes and engine.n_devices < engine.workers and config.handoff.replies == "all":
        raise ValueError(
            f'handoff.replies = "all", but only {engine.n_devices} of {engine.workers} workers '
            'have a device to wait for; set it to "rank0"'
        )
    modelled = {
        "engine.device_wait": not computes and engine.device_wait != plain.device_wait,
        "engine.devices": not computes and engine.devices != plain.devices,
        "cores.engines": config.cores.engines != 1,
        "payload.output_bytes": config.payload.output_bytes > 0,
    }
    for name, is_set in modelled.items():
        if is_set:
            raise ValueError(
                f"{name} is for the model only: the real loop has one engine, a device for each "
                "worker, which is waited for in one way unless it computes (docs/devices.md), and "
                "no bulk in replies; leave it out, or use shmsim simulate"
            )
    if config.payload.carries_bulk and config.payload.memory != "none" and not computes:
        raise ValueError(
            f'payload.memory = "{config.payload.memory}", but a device of kind '
            f'"{config.device.kind}" has no memory to copy to; set it to "none", or device.kind '
            'to "cpu" or "cuda"'
        )


def run_once(
    spec: RunSpec,
    progress: Progress | None = None,
    logs: Path | None = None,
    limit_s: float = math.inf,
) -> RunRecords:
    """Run scheduler and workers once.

    Parameters
    ----------
    spec
        What to run.
    progress
        Told how many steps are done.
    logs
        Folder for what the processes wrote, if the run fails: the error quotes one line of it.
    limit_s
        How long it may take, loading included.

    Raises
    ------
    RunFailed
        If a process died or nothing moved for half a minute; names it.
    OutOfTime
        If the limit was reached.
    OSError
        If shared memory cannot be had.
    """
    policy_to_json(spec.policy)  # refuse early what no child could import
    with Segment.create(spec.layout, spec.handoff.doorbell, with_folder=True) as segment:
        folder = Path(segment.ticket.folder)
        with _children(spec, segment, folder) as children:
            try:
                _watch(children, segment, spec, progress, limit_s)
            except RunFailed as failed:
                raise type(failed)(f"{failed}{_keep_logs(children, logs)}") from None
        return _gather(spec, folder)


class _Child:
    """One process and what it said."""

    def __init__(self, process: int, spec_path: Path, segment: Segment, folder: Path) -> None:
        self.name = "scheduler" if process == 0 else f"worker {process - 1}"
        self.ready_at = segment.layout.ready_at(process) + READY
        self.log = folder / f"{process}.log"
        command = [sys.executable, "-m", "realrun.child", str(process), str(spec_path)]
        with self.log.open("wb") as log:
            # A group of its own: Ctrl-C reaches the parent alone, which stops the rest in order. A
            # session of its own would be an autogroup: sched_yield leaves the core to none outside.
            self.popen = subprocess.Popen(
                [*command, segment.ticket.to_json(), str(folder / str(process))],
                pass_fds=segment.ticket.fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    def failure(self) -> str | None:
        """How it ended, if it ended badly."""
        code = self.popen.poll()
        if code is None or code == 0:
            return None
        said = self.log.read_text(errors="replace")
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            why = cause_in(said)  # C++ aborts over an exception; any other line is no reason
        else:
            how, why = f"ended with exit code {code}", reason_in(said)
        return f"{self.name} (pid {self.popen.pid}) {how}" + (f": {why}" if why else "")


@contextlib.contextmanager
def _children(spec: RunSpec, segment: Segment, folder: Path) -> Iterator[list[_Child]]:
    spec_path = folder / "spec.json"
    spec.write(spec_path)
    children: list[_Child] = []
    try:
        for process in range(1 + spec.engine.workers):
            children.append(_Child(process, spec_path, segment, folder))  # noqa: PERF401 - keep those started
        yield children
    finally:
        _stop(children, segment)


def _keep_logs(children: list[_Child], logs: Path | None) -> str:
    """Copy what processes said, and say where it is; nothing if they said nothing."""
    said = [child for child in children if child.log.exists() and child.log.stat().st_size]
    if logs is None or not said:
        return ""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for child in said:
            shutil.copyfile(child.log, logs / f"{child.name.replace(' ', '')}.log")
    except OSError as error:  # the failure of the run is the news
        return f"; what its processes said cannot be kept: {error}"
    return f"; all that its processes said is in {logs}"


def _stop(children: list[_Child], segment: Segment) -> None:
    """Ask whoever still runs to leave, then make them."""
    segment.stop()
    deadline = time.monotonic() + _GRACE_S
    try:
        while any(c.popen.poll() is None for c in children) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S / 4)
    finally:
        for child in children:
            child.popen.kill()
            child.popen.wait()


def _watch(
    children: list[_Child],
    segment: Segment,
    spec: RunSpec,
    progress: Progress | None,
    limit_s: float,
) -> None:
    """Return when every child ended well; raise when one did not."""
    started = moved = time.monotonic()
    head = 0
    named = True
    engine = spec.engine
    computes = spec.device.computes
    start_limit_s = _LOADING_LIMIT_S if computes else _START_LIMIT_S
    longest_step_s = spec.device.sleep_ns / S
    if not computes:
        # Five standard deviations late; what the context adds is far below the stall limit.
        law = spec.device.step_time
        longest_step_s = law.draw_ns(engine.max_sequences, engine.max_batched_tokens, 0, 5.0) / S
    while any(child.popen.poll() is None for child in children):
        for child in children:
            failure = child.failure()
            if failure is not None:
                raise RunFailed(f"{failure} at step {_step(segment)}; the run was stopped")
        now = time.monotonic()
        if named and all(segment.load(child.ready_at) for child in children):
            segment.unlink()  # everybody has it mapped: from here on nothing can be left behind
            named = False
            moved = now
        if now - started > limit_s:
            at = "while it was loading" if named else f"at step {_step(segment)}"
            raise OutOfTime(f"stopped after {limit_s:.0f} s, when the time was over, {at}")
        if named and now - started > start_limit_s:
            raise RunFailed(f"not every process was ready within {start_limit_s:g} s")
        found = segment.load(segment.layout.request.head_at)
        if found != head:
            head, moved = found, now
            if progress is not None:
                progress(_step(segment))
        # An idle engine does not move either; only a stall while a reply is owed is a failure.
        elif not named and now - moved > _STALL_LIMIT_S + longest_step_s and _owes(segment, spec):
            raise RunFailed(
                f"nothing moved for {now - moved:.0f} s at step {_step(segment)}: "
                "a reply is outstanding and nobody sends it"
            )
        time.sleep(_LOOK_EVERY_S)
    for child in children:
        failure = child.failure()
        if failure is not None:
            raise RunFailed(f"{failure}; the run was stopped")


def _step(segment: Segment) -> int:
    """Step of the newest call; 0 during the warm-up."""
    ring = segment.layout.request
    slot_at = ring.slot_at(segment.load(ring.head_at))
    return 0 if segment.load(slot_at + FLAGS) & WARM_UP else segment.load(slot_at + CALL_ID) // 2


def _owes(segment: Segment, spec: RunSpec) -> bool:
    layout = segment.layout
    n_requests = segment.load(layout.request.head_at)
    n_replies = min(segment.load(ring.head_at) for ring in spec.reply_rings)
    replies_per_request = 1 if spec.engine.scheduling == "sync" else 1 / spec.engine.calls_per_step
    n_started = 1 if segment.load(ORIGIN_AT) else 0  # START is a request without a reply
    return n_replies < (n_requests - n_started) * replies_per_request


def _check_bulk(rank: int, bulk: dict[str, Any], scheduler: dict[str, Any]) -> None:
    """Refuse a run whose bulk came to a device as something else than was sent."""
    if bulk.get("digest", scheduler.get("bulk_digest")) != scheduler.get("bulk_digest"):
        raise RunFailed(
            f"the bulk on the device of worker {rank} is not what was sent: a slot of the arena "
            f"was written again before its copy had landed, or one of {bulk['copies']} copies "
            "failed; the figures of this run mean nothing"
        )


def _gather(spec: RunSpec, folder: Path) -> RunRecords:
    """The records of all processes as one."""
    records = RunRecords.read(folder / "0")
    kept = {name: records.meta[name] for name in _KEPT if name in records.meta}
    devices = []
    for rank in range(spec.engine.workers):
        worker = RunRecords.read(folder / str(1 + rank))
        records.waits += worker.waits
        records.processes += worker.processes
        devices.append(worker.meta["device"])
        _check_bulk(rank, worker.meta["device"].get("bulk", {}), records.meta)
        if rank == 0:
            device = {row.step: row for row in worker.steps}
            records.steps = [
                row._replace(
                    launched_ns=device[row.step].launched_ns, done_ns=device[row.step].done_ns
                )
                for row in records.steps
            ]
    records.meta = {
        "world": "machine",
        "policy": policy_to_json(spec.policy),
        "seed": spec.seed,
        "replication": spec.replication,
        "cores": [cores._asdict() for cores in spec.cores],
        "machine": machine_facts(),
        **kept,
        "devices": devices,
        "emulated": any(device.get("emulated", False) for device in devices),
    }
    return records
