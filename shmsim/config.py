"""One TOML file says what to run, in both worlds.

Durations are strings with a unit, unknown keys are refused with the nearest known one, and every
value is checked where it is read: an error names the key, the value and what is allowed.
"""

import logging
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from shmsim.inputs.catalog import load_gpu, load_model
from shmsim.inputs.measured_steps import read_measured_steps
from shmsim.inputs.step_table import read_step_table
from shmsim.inputs.traces import FORMATS, read_workload
from shmsim.message import largest_bytes
from shmsim.nearest import did_you_mean, instead
from shmsim.policies import POLICIES, PRESETS, check_parameters
from shmsim.policies.parameters import RANGES, is_learnt
from shmsim.roofline import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, RooflineStepTime
from shmsim.routing import NO_ARENA, ROUTE_PRESETS, ArenaPlan, SlotClass, check_arena
from shmsim.steptime import StepTime, StepTimeLaw, TableStepTime
from shmsim.tape import Tape
from shmsim.units import MS, US, S, format_ns, parse_duration_ns
from shmsim.wait import WaitPolicy
from shmsim.workload import (
    AZURE_CONVERSATION_OUTPUT,
    AZURE_CONVERSATION_PROMPT,
    Lengths,
    Workload,
    closed_loop,
    open_loop,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class ConfigError(ValueError):
    """What is wrong in a config file, where, and what would be right."""


@dataclass(frozen=True)
class EngineConfig:
    """The engine under study.

    Parameters
    ----------
    workers
        Worker processes, one per GPU.
    calls_per_step
        1, or 2 as vLLM does (``execute_model``, ``sample_tokens``).
    scheduling
        ``"sync"``, or ``"async"``: several batches in flight, as vLLM does unless told otherwise
        (since 0.14.0).
    max_sequences, max_batched_tokens
        Limits of a batch, by vLLM's names ``max_num_seqs`` and ``max_num_batched_tokens``.
    device_wait
        How workers wait for the device, a preset or ``WakeAhead:guard=150us``. None: in the model
        as realrun waits for its echo device, but of a GPU refused; in the real loop, of a device
        that computes, as for messages.
    devices
        Workers that have a device, from the first on; the others receive every call and launch
        nothing. 0: all have. In the real loop only if devices compute.
    batches_in_flight
        With ``"async"``: how many batches are published, at most, before the tokens of the oldest
        are taken in. A sequence is in each of them, with one token; the device works on one after
        the other. vLLM has two.
    """

    workers: int = 1
    calls_per_step: int = 2
    scheduling: str = "sync"
    max_sequences: int = 64
    max_batched_tokens: int = 2048
    device_wait: str = ""
    devices: int = 0
    batches_in_flight: int = 2

    @property
    def n_devices(self) -> int:
        """How many devices take part in a step."""
        return self.devices or self.workers

    @property
    def depth(self) -> int:
        """How many batches may be in flight, however they are scheduled."""
        return self.batches_in_flight if self.scheduling == "async" else 1

    def describe_scheduling(self) -> str:
        """Say in a few words how batches are scheduled, for titles."""
        return self.scheduling if self.depth <= 2 else f"async, {self.depth} in flight"


@dataclass(frozen=True)
class HandoffConfig:
    """How scheduler and workers hand messages over.

    Parameters
    ----------
    doorbell
        What a sleeper sleeps on: ``"futex"``, ``"eventfd"`` or ``"zmq"``; see `realrun.doorbell`.
    slots
        Slots of each ring: so many messages may be on their way.
    slot_bytes
        Longest message; 0: as long as the largest batch needs.
    replies
        ``"rank0"``, or ``"all"``: who replies to a call, as in vLLM with a KV connector.
    """

    doorbell: str = "futex"
    slots: int = 8
    slot_bytes: int = 0
    replies: str = "rank0"


@dataclass(frozen=True)
class PayloadConfig:
    """Bulk that steps carry to every worker, such as images or prompt embeddings.

    Parameters
    ----------
    bytes_per_prefill_token, bytes_per_step
        How much.
    routes
        By which ways, one of `shmsim.routing.ROUTE_PRESETS`. What goes inline needs room in
        ``handoff.slot_bytes``.
    divert_bytes
        Size from which bulk is kept out of the pickle stream.
    arena
        Slot classes of the arena, from small to large; none for no arena.
    memory
        What bulk is copied to the devices from: ``"registered"``, slots of the arena that the
        device knows; ``"pinned"``, a buffer that it is copied to first, so that its slot is free at
        once; ``"pageable"``, any memory, as what comes by other routes than the arena always is
        unless it is pinned; ``"none"``: nothing is copied to a device.
    output_bytes
        Of the model: copied from the device in each step by whoever replies.
    """

    bytes_per_prefill_token: int = 0
    bytes_per_step: int = 0
    routes: str = "vllm"
    divert_bytes: int = NO_ARENA.divert_bytes
    arena: tuple[SlotClass, ...] = NO_ARENA.classes
    memory: str = "none"
    output_bytes: int = 0

    @property
    def carries_bulk(self) -> bool:
        """Whether there is any."""
        return self.bytes_per_prefill_token > 0 or self.bytes_per_step > 0

    def bytes_of(self, n_prefill_tokens: int) -> int:
        """Bytes of bulk that a step with so many tokens of prompts carries to every worker."""
        return self.bytes_per_step + self.bytes_per_prefill_token * n_prefill_tokens

    @property
    def holds_slots(self) -> bool:
        """Whether a slot of the arena is held until a copy to a device has landed."""
        return self.memory in ("registered", "pageable")

    @property
    def plan(self) -> ArenaPlan:
        """The arena."""
        return ArenaPlan(self.arena, self.divert_bytes)


@dataclass(frozen=True)
class CoresConfig:
    """The cores that the model's processes share; the machine has its own.

    Parameters
    ----------
    n
        How many. 0: every thread has one to itself, unless there is a quota.
    engines
        Engines like this one (data parallel) on the box, each with a workload of its own.
    quota
        Cores that all of them together may use, as by ``cpu.max`` of a cgroup; 0: no limit.
    period_ns
        In which the quota is counted.
    slice_ns
        How long a thread that was picked keeps its core from one that wakes.
    tick_ns
        How often a core looks whether another thread is due: 1 s over ``CONFIG_HZ``.
    steal_every_ns, steal_ns
        How often the hypervisor takes a core away, in the mean, and for how long; 0: never.
    guarded
        Whether a spin gives way once it was preempted, as realrun's do; vLLM's does not.
    slowdown
        By which share of itself a step takes longer for each core that is busy when its last worker
        launches it: CPUs and devices with one power budget. Needs ``n``.
    """

    n: int = 0
    engines: int = 1
    quota: float = 0.0
    period_ns: int = 100 * MS
    slice_ns: int = 1_400 * US
    tick_ns: int = 4 * MS
    steal_every_ns: int = 0
    steal_ns: int = 0
    guarded: bool = True
    slowdown: float = 0.0


@dataclass(frozen=True)
class WorkloadConfig:
    """Where requests come from.

    Parameters
    ----------
    kind
        ``"open"`` (arrivals by a Gamma law), ``"closed"`` (a fixed number at once), or ``"trace"``.
    requests
        How many; of a trace, at most.
    rate_per_s, burstiness
        Of an open loop; burstiness 1 is Poisson, less is burstier.
    concurrency
        Of a closed loop.
    prompt_p50, prompt_p95, output_p50, output_p95
        Token counts; equal ones are constant.
    trace
        Path of a trace, relative to the config file.
    format
        Of the trace, one of `shmsim.inputs.traces.FORMATS`; empty recognises it.
    start_ns, duration_ns, speed
        Window of the trace, and how much faster than recorded it arrives.
    max_output_tokens
        Cuts longer outputs, of traces too, so that a run stays short; 0 does not.
    """

    kind: str = "closed"
    requests: int = 40
    rate_per_s: float = 1.0
    burstiness: float = 1.0
    concurrency: int = 2
    prompt_p50: int = AZURE_CONVERSATION_PROMPT.p50
    prompt_p95: int = AZURE_CONVERSATION_PROMPT.p95
    output_p50: int = AZURE_CONVERSATION_OUTPUT.p50
    output_p95: int = AZURE_CONVERSATION_OUTPUT.p95
    trace: str = ""
    format: str = ""
    start_ns: int = 0
    duration_ns: int = 3600 * S
    speed: float = 1.0
    max_output_tokens: int = 0

    def build(self, tape: Tape) -> Workload:
        """Draw or read the requests."""
        if self.kind == "trace":
            loaded = read_workload(
                Path(self.trace),
                self.format,
                start_ns=self.start_ns,
                duration_ns=self.duration_ns,
                speed=self.speed,
                max_requests=self.requests,
            )
            if loaded.skipped:
                _log.warning("%s: %s", self.trace, loaded.account())
            workload = loaded.value
        else:
            # The law ends where the trace does, unless longer requests are asked for.
            prompt = Lengths(
                self.prompt_p50,
                self.prompt_p95,
                max(AZURE_CONVERSATION_PROMPT.longest, 2 * self.prompt_p95),
            )
            output = Lengths(
                self.output_p50,
                self.output_p95,
                max(AZURE_CONVERSATION_OUTPUT.longest, 2 * self.output_p95),
            )
            if self.kind == "closed":
                workload = closed_loop(self.requests, self.concurrency, prompt, output, tape)
            else:
                workload = open_loop(
                    self.requests, self.rate_per_s, self.burstiness, prompt, output, tape
                )
        if not self.max_output_tokens:
            return workload
        return workload._replace(
            requests=tuple(
                r._replace(output_tokens=min(r.output_tokens, self.max_output_tokens))
                for r in workload.requests
            )
        )


@dataclass(frozen=True)
class DeviceConfig:
    """What a step costs on the device, or which device computes it.

    Parameters
    ----------
    kind
        Which law, and so which of the other keys count: ``"affine"``, also called ``"echo"``
        (`shmsim.steptime.StepTime`), ``"table"`` (`TableStepTime`), ``"measured"``
        (`MeasuredStepTime`) or ``"roofline"`` (`shmsim.roofline.RooflineStepTime`). In the real
        loop also ``"cpu"`` or ``"cuda"``: steps are computed (docs/devices.md), and the model needs
        ``file`` or ``sleep`` to know what they take.
    step_ns, per_sequence_ns
        Of an affine law.
    per_prefill_token_ns
        Of an affine law, and of tables and measurements without prompt tokens.
    jitter
        Coefficient of variation of the step time; measurements have their own.
    file
        Of a table (see `shmsim.inputs.step_table`) or of measurements (see
        `shmsim.inputs.measured_steps`; also what the model takes for steps that are computed),
        relative to the config file.
    model, gpu
        Of a roofline, by a name of `shmsim.inputs.catalog`. What is computed is ``"tiny"``, such a
        name, or a TOML file; empty takes tiny on a CPU and llama-3.2-1b on a GPU.
    tensor_parallel
        GPUs that share the model of a roofline; 0 takes engine.workers.
    memory_efficiency, compute_efficiency, overhead_ns, all_reduce_ns
        Of a roofline.
    max_len
        Most tokens of context of one sequence that is computed.
    sleep_ns
        Instead of computing, be busy for exactly so long; 0 computes.
    collective
        How workers add up their parts of the model: ``"none"``, ``"gloo"``, ``"nccl"`` or
        ``"symm"``; empty takes gloo on CPUs and nccl on GPUs if there are several.
    observe
        How a worker learns that its GPU is done: ``"write"`` (the GPU writes a word), ``"copy"``
        (it copies one), ``"query"`` (the waiter asks the driver), ``"blocking"`` or ``"sync"`` (a
        thread waits in the driver).
    memory
        What inputs are copied to the GPU from: ``"registered"``, ``"pinned"`` or ``"pageable"``.
    kernels
        Of a decode step that is computed: ``"eager"``, torch's own, or ``"compiled"``, fused.
    """

    kind: str = "echo"
    step_ns: int = 2 * MS
    per_sequence_ns: int = 10 * US
    per_prefill_token_ns: int = 5 * US
    jitter: float = 0.01
    file: str = ""
    model: str = ""
    gpu: str = ""
    tensor_parallel: int = 0
    memory_efficiency: float = MEMORY_EFFICIENCY
    compute_efficiency: float = COMPUTE_EFFICIENCY
    overhead_ns: int = 0
    all_reduce_ns: int = 0
    max_len: int = 1024
    sleep_ns: int = 0
    collective: str = ""
    observe: str = "write"
    memory: str = "registered"
    kernels: str = "eager"

    @property
    def computes(self) -> bool:
        """Whether the real loop computes its steps, so that no law says what they take."""
        return self.kind in ("cpu", "cuda")

    @property
    def has_law(self) -> bool:
        """Whether `step_time` can say what a step takes."""
        return not self.computes or self.sleep_ns > 0 or bool(self.file)

    @property
    def step_time(self) -> StepTimeLaw:
        """The law.

        Raises
        ------
        ValueError
            If its file or its names are wrong, or steps are computed and nobody measured them.
        """
        if not self.has_law:
            raise ValueError(
                f'device.kind = "{self.kind}" computes its steps, and the model cannot know what '
                "they take: measure them with 'realrun run --steps steps.csv' and name that file "
                "in device.file, or set device.sleep"
            )
        if self.computes and self.sleep_ns:
            return StepTime(self.sleep_ns)
        if self.kind == "table":
            table = read_step_table(Path(self.file)).value._replace(jitter=self.jitter)
            if len(table.n_prefill_tokens) > 1:
                return table
            return table._replace(per_prefill_token_ns=self.per_prefill_token_ns)
        if self.kind == "measured" or self.computes:
            measured = read_measured_steps(Path(self.file)).value
            return measured._replace(per_prefill_token_ns=self.per_prefill_token_ns)
        if self.kind == "roofline":
            return RooflineStepTime(
                load_model(self.model),
                load_gpu(self.gpu),
                max(self.tensor_parallel, 1),
                self.memory_efficiency,
                self.compute_efficiency,
                self.overhead_ns,
                self.all_reduce_ns,
                self.jitter,
            )
        return StepTime(self.step_ns, self.per_sequence_ns, self.per_prefill_token_ns, self.jitter)

    def describe(self) -> str:
        """Say in a few words what a step takes, for titles."""
        if self.computes:
            what = f"sleep of {format_ns(self.sleep_ns)}" if self.sleep_ns else self.model
            return f"{what or 'decoder'} on {self.kind}"
        jitter = f" ± {100 * self.jitter:g} %"
        if self.kind == "table":
            return f"steps of {Path(self.file).name}{jitter}"
        if self.kind == "measured":
            return f"steps of {Path(self.file).name}"
        if self.kind == "roofline":
            return f"{self.model} on {max(self.tensor_parallel, 1)} x {self.gpu}{jitter}"
        return f"step {self.step_ns / MS:g} ms{jitter}"


@dataclass(frozen=True)
class NamedPolicy:
    """A policy and what it is called in tables."""

    name: str
    policy: WaitPolicy


@dataclass(frozen=True)
class RunConfig:
    """Everything about a comparison.

    Parameters
    ----------
    engine, handoff, workload, device
        See there.
    policies
        What is compared; the first is the reference.
    seed
        Of every random number.
    repeats
        Runs of each policy on the machine, in alternating order.
    delay_price
        Core-seconds one would pay to take a second off the critical path (*r*).
    pin
        Whether each process gets a core of its own if there are enough.
    cores
        What the model's processes share.
    payload
        Bulk that the model's steps carry.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    handoff: HandoffConfig = field(default_factory=HandoffConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    policies: tuple[NamedPolicy, ...] = tuple(
        NamedPolicy(name, PRESETS[name])
        for name in ("spin", "vllm-1s", "forks-2ms", "park", "wake-ahead")
    )
    seed: int = 1
    repeats: int = 2
    delay_price: float = 10.0
    pin: bool = True
    cores: CoresConfig = field(default_factory=CoresConfig)
    payload: PayloadConfig = field(default_factory=PayloadConfig)

    def shares_cores(self, n_cores: int | None = None) -> bool:
        """Whether there are more processes than cores: the model's, or so many of a machine."""
        n = self.cores.n if n_cores is None else n_cores
        return 0 < n < self.cores.engines * (1 + self.engine.workers)


#: Most batches in flight at once.
MOST_IN_FLIGHT: Final = 16

# What a value may be, by section and key: lowest and highest, or the allowed words.
_DAY_NS: Final = 86_400 * S
_ALLOWED: Final[dict[str, Any]] = {
    "engine.workers": (1, 64),
    "engine.calls_per_step": (1, 2),
    "engine.scheduling": ("sync", "async"),
    "engine.max_sequences": (1, 4096),
    "engine.max_batched_tokens": (1, 1 << 20),
    "engine.devices": (0, 64),
    "engine.batches_in_flight": (2, MOST_IN_FLIGHT),
    "handoff.doorbell": ("futex", "eventfd", "zmq"),
    "handoff.slots": (2, 1 << 20),
    "handoff.slot_bytes": (0, 1 << 40),
    "handoff.replies": ("rank0", "all"),
    "cores.n": (0, 4096),
    "cores.engines": (1, 1024),
    "cores.quota": (0.0, 4096.0),
    "cores.period_ns": (1 * MS, 1 * S),
    "cores.slice_ns": (100 * US, 100 * MS),
    "cores.tick_ns": (100 * US, 100 * MS),
    "cores.steal_every_ns": (0, 3600 * S),
    "cores.steal_ns": (0, 10 * S),
    "cores.slowdown": (0.0, 1.0),
    "workload.kind": ("open", "closed", "trace"),
    "workload.requests": (1, 10_000_000),
    "workload.rate_per_s": (1e-6, 1e6),
    "workload.burstiness": (1e-3, 1e3),
    "workload.concurrency": (1, 4096),
    "workload.prompt_p50": (1, 1 << 20),
    "workload.prompt_p95": (1, 1 << 20),
    "workload.output_p50": (1, 1 << 20),
    "workload.output_p95": (1, 1 << 20),
    "workload.start_ns": (0, 36_500 * _DAY_NS),
    "workload.duration_ns": (1, 36_500 * _DAY_NS),
    "workload.speed": (1e-6, 1e6),
    "workload.max_output_tokens": (0, 1 << 20),
    "workload.format": ("", *FORMATS),
    "device.kind": ("echo", "affine", "table", "roofline", "measured", "cpu", "cuda"),
    "device.max_len": (8, 1 << 20),
    "device.sleep_ns": (0, 60 * S),
    "device.collective": ("", "none", "gloo", "nccl", "symm"),
    "device.observe": ("write", "copy", "query", "blocking", "sync"),
    "device.memory": ("registered", "pinned", "pageable"),
    "device.kernels": ("eager", "compiled"),
    "device.step_ns": (1 * US, 60 * S),
    "device.per_sequence_ns": (0, 1 * S),
    "device.per_prefill_token_ns": (0, 1 * S),
    "device.jitter": (0.0, 2.0),
    "device.tensor_parallel": (0, 64),
    "device.memory_efficiency": (0.01, 1.0),
    "device.compute_efficiency": (0.01, 1.0),
    "device.overhead_ns": (0, 1 * S),
    "device.all_reduce_ns": (0, 1 * S),
    "payload.bytes_per_prefill_token": (0, 1 << 30),
    "payload.bytes_per_step": (0, 1 << 40),
    "payload.routes": tuple(ROUTE_PRESETS),
    "payload.divert_bytes": (1, 1 << 40),
    "payload.memory": ("none", "registered", "pinned", "pageable"),
    "payload.output_bytes": (0, 1 << 40),
    "payload.arena.slot_bytes": (1, 1 << 40),
    "payload.arena.slots": (1, 1 << 20),
    "run.seed": (0, 2**63 - 1),
    "run.repeats": (1, 1000),
    "run.delay_price": (0.0, 1e6),
}
_SECTIONS: Final[dict[str, type[Any]]] = {
    "engine": EngineConfig,
    "handoff": HandoffConfig,
    "cores": CoresConfig,
    "workload": WorkloadConfig,
    "device": DeviceConfig,
    "payload": PayloadConfig,
}
_LISTER: Final = "shmsim policies"  # what lists all policies, which are many
_RUN_KEYS: Final[dict[str, type]] = {"seed": int, "repeats": int, "delay_price": float, "pin": bool}
_SECTION_NAMES: Final = (*_SECTIONS, "run")


def load_config(path: Path) -> RunConfig:
    """Read a config file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or anything in it is unknown, of the wrong kind or out of range.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        return parse_config(content, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(content: dict[str, Any], folder: Path = Path()) -> RunConfig:
    """Check what a config file holds; paths in it are relative to ``folder``."""
    _refuse_unknown("", content, [*_SECTIONS, "run", "policy"])
    tables = {name: dict(_table(name, content)) for name in _SECTIONS}
    arena = tables["payload"].pop("arena", [])
    sections = {
        name: _section(name, section_type, tables[name]) for name, section_type in _SECTIONS.items()
    }
    sections["payload"] = _payload(sections["payload"], arena)
    engine: EngineConfig = sections["engine"]
    if engine.devices > engine.workers:
        raise ConfigError(
            f"engine.devices must be at most engine.workers = {engine.workers}, got "
            f"{engine.devices}; 0 gives each worker one"
        )
    if engine.scheduling == "sync" and "batches_in_flight" in tables["engine"]:
        raise ConfigError(
            'engine.batches_in_flight needs engine.scheduling = "async": with "sync" one batch is '
            "in flight at a time; remove it, or change scheduling"
        )
    if engine.device_wait:
        try:
            parse_policy(engine.device_wait)
        except ConfigError as error:
            raise ConfigError(f"engine.device_wait: {error}") from None
    workload: WorkloadConfig = sections["workload"]
    if workload.kind == "trace":
        if not workload.trace:
            raise ConfigError('workload.kind = "trace" needs workload.trace, the path of a file')
        resolved = str(folder / workload.trace)
        sections["workload"] = WorkloadConfig(**{**vars(workload), "trace": resolved})
    sections["device"] = _device(
        sections["device"], _table("device", content), sections["engine"], folder
    )
    cores: CoresConfig = sections["cores"]
    if cores.slowdown and not cores.n:
        raise ConfigError(
            f"cores.slowdown = {cores.slowdown} needs cores.n, the number of cores: without it "
            "nobody counts which of them are busy"
        )
    least_bytes = largest_bytes(sections["engine"].max_sequences)
    if 0 < sections["handoff"].slot_bytes < least_bytes:
        raise ConfigError(
            f"handoff.slot_bytes must be 0, or at least {least_bytes} for batches of "
            f"engine.max_sequences = {sections['engine'].max_sequences}; got "
            f"{sections['handoff'].slot_bytes}"
        )
    for quantity in ("prompt", "output"):
        p50, p95 = (getattr(workload, f"{quantity}_{p}") for p in ("p50", "p95"))
        if p95 < p50:
            raise ConfigError(
                f"workload.{quantity}_p95 must be at least {quantity}_p50 = {p50}, got {p95}"
            )
    run = _table("run", content)
    _refuse_unknown("run", run, list(_RUN_KEYS))
    values = {key: _value(f"run.{key}", value, _RUN_KEYS[key]) for key, value in run.items()}
    if "policy" in content:
        values["policies"] = _policies(content["policy"])
    return RunConfig(**sections, **values)


# Which keys of [device] count for which law, beside its kind, and which it needs.
_AFFINE_KEYS: Final = ("step", "per_sequence", "per_prefill_token", "jitter")
_DEVICE_KEYS: Final = {
    "echo": _AFFINE_KEYS,
    "affine": _AFFINE_KEYS,
    "table": ("file", "per_prefill_token", "jitter"),
    "measured": ("file", "per_prefill_token"),
    "roofline": (
        "model", "gpu", "tensor_parallel", "memory_efficiency", "compute_efficiency", "overhead",
        "all_reduce", "jitter",
    ),
    "cpu": ("model", "max_len", "sleep", "collective", "kernels", "file", "per_prefill_token"),
    "cuda": (
        "model", "max_len", "sleep", "collective", "observe", "memory", "kernels", "file",
        "per_prefill_token",
    ),
}  # fmt: skip
_NEEDED_KEYS: Final = {"table": ("file",), "measured": ("file",), "roofline": ("model", "gpu")}


def _device(
    device: DeviceConfig, table: dict[str, Any], engine: EngineConfig, folder: Path
) -> DeviceConfig:
    """Check that a device has the keys of its kind, and a law for the engine's largest batch."""
    for key in table:
        if key not in ("kind", *_DEVICE_KEYS[device.kind]):
            raise ConfigError(
                f'device.{key} plays no part when device.kind = "{device.kind}", which takes '
                f"{', '.join(_DEVICE_KEYS[device.kind])}; remove it, or change the kind"
            )
    for key in _NEEDED_KEYS.get(device.kind, ()):
        if not table.get(key):
            raise ConfigError(f'device.kind = "{device.kind}" needs device.{key}')
    if device.file:
        device = replace(device, file=str(folder / device.file))
    if device.model.endswith(".toml"):
        device = replace(device, model=str(folder / device.model))
    if device.computes:
        _check_computing(device, engine)
    if not device.has_law:
        return device
    if device.kind == "roofline" and device.tensor_parallel == 0:
        device = replace(device, tensor_parallel=engine.workers)
    try:
        law = device.step_time
        law.mean_ns(engine.max_sequences, 0, 0)
        law.mean_ns(0, engine.max_batched_tokens, 0)
    except ValueError as error:
        raise ConfigError(f"device: {error}") from None
    knows_prompts = isinstance(law, TableStepTime) and len(law.n_prefill_tokens) > 1
    if device.file and knows_prompts == ("per_prefill_token" in table):
        raise ConfigError(
            f"{device.file} has prompt tokens, so device.per_prefill_token would count them twice; "
            "remove it"
            if knows_prompts
            else f"{device.file} does not tell what prompt tokens cost; set "
            "device.per_prefill_token, to '0us' if nothing"
        )
    return device


def _check_computing(device: DeviceConfig, engine: EngineConfig) -> None:
    """Refuse what a device that computes could not do as asked."""
    if engine.max_batched_tokens < engine.max_sequences:
        raise ConfigError(
            f"engine.max_batched_tokens = {engine.max_batched_tokens} must be at least "
            f'engine.max_sequences = {engine.max_sequences} when device.kind = "{device.kind}": '
            "who is left out of a batch would lose its KV cache"
        )
    on_gpus = ("nccl", "symm")
    if device.kind == "cpu" and device.collective in on_gpus:
        raise ConfigError(
            f'device.collective = "{device.collective}" needs GPUs; on CPUs it must be none or gloo'
        )
    if device.collective == "none" and engine.n_devices > 1:
        raise ConfigError(
            f'device.collective = "none" is for one device, and there are {engine.n_devices}; '
            "leave it out, or set engine.devices = 1 so that the other workers only receive"
        )


def _payload(payload: PayloadConfig, arena: Any) -> PayloadConfig:
    """Add the arena, and check that it can be used, and is there if it is relied upon."""
    if not isinstance(arena, list) or not all(isinstance(table, dict) for table in arena):
        raise ConfigError(
            "payload.arena must be a list of slot classes, as in "
            f"arena = [{{ slot_bytes = 8388608, slots = 4 }}]; got {arena!r}"
        )
    classes = []
    for index, table in enumerate(arena):
        where = f"payload.arena[{index}]"
        _refuse_unknown(where, table, ["slot_bytes", "slots"])
        if len(table) < 2:
            raise ConfigError(f"{where} needs both slot_bytes and slots, got {table!r}")
        slot_bytes, n_slots = (
            _value(f"payload.arena.{key}", table[key], int) for key in ("slot_bytes", "slots")
        )
        classes.append(SlotClass(slot_bytes, n_slots))
    payload = replace(payload, arena=tuple(classes))
    try:
        check_arena(payload.plan)
    except ValueError as error:
        raise ConfigError(f"payload: {error}") from None
    if payload.memory == "registered" and not payload.arena:
        raise ConfigError(
            'payload.memory = "registered" needs a payload.arena: what comes through the ring or a '
            'socket is copied to pageable memory; add one, or set payload.memory = "pageable"'
        )
    return payload


def parse_policy(text: str) -> NamedPolicy:
    """Read a policy from a command line: a preset, or ``WakeAhead:guard=80us,smoothing=0.1``.

    Raises
    ------
    ConfigError
        If it names no preset and no policy, or a parameter is wrong.
    """
    if text in PRESETS:
        return NamedPolicy(text, PRESETS[text])
    kind, _, rest = text.partition(":")
    if kind not in POLICIES:
        raise ConfigError(f"unknown policy {kind!r}{instead(kind, (*PRESETS, *POLICIES), _LISTER)}")
    table: dict[str, Any] = {"kind": kind, "name": text}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"policy {text!r}: write parameters as key=value, got {part!r}")
        try:
            table[key.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            table[key.strip()] = value
    return policy_from_table("policy", table)


def _policies(content: Any) -> tuple[NamedPolicy, ...]:
    if not isinstance(content, list) or not content:
        raise ConfigError("policies are tables in a list: write [[policy]] above each")
    policies = tuple(policy_from_table(f"policy[{i}]", table) for i, table in enumerate(content))
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two policies are called {name!r}; give one of them another name")
    return policies


def policy_from_table(where: str, table: Any) -> NamedPolicy:
    """Check a table that names a preset, or a kind and its parameters."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table with a preset or a kind, got {table!r}")
    if ("preset" in table) == ("kind" in table):
        raise ConfigError(f"{where} needs either preset or kind")
    for key in ("preset", "kind", "name"):
        if not isinstance(table.get(key, ""), str):
            raise ConfigError(f"{where}.{key} must be a text, got {table[key]!r}")
    if not table.get("name", "x").strip() or set("[]") & set(table.get("name", "")):
        raise ConfigError(
            f"{where}.name must be some text without square brackets, got {table['name']!r}"
        )
    preset: str = table.get("preset", "")
    kind: str = table.get("kind", "")
    if "preset" in table:
        _refuse_unknown(where, table, ["preset", "name"])
        if preset not in PRESETS:
            raise ConfigError(
                f"{where}.preset {preset!r} is unknown{instead(preset, PRESETS, _LISTER)}"
            )
        return NamedPolicy(table.get("name", preset), PRESETS[preset])
    if kind not in POLICIES:
        raise ConfigError(f"{where}.kind {kind!r} is unknown{instead(kind, POLICIES, _LISTER)}")
    policy_type = POLICIES[kind]
    hints = get_type_hints(policy_type)
    fields = {_key(name): name for name in hints if not is_learnt(name)}
    _refuse_unknown(where, table, ["kind", "name", *fields])
    values: dict[str, Any] = {
        fields[key]: _inner(f"{where}.{key}", value)
        if fields[key] == "inner"
        else _value(f"{where}.{fields[key]}", value, hints[fields[key]])
        for key, value in table.items()
        if key not in ("kind", "name")
    }
    for name, value in values.items():
        if name != "inner":
            _check_range(f"{where}.{name}", value, *RANGES[name])
    policy = policy_type(**values)
    try:
        check_parameters(policy)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return NamedPolicy(table.get("name", kind), policy)


def _inner(where: str, value: Any) -> WaitPolicy:
    """The policy that a wrapper wraps: a table, or a text as on the command line."""
    if isinstance(value, str):
        return parse_policy(value).policy
    return policy_from_table(where, value).policy


def _key(name: str) -> str:
    """The name of a field in a file: durations carry their unit there, so not in the name."""
    return name.removesuffix("_ns")


def _table(name: str, content: dict[str, Any]) -> dict[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table: write [{name}] on a line of its own")
    return table


def _section(name: str, section_type: type[Any], table: dict[str, Any]) -> Any:
    hints = get_type_hints(section_type)
    fields = {_key(field_name): field_name for field_name in hints}
    _refuse_unknown(name, table, list(fields))
    return section_type(
        **{
            fields[key]: _value(f"{name}.{fields[key]}", value, hints[fields[key]])
            for key, value in table.items()
        }
    )


def _value(where: str, value: Any, kind: type) -> Any:
    """Check one value; ``where`` ends in the field's name, whose ``_ns`` marks a duration."""
    shown = _key(where)
    if where.endswith("_ns"):
        if not isinstance(value, str):
            raise ConfigError(
                f"{shown} must be a duration with a unit, as in '50us', got {value!r}"
            )
        try:
            value = parse_duration_ns(value)
        except ValueError as error:
            raise ConfigError(f"{shown}: {error}") from None
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    elif type(value) is not kind:
        names: dict[type, str] = {int: "a whole number", float: "a number", str: "a text"}
        names[bool] = "true or false"
        raise ConfigError(f"{shown} must be {names[kind]}, got {value!r}")
    allowed = _ALLOWED.get(where)
    if allowed and isinstance(allowed[0], str):
        if value not in allowed:
            raise ConfigError(
                f"{shown} must be one of {', '.join(filter(None, allowed))}; got {value!r}"
                + did_you_mean(str(value), allowed)
            )
    elif allowed:
        _check_range(where, value, *allowed)
    return value


def _check_range(where: str, value: float, lowest: float, highest: float) -> None:
    if lowest <= value <= highest:
        return
    show: Callable[[float], str] = str
    if where.endswith("_ns"):
        where, show = _key(where), format_ns
    raise ConfigError(f"{where} must be from {show(lowest)} to {show(highest)}, got {show(value)}")


def _refuse_unknown(where: str, table: dict[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            full = f"{where}.{key}" if where else key
            # People write step_ns for step; the suffix must not hide the match.
            meant = did_you_mean(_key(key), known, f"{where}." if where else "")
            # A sweep has other keys at its top, and its own way to write these.
            of_a_config = where in _SECTION_NAMES or "engine" in known
            homes = _homes(_key(key)) if of_a_config and _key(key) not in known else []
            if homes:
                meant = f"; {_key(key)} is a key of {' and of '.join(homes)}"
            raise ConfigError(f"unknown key {full}{meant}; known are {', '.join(known)}")


def _homes(key: str) -> list[str]:
    """The sections that have such a key: it may stand in another one, or above all of them."""
    keys = {name: [_key(field) for field in get_type_hints(of)] for name, of in _SECTIONS.items()}
    keys["run"] = list(_RUN_KEYS)
    return [f"[{name}]" for name, known in keys.items() if key in known]
