"""How this package carries a policy out in an engine that has no setting for it."""

import json
import shlex
from pathlib import Path

from shmsim.config import NamedPolicy
from shmsim.export.engines import Beside, Engine
from shmsim.export.price import context, trained
from shmsim.policy_file import policy_content
from shmsim.wait import REHEARSE, WaitCosts

_WRITTEN_TO = Path("policy.json")


def how_beside(
    engine: Engine, row: Beside, wanted: NamedPolicy, path: Path | None, costs: WaitCosts
) -> tuple[tuple[str, str], list[str]]:
    """What to set, and what to do before.

    Parameters
    ----------
    engine
        Where.
    row
        How.
    wanted
        The policy.
    path
        Its file; None if it has none yet.
    costs
        Of waiting, for policies that look at them.

    Returns
    -------
    tuple
        Name and value of the variable; lines for people.
    """
    # Whoever starts the engine stands in another folder.
    value = str((path or _WRITTEN_TO).resolve())
    said = [
        f"but this package carries {wanted.name} out in an unmodified {engine.name} "
        f"({row.page}): install it into its environment, in a checkout by "
        "'python -m pip install --no-deps .'"
    ]
    if path is None:
        content = shlex.quote(json.dumps(policy_content(wanted)))
        said.append(f"write the policy down: echo {content} > {shlex.quote(value)}")
    said += [
        f"then start {engine.name} with: {row.variable}={shlex.quote(value)}",
        f"tried with {row.tried}; a version that does not fit is left as it was, and its log says "
        "why",
    ]
    if any(stage.kind == REHEARSE for stage in trained(wanted.policy, costs).plan(context(costs))):
        said.append("nothing is rehearsed there: work after a wait runs slower than in realrun")
    return (row.variable, value), said
