"""How long a call to every worker and back takes: which system, which way to wait.

Usage: python experiments/bench/handoff.py [--quick] [--json FILE] [--vllm-python PYTHON]
           [--iceoryx-python PYTHON] [--only NAME ...] [--unpinned]
           [--passes {small,payloads,matrix,costs} ...]
       python experiments/bench/handoff.py [--quick] [--soak FILE] [--kills FILE]

Every system runs in processes of its own. They are measured in short bursts in shuffled order,
and whoever is not being measured is stopped, so that no spinner disturbs another system and a
slow minute of the machine meets all of them. With --soak or --kills nothing is compared: they look
for hand-offs that are lost, and for kills that somebody does not notice.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import costs
import kills
import matrix
import soak
import syscalls
from candidates import CANDIDATES, Candidate
from cells import Cell, Cells, Key
from remote import BrokenSystemError, Remote
from stored import store
from tables import report
from verdicts import claims

SEED: Final = 20_260_301
IDLE_S: Final = 5.0
#: Calls of a burst, and how many before it are not counted: they wake what was stopped.
BURSTS: Final = {"back_to_back": (200, 20), "gap_2ms": (40, 5), "parked": (40, 5)}
N_PICKLES: Final = 100
PAYLOAD_BYTES: Final = (1 << 10, 32 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
PAYLOAD_KINDS: Final = ("bytes", "numpy", "torch")
#: Enough calls to fill it, but one at least.
PAYLOAD_BURST_S: Final = 0.1
PASSES: Final = ("small", "payloads", "matrix", "costs")


class Effort(NamedTuple):
    """How much is measured."""

    readers: tuple[int, ...]
    rounds: int
    idle_calls: int
    payload_rounds: int
    matrix_rounds: int
    cost_rounds: int


FULL: Final = Effort(
    readers=(1, 2), rounds=40, idle_calls=8, payload_rounds=3, matrix_rounds=8, cost_rounds=20
)
QUICK: Final = Effort(
    readers=(1,), rounds=5, idle_calls=2, payload_rounds=0, matrix_rounds=0, cost_rounds=0
)


class Bench:
    """Measures systems side by side and keeps what they answer.

    Parameters
    ----------
    candidates
        Which systems.
    interpreters
        The Python for each kind of candidate.
    pin
        Whether one writer and one reader get a core each.
    folder
        Temporary files of everybody.
    """

    def __init__(
        self,
        candidates: list[Candidate],
        interpreters: dict[str, Path],
        pin: bool,
        folder: Path,
    ) -> None:
        self.cells: Cells = {}
        self.ready: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}
        self._candidates = candidates
        self._interpreters = interpreters
        self._pin = pin
        self._folder = folder
        self._order = random.Random(SEED)
        self._remotes: list[Remote] = []

    def small_calls(self, n_readers: int, rounds: int, idle_calls: int) -> None:
        """The 2.1 KB call in every scenario."""
        chosen = [candidate for candidate in self._candidates if candidate.scenarios]
        self._side_by_side(chosen, BURSTS, n_readers, rounds, idle_calls)

    def matrix(self, n_readers: int, rounds: int) -> None:
        """The same with every doorbell and policy of ours."""
        self._side_by_side(matrix.MATRIX, matrix.BURSTS, n_readers, rounds, matrix.N_IDLE_CALLS)

    def _side_by_side(
        self,
        candidates: list[Candidate],
        bursts: dict[str, tuple[int, int]],
        n_readers: int,
        rounds: int,
        idle_calls: int,
    ) -> None:
        with self._started(candidates, n_readers, self._pin):
            for i in range(rounds):
                if i % 10 == 0:
                    print(f"  round {i + 1} of {rounds}", flush=True)
                for remote in self._shuffled():
                    with self._forgiven(remote), remote.awake():
                        self._burst(remote, i, bursts)
            self._idle(idle_calls)

    def costs(self, rounds: int) -> None:
        """What a system measures within itself, and the others beside it."""
        names = {candidate.name for candidate in self._candidates}
        for candidates, n_readers in costs.COSTS:
            # What is not among the candidates can be measured here alone.
            left_out = {candidate.name for candidate in CANDIDATES} - names
            chosen = [candidate for candidate in candidates if candidate.name not in left_out]
            with self._started(chosen, n_readers, self._pin):
                for i in range(rounds):
                    for remote in self._shuffled():
                        with self._forgiven(remote), remote.awake():
                            self._cost(remote, i)

    def _cost(self, remote: Remote, i: int) -> None:
        if remote.candidate.carries:
            answer = remote.measure("payload", 1, discard=1, payload=costs.PAYLOAD)
            self._keep(remote, i, "payload", answer, costs.PAYLOAD)
            return
        for name, samples_ns in remote.measure("own", 1).items():
            self._keep(remote, i, name, {"samples_ns": samples_ns})

    def payloads(self, rounds: int) -> None:
        """Objects of every size and kind, unpinned: big messages keep helper threads busy too."""
        with self._started([c for c in self._candidates if c.carries], 1, pin=False):
            for i in range(rounds):
                print(f"  payload round {i + 1} of {rounds}", flush=True)
                for remote in self._shuffled():
                    with self._forgiven(remote), remote.awake():
                        self._every_payload(remote, i)

    def _burst(self, remote: Remote, i: int, bursts: dict[str, tuple[int, int]]) -> None:
        for scenario in remote.candidate.scenarios:
            if scenario in bursts:
                n, discard = bursts[scenario]
                self._keep(remote, i, scenario, remote.measure(scenario, n, discard=discard))
        if remote.candidate.carries:
            self._keep(remote, i, "pickle", remote.measure("pickle", N_PICKLES))

    def _idle(self, n_calls: int) -> None:
        """Everybody is awake and idle; then one call to each, in shuffled order.

        Who would not be idle stays stopped.
        """
        idle = [remote for remote in self._remotes if "idle_5s" in remote.candidate.scenarios]
        for remote in idle:
            remote.resume()
        for i in range(n_calls):
            print(f"  idle call {i + 1} of {n_calls}", flush=True)
            time.sleep(IDLE_S)
            for remote in self._shuffled():
                if remote not in idle:
                    continue
                with self._forgiven(remote):
                    self._keep(remote, i, "idle_5s", remote.measure("idle_5s", 1))
                # A reader that still spins would delay whoever comes next.
                time.sleep(0.05 + 1.1 * remote.candidate.spins_on_s)

    def _every_payload(self, remote: Remote, i: int) -> None:
        for n_bytes in PAYLOAD_BYTES:
            for kind in PAYLOAD_KINDS:
                name = f"{kind}/{n_bytes}"
                answer = remote.measure(
                    "payload", 20, discard=1, limit_s=PAYLOAD_BURST_S, payload=name
                )
                if "unavailable" not in answer:
                    self._keep(remote, i, "payload", answer, name)

    def _keep(
        self, remote: Remote, i: int, scenario: str, answer: dict[str, Any], payload: str = "call"
    ) -> None:
        key = Key(remote.candidate.name, remote.n_readers, scenario, payload)
        self.cells.setdefault(key, Cell()).add(i, answer)

    def _shuffled(self) -> list[Remote]:
        return self._order.sample(self._remotes, len(self._remotes))

    @contextlib.contextmanager
    def _forgiven(self, remote: Remote) -> Iterator[None]:
        """Go on without a system that breaks."""
        try:
            yield
        except BrokenSystemError as error:
            self._give_up(remote, error)

    def _give_up(self, remote: Remote, error: BrokenSystemError) -> None:
        name = f"{remote.candidate.name}, {remote.n_readers} reader(s)"
        self.missing[name] = str(error)
        print(f"  without {name}: {error}", flush=True)
        self._remotes.remove(remote)
        remote.dismiss()
        remote.see_off()

    @contextlib.contextmanager
    def _started(self, candidates: list[Candidate], n_readers: int, pin: bool) -> Iterator[None]:
        """Drivers of all candidates, each stopped; whatever happens, they are gone afterwards."""
        print(f"starting {len(candidates)} systems with {n_readers} reader(s)", flush=True)
        try:
            for candidate in candidates:
                interpreter = self._interpreters[candidate.interpreter]
                folder = Path(tempfile.mkdtemp(dir=self._folder))
                self._remotes.append(Remote(candidate, n_readers, interpreter, pin, folder))
            for remote in list(self._remotes):
                with self._forgiven(remote):
                    remote.wait_until_ready()
                    self.ready.append(
                        {"system": remote.candidate.name, "n_readers": n_readers, **remote.ready}
                    )
            yield
        finally:
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
            for remote in self._remotes:
                remote.dismiss()
            for remote in self._remotes:
                remote.see_off()
            self._remotes.clear()
            signal.signal(signal.SIGINT, previous)


def record_of(bench: Bench) -> dict[str, Any]:
    """Every cell, and who was there."""
    return {
        "seed": SEED,
        "systems": bench.ready,
        "missing": bench.missing,
        "cells": [{**key._asdict(), **cell.row()} for key, cell in bench.cells.items()],
    }


def main() -> None:
    """Measure, tell, store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="claims file; every cell goes beside it")
    parser.add_argument("--quick", action="store_true", help="one reader, few rounds: a minute")
    here = Path(sys.executable)
    parser.add_argument("--vllm-python", type=Path, default=here, help="a Python that has vLLM")
    parser.add_argument(
        "--iceoryx-python", type=Path, default=here, help="a Python that has iceoryx2"
    )
    names = [candidate.name for candidate in CANDIDATES]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=names)
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--unpinned", action="store_true", help="let one reader float too")
    parser.add_argument("--soak", type=Path, help="hand over ten million messages, claims file")
    parser.add_argument("--kills", type=Path, help="kill a thousand processes, claims file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: nothing stays behind
    if arguments.soak:
        store(arguments.soak, *soak.soak(soak.QUICK if arguments.quick else soak.FULL))
    if arguments.kills:
        store(arguments.kills, *kills.kills(kills.QUICK if arguments.quick else kills.FULL))
    if arguments.soak or arguments.kills:
        return
    interpreters = {
        "python": here,
        "vllm": arguments.vllm_python,
        "iceoryx": arguments.iceoryx_python,
    }
    passes = arguments.passes
    effort = QUICK if arguments.quick else FULL
    chosen = [candidate for candidate in CANDIDATES if candidate.name in arguments.only]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(chosen, interpreters, not arguments.unpinned, Path(folder))
        for n_readers in effort.readers if "small" in passes else ():
            bench.small_calls(n_readers, effort.rounds, effort.idle_calls)
        if effort.payload_rounds and "payloads" in passes:
            bench.payloads(effort.payload_rounds)
        for n_readers in effort.readers if effort.matrix_rounds and "matrix" in passes else ():
            bench.matrix(n_readers, effort.matrix_rounds)
        if effort.cost_rounds and "costs" in passes:
            bench.costs(effort.cost_rounds)
    found = claims(bench.cells, SEED)
    print(report(bench.cells))
    if effort.cost_rounds and "costs" in passes:
        found += syscalls.claims()
    for name, reason in bench.missing.items():
        print(f"not measured: {name}: {reason}")
    for claim in found:
        print(f"{claim.id}: {claim.value:.3g} {claim.unit} ({claim.low:.3g} to {claim.high:.3g})")
    print(f"\n{time.monotonic() - started_s:.0f} s")
    if arguments.json:
        store(arguments.json, found, record_of(bench))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
