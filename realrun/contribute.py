"""What somebody gives to the leaderboard: figures, and nothing that tells who or where they are.

A bundle is made of a list of what may be in it, not by striking things out: numbers, words that
this project defines, facts about the machine. A name that a person chose never gets in: a policy is
called what a command line calls it, a file is the hash of its content.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from realrun.contribute_facts import facts_of, settings_of
from realrun.contribute_waits import Progress, waits_of
from realrun.report.stored import (
    GRID,
    META,
    VALIDATION,
    policy_of,
    profile_of,
    read_records,
    read_validation,
)
from shmsim.figures import figures_of
from shmsim.metrics import summarize
from shmsim.policies import POLICIES
from shmsim.policy_file import read_policy
from shmsim.profile import MachineProfile
from shmsim.tuner import written
from shmsim.wait import WaitPolicy

FORMAT: Final = "shmsim-bundle"
VERSION: Final = 1
KINDS: Final = ("validation", "run", "tune")

_LARGEST_BYTES: Final = 1 << 20
#: Within a code span of Markdown none of these means anything.
_PLAIN: Final = re.compile(r"[\w .,:;=@()/+%-]{0,200}", re.ASCII)
_TOLD_OF_TUNE: Final = ("n_searched", "n_held_out", "probability", "stands_on_profiles", "seed")
_REST_NS: Final = 2e6  # a typical step


def bundle_of(
    path: Path,
    profile: MachineProfile | None = None,
    progress: Progress = lambda _label, _share: None,
) -> dict[str, Any]:
    """Make the bundle of what a command left.

    Parameters
    ----------
    path
        Folder of ``realrun validate`` or ``realrun run --out``, or the policy file of
        ``shmsim tune``.
    profile
        Of a policy file, the one it was tuned on: it says on which machine.
    progress
        Told what is being worked out.

    Returns
    -------
    dict
        As `read_bundle` gives it.

    Raises
    ------
    ValueError
        If there is nothing of that kind, or it is damaged, as one made by hand may be.
    """
    try:
        told = _told(path, profile, progress)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged, or was not written by this program ({error!r}); run the command "
            "that made it again"
        ) from None
    bundle = {"format": FORMAT, "version": VERSION, **told}
    check_bundle(bundle)
    return bundle


def _told(path: Path, profile: MachineProfile | None, progress: Progress) -> dict[str, Any]:
    """What a command left, by the kind of it."""
    if path.suffix == ".json" and path.is_file():
        return _tuned(path, profile)
    if (path / VALIDATION).is_file():
        return _validated(path, progress)
    if (path / META).is_file():
        return _run(path)
    if (path / GRID).is_file():
        raise ValueError(
            f"{path} holds a grid, which tells how well the model predicts and compares no "
            "policies; contribute a folder of 'realrun validate CONFIG.toml'"
        )
    raise ValueError(
        f"{path} is none of what can be contributed: a folder of 'realrun validate' or "
        "'realrun run --out', or a policy file of 'shmsim tune'"
    )


def _validated(folder: Path, progress: Progress) -> dict[str, Any]:
    stored = read_validation(folder)
    config = stored.content["config"]
    contents = config.get("policies", [])
    if len(stored.table) > len(contents):
        raise ValueError(
            f"{folder / VALIDATION} has figures of {len(stored.table)} policies, and its config "
            f"names {len(contents)}, so nobody can tell which they are of"
        )
    # An interrupted validation has figures of the first policies only.
    named = zip(stored.table, contents, strict=False)
    policies = {own: policy_of(content) for own, content in named}
    names = _names(policies)
    known = {names[own]: (own, p) for own, p in policies.items() if p is not None and _is_ours(p)}
    waits = waits_of(stored, known, progress)
    profile = None if "why_not" in waits else profile_of(folder)
    return {
        "kind": "validation",
        "measured_on": str(stored.content.get("finished_at", ""))[:10],
        "machine": facts_of(stored.content["machine"]),
        "settings": settings_of(config),
        "policies": {
            names[own]: {
                figure: {key: _number(value) for key, value in vars(compared).items()}
                for figure, compared in figures.items()
            }
            for own, figures in stored.table.items()
        },
        "waits": waits,
        "costs": _costs(profile) if profile is not None else {},
    }


def _run(folder: Path) -> dict[str, Any]:
    records = read_records(folder)
    meta = records.meta
    if meta.get("world") != "machine":
        raise ValueError(f"{folder} holds a run of the {meta.get('world')}; contribute real ones")
    figures = figures_of(summarize(records))
    names = _names({"": policy_of(meta.get("policy"))})
    return {
        "kind": "run",
        "machine": facts_of(meta.get("machine", {})),
        "policy": names[""],
        "n_workers": sum(p.process.startswith("worker") for p in records.processes),
        "n_requests": len(records.requests),
        "figures": {name: _number(value) for name, value in figures.items()},
    }


def _tuned(path: Path, profile: MachineProfile | None) -> dict[str, Any]:
    named = read_policy(path)
    found = json.loads(path.read_text()).get("found", {})
    if profile is None:
        raise ValueError(
            f"{path} does not say which machine it is for; name the profile that it was tuned on, "
            "as in --profile profile.json"
        )
    if profile.measured_at != found.get("profile_measured_at"):
        raise ValueError(
            f"{path} was tuned on a profile of {found.get('profile_measured_at')}, and this one is "
            f"of {profile.measured_at}; name the one it was tuned on"
        )
    return {
        "kind": "tune",
        "machine": facts_of(profile.machine),
        "measured_on": profile.measured_at[:10],
        "policy": written(named.policy),
        "kept_default": bool(found.get("kept_default_because")),
        "goal": str(found.get("goal", "")).replace("<=", "at most"),
        "found": {name: found[name] for name in _TOLD_OF_TUNE if name in found},
        "held_out": {
            name: [_number(value) for value in values]
            for name, values in found.get("held_out", {}).items()
        },
        "costs": _costs(profile),
    }


def _is_ours(policy: WaitPolicy) -> bool:
    return type(policy) in POLICIES.values()


def _names(policies: Mapping[str, WaitPolicy | None]) -> dict[str, str]:
    """How the bundle calls each policy, by the name that its owner gave it."""
    found: dict[str, str] = {}
    for own, policy in policies.items():
        name = written(policy) if policy is not None and _is_ours(policy) else "own policy"
        n = sum(other == name or other.startswith(f"{name} no. ") for other in found.values())
        found[own] = f"{name} no. {n + 1}" if n else name
    return found


def _costs(profile: MachineProfile) -> dict[str, float]:
    """What decides most about waiting: medians after a rest of 2 ms, nanoseconds."""
    names = ("spin_detection", "wake_latency", "park_cpu", "timer_overshoot", "doze_cpu")
    return {name: round(profile.costs[name].at(0.5, _REST_NS), 1) for name in names}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def text_of(bundle: dict[str, Any]) -> str:
    """The file, for people too."""
    return json.dumps(bundle, indent=1, allow_nan=False) + "\n"


def read_bundle(path: Path) -> dict[str, Any]:
    """Read a bundle, which may be from anybody.

    Raises
    ------
    ValueError
        If it is missing, no bundle, or holds what no bundle holds.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"it has {path.stat().st_size >> 10} KiB; bundles have at most 1024")
        content = json.loads(path.read_text(encoding="utf-8"))
        check_bundle(content)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is no bundle: {error}") from None
    found: dict[str, Any] = content
    return found


