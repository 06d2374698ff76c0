"""What a child process is told: one JSON file per run."""

import json
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from realrun.layout import RingLayout, SegmentLayout
from realrun.placement import ANYWHERE, ThreadCores
from shmsim.config import (
    DeviceConfig,
    EngineConfig,
    HandoffConfig,
    PayloadConfig,
    WorkloadConfig,
    parse_policy,
)
from shmsim.message import largest_bytes
from shmsim.routing import NO_ARENA, SlotClass
from shmsim.wait import WaitCosts, WaitPolicy
from shmsim.whole import write_whole

TOKEN_BYTES: Final = 8  #: of a token, or of a position, where a device reads or writes it


@dataclass(frozen=True)
class RunSpec:
    """One run of the real loop.

    Parameters
    ----------
    engine, handoff, workload, device, payload
        As in the config.
    policy
        How everybody waits.
    costs
        What policies are told.
    seed, replication
        Of the tape.
    cores
        Of the threads of each process (`realrun.placement.assign_cores`), the scheduler first;
        empty leaves all to the kernel.
    echo_guard_ns
        See `realrun.device.echo.EchoDevice`.
    """

    engine: EngineConfig
    handoff: HandoffConfig
    workload: WorkloadConfig
    device: DeviceConfig
    payload: PayloadConfig
    policy: WaitPolicy
    costs: WaitCosts
    seed: int
    replication: int
    cores: tuple[ThreadCores, ...]
    echo_guard_ns: int

    @property
    def layout(self) -> SegmentLayout:
        """The segment this run needs."""
        engine = self.engine
        slot_bytes = self.handoff.slot_bytes or largest_bytes(engine.max_sequences)
        return SegmentLayout(
            engine.workers,
            self.handoff.slots,
            slot_bytes,
            arena=self.payload.plan if self.payload.carries_bulk else NO_ARENA,
            n_devices=engine.n_devices if self.device.computes else 0,
            # Positions that go to the device, and tokens that come back.
            end_slot_bytes=2 * TOKEN_BYTES * engine.max_sequences,
            n_end_slots=2 * max(engine.depth, 2),
        )

    @property
    def device_policy(self) -> WaitPolicy:
        """How workers wait for a device that computes."""
        device_wait = self.engine.device_wait
        return parse_policy(device_wait).policy if device_wait else self.policy

    @property
    def collective(self) -> str:
        """How the devices add up their parts."""
        if self.engine.n_devices == 1:
            return "none"
        return self.device.collective or ("gloo" if self.device.kind == "cpu" else "nccl")

    @property
    def reply_rings(self) -> tuple[RingLayout, ...]:
        """The rings of the workers that reply."""
        return self.layout.replies[: None if self.handoff.replies == "all" else 1]

    def cores_of(self, process: int) -> ThreadCores:
        """Of the threads of one process; 0 is the scheduler, 1 + r the worker of rank r."""
        return self.cores[process] if self.cores else ANYWHERE

    def write(self, path: Path) -> None:
        """Store for the children to read."""
        content = {
            **asdict(self),
            "policy": policy_to_json(self.policy),
            "costs": self.costs._asdict(),
        }
        write_whole(path, json.dumps(content))

    @classmethod
    def read(cls, path: Path) -> "RunSpec":
        """Read what `write` stored."""
        content = json.loads(path.read_text())
        payload = content["payload"]
        arena = payload.pop("arena")
        return cls(
            EngineConfig(**content["engine"]),
            HandoffConfig(**content["handoff"]),
            WorkloadConfig(**content["workload"]),
            DeviceConfig(**content["device"]),
            PayloadConfig(**payload, arena=tuple(SlotClass(*c) for c in arena)),
            policy_from_json(content["policy"]),
            WaitCosts(**content["costs"]),
            content["seed"],
            content["replication"],
            tuple(ThreadCores(*cores) for cores in content["cores"]),
            content["echo_guard_ns"],
        )


def policy_to_json(policy: WaitPolicy) -> dict[str, Any]:
    """A policy as data: where its class is, and its fields.

    Raises
    ------
    ValueError
        If another process could not import the class.
    """
    policy_type = type(policy)
    if policy_type.__module__ == "__main__":
        raise ValueError(
            f"policy {policy_type.__name__} is defined in __main__, where worker processes cannot "
            "import it from; move it into a module beside your script"
        )
    fields = {name: _to_json(value) for name, value in policy._asdict().items()}  # type: ignore[attr-defined]
    return {"module": policy_type.__module__, "name": policy_type.__name__, "fields": fields}


def policy_from_json(content: dict[str, Any]) -> WaitPolicy:
    """The policy that `policy_to_json` described."""
    policy_type = getattr(import_module(content["module"]), content["name"])
    fields = {name: _from_json(value) for name, value in content["fields"].items()}
    policy: WaitPolicy = policy_type(**fields)
    return policy


def _to_json(value: Any) -> Any:
    """A field; a NamedTuple in it, such as what was learnt or an inner policy, as a policy."""
    if hasattr(value, "_asdict"):
        return policy_to_json(value)
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return policy_from_json(value)
    return tuple(map(_from_json, value)) if isinstance(value, list) else value
