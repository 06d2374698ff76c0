"""How near StepAhead comes to what no policy can beat, and how good the tuner's choice is.

Usage: python experiments/bench/policies.py [--quick] [--json FILE] [--runs FOLDER]
           [--parts {synthetic,real,park,crowd,tuner} ...]

Calibrates, replays synthetic and recorded waits, lets StepAhead, spin and park take turns on the
machine, and all policies with two workers on two cores, and tunes. With --runs the profile and the
records of the turns are kept.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import crowded
import regret
import turns
from parts import Part, calibrated, end_as_ctrl_c_does, finish, measured, options, told

from realrun.host import usable_cores
from shmsim.bounds.compare import ground, report
from shmsim.bounds.recorded import recorded_waits
from shmsim.bounds.replay import replay
from shmsim.bounds.synthetic import PREDICTABLE, UNPREDICTABLE, assumed_profile
from shmsim.claims import Claim
from shmsim.policies import Park, StepAhead
from shmsim.profile import MachineProfile
from shmsim.stats import mean_of_replications
from shmsim.stats.estimate import Estimate
from shmsim.tape import Tape
from shmsim.units import US
from shmsim.wait import SCHEDULER_RECV

SEED: Final = 1
PRICE: Final = 10.0
PRICES: Final = (1.0, 10.0, 100.0)
PARTS: Final = ("synthetic", "real", "park", "crowd", "tuner")
GAP_CLOSED: Final = 0.9
ADDED_NS: Final = 10 * US
CPU_SHARE: Final = 0.1
MODEL_DELAY_NS: Final = 5 * US
MODEL_SHARE: Final = 0.03
WORSE_THAN_PARK: Final = 0.03
AS_MANY_TOKENS: Final = 0.99  # of the best other's; turns differ by more
REGRET_CORES: Final = 0.02


class Effort(NamedTuple):
    """How much is run."""

    replicates: int  # of the calibration
    waits: int
    tapes: int  # of real pairs
    crowd_steps: int
    crowd_turns: int
    regret_tapes: int
    workloads: tuple[str, ...]


FULL: Final = Effort(6, 4000, 12, 400, 10, 20, tuple(regret.WORKLOADS))
QUICK: Final = Effort(1, 1000, 2, 80, 2, 4, ("closed",))


def claim(name: str, found: Estimate, unit: str, bound: float, direction: str = "<=") -> Claim:
    """An estimate as a claim."""
    return Claim(name, *found[:3], unit, bound, direction, found.n, SEED)


def measure_synthetic(effort: Effort, _profile: MachineProfile, _folder: Path) -> Part:
    """Gap closed on the traces of waits.md, section 5."""
    claims, record = [], {}
    for name, trace_of in PREDICTABLE.items():
        waits = trace_of(Tape(SEED), effort.waits)
        on = ground(waits, assumed_profile(), Tape(SEED + 1), PRICE)
        found = report(StepAhead(), on)
        record[name] = found._asdict()
        claims.append(_closed(name.split()[0], found.gap_closed, effort.waits))
    return claims, record


def _closed(name: str, found: Any, n: int) -> Claim:
    return Claim(f"policy/stepahead/gap_closed/{name}", *found, "share", GAP_CLOSED, ">=", n, SEED)


def measure_real(effort: Effort, profile: MachineProfile, folder: Path) -> Part:
    """StepAhead and spin by turns on this machine, and in the model; then replays of the gaps."""
    claims, record = [], {}
    for name, config in turns.CONFIGS.items():
        pairs = turns.run(config, profile, effort.tapes, folder / name)
        added = mean_of_replications([pair.machine.added_ns for pair in pairs], seed=SEED)
        share = mean_of_replications([pair.machine.cpu_share for pair in pairs], seed=SEED)
        delay_error = mean_of_replications(
            [abs(pair.model.added_ns - pair.machine.added_ns) for pair in pairs], seed=SEED
        )
        share_error = mean_of_replications(
            [abs(pair.model.cpu_share - pair.machine.cpu_share) for pair in pairs], seed=SEED
        )
        own = "policy/stepahead"
        waits = recorded_waits(pairs[0].records, "scheduler", SCHEDULER_RECV, call=1)
        on = ground(waits, profile, Tape(SEED + 1), config.delay_price)
        found = report(StepAhead(), on)
        claims += [
            claim(f"{own}/real_added_delay_ns/{name}", added, "ns", ADDED_NS),
            claim(f"{own}/real_cpu_share_of_spin/{name}", share, "share", CPU_SHARE),
            claim(f"{own}/model_added_delay_error_ns/{name}", delay_error, "ns", MODEL_DELAY_NS),
            claim(f"{own}/model_cpu_share_error/{name}", share_error, "share", MODEL_SHARE),
            _closed(name, found.gap_closed, waits.n_waits),
        ]
        record[name] = {
            "pairs": [
                {"machine": pair.machine._asdict(), "model": pair.model._asdict()} for pair in pairs
            ],
            "replay": found._asdict(),
        }
        for pair in pairs:
            print(
                f"  {name}: machine {pair.machine.added_ns / US:+.1f} us, "
                f"{pair.machine.cpu_share:.3f} of spin's CPU (park {pair.machine.park_share:.3f}); "
                f"model {pair.model.added_ns / US:+.1f} us, {pair.model.cpu_share:.3f} "
                f"({pair.model.park_share:.3f})"
            )
    return claims, record


def measure_park(effort: Effort, profile: MachineProfile, _folder: Path) -> Part:
    """How much dearer than parking it is at worst, its own CPU counted."""
    record: dict[str, float] = {}
    for name, trace_of in {**PREDICTABLE, **UNPREDICTABLE}.items():
        waits = trace_of(Tape(SEED))
        for price in PRICES:
            costs = [
                float(replay(policy, waits, profile, Tape(SEED + 1), price).cost_ns.sum())
                for policy in (StepAhead(), Park())
            ]
            record[f"{name}, r{price:g}"] = costs[0] / costs[1] - 1.0
    worst = {f"/r{price:g}": _worst(record, f", r{price:g}") for price in PRICES}
    worst[""] = max(worst.values())
    return [
        Claim(
            f"policy/worst_vs_park{name}",
            *(value, value, value, "share", WORSE_THAN_PARK, "<=", len(record), SEED),
        )
        for name, value in worst.items()
    ], record


def _worst(record: dict[str, float], ending: str) -> float:
    return max(value for name, value in record.items() if name.endswith(ending))


def measure_crowd(effort: Effort, profile: MachineProfile, _folder: Path) -> Part:
    """Tokens with two workers on two cores, against the best of all other policies."""
    n_cores = len(usable_cores())
    if n_cores > crowded.PROCESSES - 1:
        print(f"  left out: {n_cores} cores for {crowded.PROCESSES} processes are no crowd")
        return [], {"skipped": f"{n_cores} cores"}
    found = crowded.run(profile, effort.crowd_steps, effort.crowd_turns, progress)
    rivals = [name for name in found.turns[0] if name != crowded.OURS]
    ratios = {
        rival: mean_of_replications(found.ratios(rival), seed=SEED) for rival in sorted(rivals)
    }
    for rival, ratio in ratios.items():
        print(f"  tokens of step-ahead over those of {rival}: {ratio.text()}")
    least = min(ratios.values(), key=lambda ratio: ratio.value)
    name = "policy/stepahead/tp2_tokens_over_best_other"
    record = {
        "screened": {policy: turn._asdict() for policy, turn in found.screened.items()},
        "turns": [
            {policy: turn._asdict() for policy, turn in turns_of.items()}
            for turns_of in found.turns
        ],
        "ratios": {rival: ratio._asdict() for rival, ratio in ratios.items()},
    }
    return [claim(name, least, "ratio", AS_MANY_TOKENS, ">=")], record


def progress(label: str) -> None:
    """Say what runs now."""
    print(f"  {label}", flush=True)


def measure_tuner(effort: Effort, profile: MachineProfile, _folder: Path) -> Part:
    """What the tuner's choice costs more than the best in hindsight, tape by tape."""
    found = {}
    for name in effort.workloads:
        found[name] = regret.regret_of(regret.WORKLOADS[name], profile, PRICE, effort.regret_tapes)
        print(f"  {name}: {found[name].chosen}, {found[name].estimate.text()} cores dearer")
    worst = max((each.estimate for each in found.values()), key=lambda e: e.value)
    record = {name: each._asdict() for name, each in found.items()}
    return [claim("tuner/regret_heldout", worst, "cores", REGRET_CORES)], record


def main() -> None:
    """Measure, tell, store."""
    assert __doc__ is not None, "it says what this is"
    parser = options(__doc__, "few tapes, one workload: 3 minutes", PARTS)
    parser.add_argument("--runs", type=Path, help="where profile and real runs are kept")
    arguments = parser.parse_args()
    end_as_ctrl_c_does()
    effort = QUICK if arguments.quick else FULL
    measure = {
        "synthetic": measure_synthetic,
        "real": measure_real,
        "park": measure_park,
        "crowd": measure_crowd,
        "tuner": measure_tuner,
    }
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.runs or Path(name)
        profile = calibrated(folder / "profile.json", effort.replicates)
        found, records = measured(
            arguments.parts, lambda part: measure[part](effort, profile, folder)
        )
    for each in found:
        verdict = "holds" if each.holds else "FAILS"
        print(f"{told(each)}, {each.direction} {each.bound:g} {verdict}")
    finish(started_s, arguments.json, found, records)


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"failed: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
