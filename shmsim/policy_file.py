"""A policy as a JSON file: what the tuner writes and a run reads."""

import json
from pathlib import Path
from typing import Any, Final

from shmsim.config import ConfigError, NamedPolicy, policy_from_table
from shmsim.policies import POLICIES

FORMAT: Final = "shmsim-policy"
VERSION: Final = 1


def write_policy(path: Path, policy: NamedPolicy, found: dict[str, Any]) -> None:
    """Store a policy, with how it was found beside it.

    Raises
    ------
    ValueError
        If it is not one of the library's, which alone a file can name.
    """
    kind = type(policy.policy).__name__
    if POLICIES.get(kind) is not type(policy.policy):
        raise ValueError(f"a policy file can hold {', '.join(POLICIES)}; got {kind}")
    fields: dict[str, Any] = policy.policy._asdict()  # type: ignore[attr-defined]
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": policy.name,
        "kind": kind,
        # Durations carry their unit, as in a config.
        "parameters": {
            name.removesuffix("_ns"): f"{value}ns" if name.endswith("_ns") else value
            for name, value in fields.items()
            if name != "mean_wait_ns"  # what was learnt is learnt anew
        },
        "found": found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_policy(path: Path) -> NamedPolicy:
    """Read a policy file.

    Raises
    ------
    ConfigError
        If it is missing, no policy file, or holds a wrong parameter.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read policy {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f'{path} is not a policy file: it lacks "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ConfigError(
            f"{path} is a policy file of version {content.get('version')}; "
            f"this program reads version {VERSION}"
        )
    parameters = content.get("parameters")
    if not isinstance(parameters, dict):
        raise ConfigError(f"{path}: parameters must be a table")
    table = {"kind": content.get("kind"), "name": content.get("name"), **parameters}
    return policy_from_table(str(path), table)
