"""What a result depends on, as one hash: the same key, the same figures.

Config, policy, profile, seed, replication, and the source of the model itself: whoever changes a
line of it gets new results, not old ones under a new name.
"""

import hashlib
import inspect
import json
import platform
from dataclasses import asdict
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import shmsim
from shmsim.config import RunConfig
from shmsim.profile import MachineProfile
from shmsim.wait import WaitPolicy

#: What the model does not import, so that no figure of a run goes through it.
NO_PART: Final = (
    "arena_sizing", "bounds", "claims.py", "cli.py", "console.py", "export", "fitting.py",
    "plots", "stats", "sweep", "timeline.py", "tracks.py",
)  # fmt: skip
_LIBRARIES: Final = ("numpy", "scipy", "simpy", "numba")
_FILES: Final = (("workload", "trace"), ("device", "file"))


def point_key(
    config: RunConfig, policy: WaitPolicy, profile: MachineProfile, replication: int
) -> str:
    """Key of one run of the model, 64 hex digits.

    Raises
    ------
    ValueError
        If a file that the config names cannot be read, or the policy has no source file.
    """
    content = {
        "config": _config_content(config),
        "policy": policy_content(policy),
        "profile": profile_hash(profile),
        "replication": replication,
        "engine": engine_hash(),
    }
    return _hash(content)


def _config_content(config: RunConfig) -> dict[str, Any]:
    content = asdict(config)
    # Neither what else is run nor how often it is run for real changes a run.
    for name in ("policies", "repeats"):
        del content[name]
    for section, name in _FILES:
        path = content[section][name]
        if path:
            content[section][name] = _file_hash(Path(path))
    return content


def policy_content(policy: Any) -> Any:
    """Type, source and fields of a policy, and of the policies within it."""
    if not hasattr(policy, "_asdict"):
        return policy
    kind = type(policy)
    content: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
    if not kind.__module__.startswith("shmsim."):  # those are part of the engine
        content["source"] = _source_hash(kind)
    content["fields"] = {name: policy_content(v) for name, v in policy._asdict().items()}
    return content


def _source_hash(kind: type) -> str:
    try:
        path = inspect.getsourcefile(kind)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise ValueError(
            f"policy {kind.__qualname__} has no source file, so nobody could tell whether a stored "
            "result is still its own; put it into a module, or sweep without a folder"
        )
    return _file_hash(Path(path))


_PROFILES: Final[dict[int, tuple[MachineProfile, str]]] = {}


def profile_hash(profile: MachineProfile) -> str:
    """Hash of the costs of a profile; who measured them, and when, plays no part."""
    known = _PROFILES.get(id(profile))
    if known is None or known[0] is not profile:
        digest = _hash([profile.costs, profile.policy_costs, profile.machine.get("doorbell")])
        known = _PROFILES[id(profile)] = (profile, digest)
    return known[1]


@cache
def engine_hash() -> str:
    """Hash of the model's source and data, and of the libraries that its numbers come from."""
    root = Path(shmsim.__file__).parent
    files = [path for kind in ("*.py", "*.toml") for path in root.rglob(kind)]
    parts = {
        str(path.relative_to(root)): _file_hash(path)
        for path in sorted(files)
        if path.relative_to(root).parts[0] not in NO_PART
    }
    return _hash([parts, {name: version(name) for name in _LIBRARIES}, platform.machine()])


def _file_hash(path: Path) -> str:
    try:
        found = path.stat()
        return _content_hash(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


@lru_cache(maxsize=1024)
def _content_hash(path: Path, _mtime_ns: int, _n_bytes: int) -> str:
    """Read a file again only if it was touched: a trace may be large, and the points many."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
