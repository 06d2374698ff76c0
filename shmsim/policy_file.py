"""A policy as a JSON file: what the tuner writes and a run reads."""

import json
from pathlib import Path
from typing import Any, Final

from shmsim.config import ConfigError, NamedPolicy, policy_from_table
from shmsim.policies import POLICIES
from shmsim.policies.parameters import is_penalty, parameters_of
from shmsim.wait import WaitPolicy
from shmsim.whole import write_whole

FORMAT: Final = "shmsim-policy"
VERSION: Final = 1


def write_policy(path: Path, policy: NamedPolicy, found: dict[str, Any]) -> None:
    """Store a policy, with how it was found beside it.

    Raises
    ------
    ValueError
        If it is not one of the library's, which alone a file can name.
    """
    content = {**policy_content(policy), "found": found}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1) + "\n")


def policy_content(policy: NamedPolicy) -> dict[str, Any]:
    """What the file of a policy must hold.

    Raises
    ------
    ValueError
        If it is not one of the library's.
    """
    kind = type(policy.policy).__name__
    if POLICIES.get(kind) is not type(policy.policy):
        raise ValueError(f"a policy file can hold {', '.join(POLICIES)}; got {kind}")
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": policy.name,
        "kind": kind,
        "parameters": _table(policy.policy),
    }


def _table(policy: WaitPolicy) -> dict[str, Any]:
    """The parameters as in a config, where durations carry their unit; all is learnt anew."""
    table: dict[str, Any] = {}
    for name, value in parameters_of(policy).items():
        if name == "inner":
            table[name] = {"kind": type(value).__name__, **_table(value)}
        elif not is_penalty(policy, name):
            table[name.removesuffix("_ns")] = f"{value}ns" if name.endswith("_ns") else value
    return table


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
