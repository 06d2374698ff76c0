"""Two workers and a scheduler on fewer cores than processes: whose waiting leaves most tokens.

Everybody runs once, shortly; the best of the others then run in turns with StepAhead, all on one
tape in each turn, in an order that shifts by one place.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from realrun.run import make_spec, run_once
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.metrics import cores_of, output_tokens_per_s
from shmsim.policies import PRESETS, StepAhead
from shmsim.profile import MachineProfile
from shmsim.units import MS

PROCESSES: Final = 3  # scheduler and two workers
RIVALS: Final = 5  # of the others, by their first run
OURS: Final = "step-ahead"
_SCREENING: Final = 1000  # replication of its tape, which no turn has

#: Told what runs.
Told = Callable[[str], None]


class Turn(NamedTuple):
    """One policy in one turn.

    Parameters
    ----------
    tokens_per_s
        Of all requests.
    cores
        Kept busy by all processes.
    """

    tokens_per_s: float
    cores: float


class Crowd(NamedTuple):
    """All runs.

    Parameters
    ----------
    screened
        The one short run of each of the others, by preset.
    turns
        One dict for each turn: StepAhead and its rivals.
    """

    screened: dict[str, Turn]
    turns: list[dict[str, Turn]]

    def ratios(self, rival: str) -> list[float]:
        """StepAhead's tokens over a rival's, turn by turn."""
        return [turn[OURS].tokens_per_s / turn[rival].tokens_per_s for turn in self.turns]


def config_of(n_steps: int) -> RunConfig:
    """Two workers, two decoding requests, two calls a step of 2 ms with 5 % jitter."""
    lengths = {"prompt_p50": 16, "prompt_p95": 16, "output_p50": n_steps, "output_p95": n_steps}
    return RunConfig(
        engine=EngineConfig(workers=2),
        workload=WorkloadConfig(requests=2, concurrency=2, **lengths),
        device=DeviceConfig(step_ns=2 * MS, per_sequence_ns=0, jitter=0.05),
    )


def run(profile: MachineProfile, n_steps: int, n_turns: int, tell: Told) -> Crowd:
    """Screen, then take turns.

    Parameters
    ----------
    profile
        Costs that policies are told.
    n_steps, n_turns
        Steps of a turn, and how many; a screening run has a quarter of the steps.
    tell
        Told about each run.
    """
    short = config_of(max(n_steps // 4, 20))
    screened = {}
    for name, policy in PRESETS.items():
        if not isinstance(policy, StepAhead):
            tell(f"screening: {name}")
            screened[name] = _once(short, name, profile, _SCREENING)
    best = sorted(screened, key=lambda name: screened[name].tokens_per_s, reverse=True)
    names = [OURS, *best[:RIVALS]]
    config = config_of(n_steps)
    turns = []
    for turn in range(n_turns):
        at = turn % len(names)
        tell(f"turn {turn + 1} of {n_turns}")
        turns.append({name: _once(config, name, profile, turn) for name in names[at:] + names[:at]})
    return Crowd(screened, turns)


def _once(config: RunConfig, name: str, profile: MachineProfile, tape: int) -> Turn:
    records = run_once(make_spec(config, PRESETS[name], profile, tape))
    return Turn(output_tokens_per_s(records.requests), float(sum(cores_of(records).values())))