def check_bundle(content: Any) -> None:
    """Hold a bundle to what it may hold: plain words, finite numbers, and the parts of its kind.

    Raises
    ------
    ValueError
        If there is anything else; says where.
    """
    _check_plain("bundle", content)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'it lacks "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ValueError(f"it has version {content.get('version')}, and this code reads {VERSION}")
    parts: dict[str, dict[str, type]] = {
        "validation": {"measured_on": str, "settings": dict, "policies": dict, "waits": dict},
        "run": {"policy": str, "figures": dict, "n_workers": int, "n_requests": int},
        "tune": {"measured_on": str, "policy": str, "goal": str, "found": dict, "held_out": dict},
    }
    if content.get("kind") not in parts:
        raise ValueError(f"its kind is {content.get('kind')!r}, none of {', '.join(KINDS)}")
    for name, kind in {"machine": dict, **parts[content["kind"]]}.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"its {name} is no {kind.__name__}")


def _check_plain(where: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            _check_plain(f"a key of {where}", key)
            _check_plain(f"{where}.{key}", each)
    elif isinstance(value, list):
        for each in value:
            _check_plain(where, each)
    elif isinstance(value, str):
        if _PLAIN.fullmatch(value) is None:
            raise ValueError(f"{where} holds characters that no bundle has: {value[:40]!r}")
    elif not (value is None or isinstance(value, bool | int) or math.isfinite(value)):
        raise ValueError(f"{where} is {value}, no finite number")
