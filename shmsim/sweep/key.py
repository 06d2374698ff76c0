"""What a result depends on, as one hash: the same key, the same figures.

Config, policy, profile, seed, replication, and the source of the model itself: whoever changes a
line of it gets new results, not old ones under a new name. What belongs to the model its imports
say, so that a change of the tuner or of a table costs nobody a result. What is hashed is what this
process has imported: it refuses to name a result if a source file has changed since.
"""

import ast
import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import shmsim
from shmsim.code_hash import CodeHash
from shmsim.config import RunConfig
from shmsim.profile import MachineProfile
from shmsim.sources import Sources, refuse_changed
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
        If a file that the config names cannot be read, or the code of the policy refers to
        something that may change while it runs.
    RuntimeError
        As `check_engine`.
    """
    check_engine()
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
    """Type, code and fields of a policy, and of the policies within it."""
    if not hasattr(policy, "_asdict"):
        return policy
    kind = type(policy)
    content: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
    if kind.__module__ not in model_files():  # those are part of the engine
        content["code"] = _code_of(kind)
    content["fields"] = {name: policy_content(v) for name, v in policy._asdict().items()}
    return content


def _code_of(kind: type) -> str:
    """Hash of what a class does, as it was imported, with all helpers that are not the engine's."""
    found = CodeHash(model_files().__contains__)
    try:
        found.add(kind)
    except TypeError as error:
        raise ValueError(
            f"policy {kind.__qualname__} has no key by which a result could be found again: "
            f"{error}, or sweep without a folder"
        ) from None
    return found.hexdigest()


class _Itself:
    """What has no hash, known by being the same object."""

    def __init__(self, value: MachineProfile) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value


def profile_hash(profile: MachineProfile) -> str:
    """Hash of the costs of a profile; who measured them, and when, plays no part."""
    return _profile_hash(_Itself(profile))


@lru_cache(maxsize=64)
def _profile_hash(profile: _Itself) -> str:
    """Takes milliseconds, and the points of a sweep have few profiles; as many stay in memory."""
    known = profile.value
    told = [known.machine.get(name) for name in ("doorbell", "observe")]
    return _hash([known.costs, known.policy_costs, told])


@cache
def engine_hash() -> str:
    """Hash of the model's source and data, and of the libraries that its numbers come from.

    Raises
    ------
    RuntimeError
        If a file has changed since this process began to import the model.
    """
    # Data that the model reads; of shipped profiles the content counts wherever one is used.
    data = {path.name: path for path in (_SOURCE / "data").glob("*.toml")}
    files = {**model_files(), **data}
    parts = {name: _file_hash(path) for name, path in sorted(files.items())}
    refuse_changed(files.values())  # last, so that none changes between the two
    return _hash([parts, {name: version(name) for name in _LIBRARIES}, platform.machine()])


def check_engine() -> None:
    """Refuse if the hash is not that of the code that is loaded; takes microseconds.

    Modules are loaded when they are first needed, perhaps long after they were hashed.

    Raises
    ------
    RuntimeError
        If the source of one had changed when it was loaded.
    """
    _model_sources().check()


@cache
def _model_sources() -> Sources:
    return Sources(model_files())


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
