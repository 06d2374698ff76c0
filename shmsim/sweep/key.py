"""What a result depends on, as one hash: the same key, the same figures.

Config, policy, profile, seed, replication, and the source of the model itself: whoever changes a
line of it gets new results, not old ones under a new name. What belongs to the model its imports
say, so that a change of the tuner or of a table costs nobody a result.
"""

import ast
import hashlib
import inspect
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import shmsim
from shmsim.config import RunConfig
from shmsim.profile import MachineProfile
from shmsim.wait import WaitPolicy

#: What runs a config, and what makes figures of it; all that they import is the model.
_ROOTS: Final = ("shmsim.sim.engine", "shmsim.figures")
#: Makes intervals from the figures of runs, not figures.
_NO_PART: Final = "shmsim.stats"
_LIBRARIES: Final = ("numpy", "scipy", "simpy", "numba")
_FILES: Final = (("workload", "trace"), ("device", "file"))
_SOURCE: Final = Path(shmsim.__file__).parent


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
    # Data that the model reads; of shipped profiles the content counts wherever one is used.
    files = {path.name: path for path in (_SOURCE / "data").glob("*.toml")}
    parts = {name: _file_hash(path) for name, path in sorted({**model_files(), **files}.items())}
    return _hash([parts, {name: version(name) for name in _LIBRARIES}, platform.machine()])


@cache
def model_files() -> dict[str, Path]:
    """Source files of the model by module: what `_ROOTS` import, also within functions."""
    found: dict[str, Path] = {}
    todo = list(_ROOTS)
    while todo:
        name = todo.pop()
        path = _file_of(name)
        if path is None or name in found or f"{name}.".startswith(f"{_NO_PART}."):
            continue
        found[name] = path
        todo += _imports(path)
        todo.append(name.rpartition(".")[0])  # a package is run before what is in it
    return found


def _file_of(module: str) -> Path | None:
    """Source of a module of ours; None of what is none, such as a class in one."""
    package, _, rest = module.partition(".")
    if package != "shmsim":
        return None
    path = _SOURCE.joinpath(*filter(None, rest.split(".")))
    names = (path.with_suffix(".py"), path / "__init__.py")
    return next((name for name in names if name.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Names that a file imports: modules, and what it takes from them."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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
