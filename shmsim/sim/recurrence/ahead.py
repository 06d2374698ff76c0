"""Loops for several policies, compiled by two processes side by side.

Numba compiles under one lock, so the threads of a process take turns. What is on disk nowhere is
shared out: a process that is started for it compiles some loops and keeps them, where this one
finds them when it is done with the others.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from shmsim.config import NamedPolicy, parse_policy, policy_from_table
from shmsim.policies import POLICIES
from shmsim.policy_file import policy_content
from shmsim.sim.kept import can_be_kept
from shmsim.sim.recurrence.loop import compile_loop, is_at_hand, loop_for
from shmsim.wait import WaitPolicy

_PARTS: Final = ("kind", "parameters")


def compile_ahead(policies: Sequence[WaitPolicy], device_wait: str, *, one_worker: bool) -> None:
    """Compile the loops of policies that are neither in memory nor on disk.

    Parameters
    ----------
    policies
        Of any classes. Another process can be asked for those of the library alone.
    device_wait, one_worker
        As of the config.

    Raises
    ------
    TypeError
        If a policy does not compile, see `shmsim.sim.compiled.compile_policy`.
    """
    device_policy = _device_policy(device_wait)
    missing = {}
    for policy in policies:
        loop = loop_for(policy, device_policy, one_worker=one_worker)
        if not is_at_hand(loop):
            missing[id(loop)] = policy, loop
    shared = [
        key for key, (policy, loop) in missing.items() if _is_known(policy) and can_be_kept(loop)
    ]
    theirs = shared[: len(missing) // 2]
    if not theirs or len(os.sched_getaffinity(0)) < 2:
        return
    asked = [missing[key][0] for key in theirs]
    with _helper(asked, device_wait, one_worker=one_worker):
        for key, (_, loop) in missing.items():
            if key not in theirs:
                compile_loop(loop)


def _device_policy(device_wait: str) -> WaitPolicy | None:
    return parse_policy(device_wait).policy if device_wait else None


def _is_known(policy: WaitPolicy) -> bool:
    """Whether another process can be told which policy this is."""
    return all(
        POLICIES.get(type(each).__name__) is type(each)
        for each in (policy, getattr(policy, "inner", policy))
    )


@contextmanager
def _helper(
    policies: Sequence[WaitPolicy], device_wait: str, *, one_worker: bool
) -> Iterator[None]:
    """Have a process compile loops meanwhile; at the end wait for it, or stop it after an error.

    Whatever goes wrong there is compiled here when it is needed.
    """
    contents = [policy_content(NamedPolicy("asked", policy)) for policy in policies]
    asked = {
        "policies": [{part: content[part] for part in _PARTS} for content in contents],
        "device_wait": device_wait,
        "one_worker": one_worker,
    }
    # Not multiprocessing, which would run a script that has no main guard a second time.
    helper = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(asked)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
        helper.wait()
    finally:
        helper.kill()
        helper.wait()


def _compile(asked: dict[str, Any]) -> None:
    """What the other process does."""
    device_policy = _device_policy(asked["device_wait"])
    for content in asked["policies"]:
        table = {"kind": content["kind"], **content["parameters"]}
        policy = policy_from_table("policy", table).policy
        compile_loop(loop_for(policy, device_policy, one_worker=asked["one_worker"]))


if __name__ == "__main__":
    _compile(json.loads(sys.argv[1]))
