"""The ways to wait that an engine can switch between: vLLM's own, and those of policy files.

A reader of `shmsim.policy_file`'s format that needs neither its configs nor pyarrow nor scipy,
which an engine's environment need not have (tests/vllm: both read alike).
"""

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmsim.policies import POLICIES, check_parameters
from shmsim.units import S, parse_duration_ns
from shmsim.wait import TYPICAL_COSTS, WaitCosts, WaitPolicy

WINDOW: Final = "window="  #: vLLM's own waiting and bell, but a spin window of this length


class Arm(NamedTuple):
    """One way to wait.

    Parameters
    ----------
    name
        As the policy file says; ``"vllm"`` for what vLLM does by itself.
    policy
        None: vLLM waits.
    window_s
        vLLM's spin window where it is not the one it came with.
    """

    name: str
    policy: WaitPolicy | None = None
    window_s: float | None = None


def read_arms(text: str) -> tuple[Arm, ...]:
    """Read ``REALRUN_VLLM_POLICY``: policy files or ``window=2ms``, with colons between.

    Returns
    -------
    tuple of Arm
        vLLM's own first.

    Raises
    ------
    ValueError
        If one cannot be read.
    """
    return Arm("vllm"), *(_arm(part) for part in text.split(os.pathsep) if part)


def read_costs(path: Path | None) -> WaitCosts:
    """What policies are told about the costs of waiting: of a JSON file, or typical ones."""
    if path is None:
        return TYPICAL_COSTS
    try:
        return WaitCosts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} does not hold {', '.join(WaitCosts._fields)}: {error}") from None


def _arm(text: str) -> Arm:
    if text.startswith(WINDOW):
        return Arm(text, window_s=parse_duration_ns(text.removeprefix(WINDOW)) / S)
    try:
        content = json.loads(Path(text).read_text())
        if content["format"] != "shmsim-policy" or content["version"] != 1:
            raise ValueError("it is no policy file of version 1")
        policy = _policy(content["kind"], content["parameters"])
        check_parameters(policy)
        return Arm(content["name"], policy)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"cannot use policy {text}: {error}") from None


def _policy(kind: str, table: dict[str, Any]) -> WaitPolicy:
    policy_type: Any = POLICIES[kind]
    given: dict[str, Any] = {}
    for field in policy_type._fields:
        if field == "inner" and field in table:
            inner = dict(table[field])
            given[field] = _policy(inner.pop("kind"), inner)
        elif field in table:
            given[field] = table[field]
        elif field.endswith("_ns") and field.removesuffix("_ns") in table:
            given[field] = parse_duration_ns(table[field.removesuffix("_ns")])
    unknown = len(table) - len(given)
    if unknown:
        raise ValueError(f"{kind} has no parameter named as {unknown} of {', '.join(table)}")
    policy: WaitPolicy = policy_type(**given)
    return policy
