"""What of a machine and a config may be told: chosen from a list, so that nothing else gets out."""

import getpass
import hashlib
import re
import socket
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from shmsim.config import (
    DeviceConfig,
    EngineConfig,
    HandoffConfig,
    WorkloadConfig,
    parse_policy,
)
from shmsim.inputs.catalog import gpu_names, model_names
from shmsim.tuner import written

#: Facts of `realrun.host.machine_facts` that are told as they are.
_FACTS: Final = (
    "cpu", "cores", "quota_cores", "virtual", "clocksource", "timer_slack_ns", "idle_driver",
    "idle_states", "halt_poll_ns", "governor", "implementation", "relax", "doorbell", "python",
    "numpy", "shmsim",
)  # fmt: skip
#: Sections that a real run depends on.
_SECTIONS: Final[dict[str, type[Any]]] = {
    "engine": EngineConfig,
    "handoff": HandoffConfig,
    "workload": WorkloadConfig,
    "device": DeviceConfig,
}
_RUN_KEYS: Final = ("seed", "repeats", "delay_price", "pin")
_OWN: Final = "its own"
WITHHELD: Final = "withheld"


def facts_of(machine: dict[str, Any]) -> dict[str, Any]:
    """Facts about a machine without its name and its owner's.

    Of the kernel only the version is told: what follows it may name a company or a build machine.
    """
    facts: dict[str, Any] = {name: _told(machine[name]) for name in _FACTS if name in machine}
    facts["usable_cores"] = len(machine.get("affinity", []))
    facts["kernel"] = _version(str(machine.get("kernel", "")))
    return dict(sorted(facts.items()))


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of a resolved config that a real run depends on, flat: ``"engine.workers": 1``.

    A file is told by the hash of its content, and a model or GPU that is none of the catalogue's
    not at all.

    Parameters
    ----------
    config
        As `realrun.validate.config_to_json` wrote it; what it lacks has its default.
    """
    found: dict[str, Any] = {}
    for section, kind in _SECTIONS.items():
        given = config.get(section, {})
        for field in fields(kind):
            name = f"{section}.{field.name}"
            found[name] = _setting(name, given.get(field.name, field.default))
    return found | {f"run.{name}": config[name] for name in _RUN_KEYS if name in config}


def _setting(name: str, value: Any) -> Any:
    if not isinstance(value, str) or not value:
        return value
    if name in ("workload.trace", "device.file"):
        return _content(Path(value))
    if name in ("device.model", "device.gpu"):
        known = model_names() if name == "device.model" else gpu_names()
        return value if value in (*known, "tiny") else _OWN
    if name == "engine.device_wait":
        return written(parse_policy(value).policy)
    return value


def _content(path: Path) -> str:
    try:
        return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return _OWN


def _told(value: Any) -> Any:
    """A fact, unless it holds the name of this machine or of who uses it."""
    if isinstance(value, list):
        return [_told(each) for each in value]
    if isinstance(value, str) and _private() & set(_words(value)):
        return WITHHELD
    return value


def _private() -> set[str]:
    """Words that tell where and who: host name, whole and in parts, and user name."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = ""
    words = {*_words(host), *_words(user)}
    return {word for word in words if not word.isdigit()}


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]


def _version(release: str) -> str:
    found = re.match(r"\d+(\.\d+)*", release)
    return found[0] if found else "unknown"
