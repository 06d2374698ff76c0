"""Long runs at short windows: whether a wake-up is ever lost, on our bell and on vLLM's own.

Every window is waited out twice in one engine: by a policy on our bell, and as control by vLLM
itself with its window set so. A wake-up that is lost lasts until somebody's recheck after 5 s.
What is finished is stored, and a later call goes on with what is missing.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from realrun.vllm.ab import WARM_TOKENS
from realrun.vllm.arms import WINDOW
from realrun.vllm.engine import Engine, Setup
from realrun.vllm.in_force import check_in_force, moved
from shmsim.config import ConfigError, NamedPolicy
from shmsim.policies import GraceThenPark
from shmsim.policy_file import write_policy
from shmsim.units import S, format_ns
from shmsim.whole import write_whole

STORE: Final = "soak.json"
OURS: Final = "ours"
VLLMS: Final = "vLLM's"
_TOKENS: Final = 400  # of a generation
_SCHEDULER: Final = "scheduler"
Progress = Callable[[float, str], None]


class SoakPlan(NamedTuple):
    """What every window is tried on, and for how long.

    Parameters
    ----------
    workers, asynchronous
        Tensor-parallel workers, and scheduling; the latter as the engine really has it.
    engine, arguments
        Which vLLM, and arguments of ``vllm.LLM`` that are not the tiny model's.
    n_steps
        On either bell, one token each.
    control_s
        vLLM's own bell is given up after so long, as it may stand still for seconds in every step.
    """

    workers: int
    asynchronous: bool
    engine: str
    arguments: dict[str, Any]
    n_steps: int
    control_s: float

    @property
    def cell(self) -> str:
        """Name in tables and claims."""
        return f"tp{self.workers}-{'async' if self.asynchronous else 'sync'}-1"


class Soaked(NamedTuple):
    """One window on one bell.

    Parameters
    ----------
    window_ns, bell
        Which; the bell is `OURS` or `VLLMS`.
    n_steps
        Steps that were made.
    stalls, longest_s
        Steps of more than 100 ms (first tokens: of more than a second), and the longest.
    wall_s
        How long it took.
    rung, pinged
        Rings of ours, and pings of vLLM's, by EngineCore.
    rescued
        Messages that only a recheck of ours found, in all processes: 0 unless our bell loses some.
    foreign_cores
        What processes that are not of this engine used.
    """

    window_ns: int
    bell: str
    n_steps: int
    stalls: int
    longest_s: float
    wall_s: float
    rung: int
    pinged: int
    rescued: int
    foreign_cores: float

    @property
    def window(self) -> str:
        """For people."""
        return format_ns(self.window_ns)


def soak(
    plan: SoakPlan, windows_ns: Sequence[int], setup: Setup, out: Path, progress: Progress
) -> tuple[SoakPlan, list[Soaked]]:
    """Try every window that is not stored yet, in one engine.

    Parameters
    ----------
    plan
        How long.
    windows_ns
        Which.
    setup
        Of the engine; its policies are set here.
    out
        Folder of the results, the policies and the log.
    progress
        Told which share is done, and what runs now.

    Returns
    -------
    tuple of SoakPlan and list of Soaked
        What was done, and every window on both bells, in the order asked for.

    Raises
    ------
    ConfigError
        If results of another plan are stored there.
    RuntimeError
        If the engine fails, or does not wait as it was told.
    """
    done = read_soak(out / STORE, plan)
    wanted = [(ns, bell) for ns in windows_ns for bell in _bells(plan)]
    missing = [key for key in wanted if key not in done]
    if missing:
        arms = {key: n for n, key in enumerate(missing, 1)}
        policies = ":".join(_arm(window_ns, bell, out) for window_ns, bell in missing)
        progress(0.0, "vLLM loads")
        with Engine(setup._replace(policies=policies), out / "vllm.log") as engine:
            for n, (window_ns, bell) in enumerate(missing):

                def told(share: float, text: str, n: int = n) -> None:
                    progress((n + share) / len(missing), text)

                # What another bell has left asleep is woken, and does not count here.
                engine.control.arm = 0
                engine.generate(1, WARM_TOKENS)
                engine.control.arm = arms[window_ns, bell]
                done[window_ns, bell] = run_window(engine, plan, window_ns, bell, told)
                write_soak(out / STORE, plan, engine.asynchronous, list(done.values()))
    stored = json.loads((out / STORE).read_text())
    return plan._replace(asynchronous=stored["asynchronous"]), [done[key] for key in wanted]


def _bells(plan: SoakPlan) -> tuple[str, ...]:
    return (OURS, VLLMS) if plan.control_s > 0 else (OURS,)


def _arm(window_ns: int, bell: str, out: Path) -> str:
    """An entry of ``REALRUN_VLLM_POLICY``."""
    if bell == VLLMS:
        return f"{WINDOW}{window_ns}ns"
    path = (out / f"window-{window_ns}ns.json").absolute()
    write_policy(path, NamedPolicy(path.stem, GraceThenPark(window_ns)), {})
    return str(path)


def run_window(
    engine: Engine, plan: SoakPlan, window_ns: int, bell: str, progress: Progress
) -> Soaked:
    """Let an engine generate while that window and bell are in force.

    Raises
    ------
    RuntimeError
        If they were not.
    """
    limit_s = plan.control_s if bell == VLLMS else math.inf
    name = f"window {format_ns(window_ns)}, bell: {bell}"
    n_steps = stalls = 0
    longest_s = 0.0
    counted, used, started = engine.counters(), engine.usage(), time.monotonic()
    while n_steps < plan.n_steps and (elapsed_s := time.monotonic() - started) < limit_s:
        share = max(n_steps / plan.n_steps, elapsed_s / limit_s)
        progress(share, f"{name}: {n_steps} steps, {stalls} stalls")
        left_s = limit_s - elapsed_s if limit_s < math.inf else None
        n_tokens = min(_TOKENS, max(plan.n_steps - n_steps, 2))
        answer = engine.generate(1, n_tokens, within_s=left_s)
        n_steps += len(answer["tokens"][0])
        stalls += answer["stalls"]
        longest_s = max(longest_s, answer["longest_gap_s"])
    wall_s = time.monotonic() - started
    foreign_ns = engine.usage().foreign_ns(used)
    went = {n: moved(counted[n], after) for n, after in engine.counters().items()}
    check_in_force(name, went, plan.workers, by_policy=bell == OURS)
    return Soaked(
        window_ns,
        bell,
        n_steps,
        stalls,
        longest_s,
        wall_s,
        went[_SCHEDULER].rung,
        went[_SCHEDULER].pinged,
        sum(counters.rescued for counters in went.values()),
        foreign_ns / (S * wall_s),
    )


def write_soak(path: Path, plan: SoakPlan, asynchronous: bool, rows: Sequence[Soaked]) -> None:
    """Store what is finished."""
    content: dict[str, Any] = {
        "plan": plan._asdict(),
        "asynchronous": asynchronous,
        "windows": [row._asdict() for row in rows],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_soak(path: Path, plan: SoakPlan) -> dict[tuple[int, str], Soaked]:
    """What is stored, by window and bell; nothing where there is no file.

    Raises
    ------
    ConfigError
        If it is of another plan, or damaged.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        stored = SoakPlan(**content["plan"])
        rows = [Soaked(**row) for row in content["windows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no store of a soak: {error!r}") from None
    if stored != plan:
        raise ConfigError(
            f"{path} holds windows of another plan ({_differing(stored, plan)}); give this one a "
            "folder of its own (--out), or remove that file"
        )
    return {(row.window_ns, row.bell): row for row in rows}


def _differing(stored: SoakPlan, plan: SoakPlan) -> str:
    pairs = zip(SoakPlan._fields, stored, plan, strict=True)
    return ", ".join(f"{name} {a}, here {b}" for name, a, b in pairs if a != b)
