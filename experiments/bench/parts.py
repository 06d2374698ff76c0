"""What the benches that consist of parts have in common: options, order, and the record."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stored import store

from realrun.calibrate import calibrate
from shmsim.claims import Claim
from shmsim.profile import MachineProfile

#: Claims, and the record behind them.
Part = tuple[list[Claim], Any]


def options(doc: str, quick: str, parts: tuple[str, ...]) -> argparse.ArgumentParser:
    """The options that all have; ``quick`` says what the small form is."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="claims file; the record goes beside it")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    return parser


def end_as_ctrl_c_does() -> None:
    """Have SIGTERM leave nothing behind either."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def calibrated(path: Path, n_replicates: int) -> MachineProfile:
    """The profile of this machine as a file holds it, which is measured now if there is none."""
    if not path.exists():
        print("calibrating")
        calibrate(n_replicates=n_replicates).write(path)
    return MachineProfile.read(path)


def measured(
    parts: Iterable[str], measure: Callable[[str], Part]
) -> tuple[list[Claim], dict[str, Any]]:
    """Measure one part after the other: all claims, and the record of each part."""
    found: list[Claim] = []
    records: dict[str, Any] = {}
    for part in parts:
        print(part, flush=True)
        claims, records[part] = measure(part)
        found += claims
    return found, records


def told(claim: Claim) -> str:
    """A claim as one line, without its bound."""
    return f"{claim.id}: {claim.value:.4g} {claim.unit} ({claim.low:.4g} to {claim.high:.4g})"


def finish(
    started_s: float, path: Path | None, found: list[Claim], records: dict[str, Any]
) -> None:
    """Say how long it took (``started_s`` by `time.monotonic`), and store it if there is a path."""
    print(f"\n{time.monotonic() - started_s:.0f} s")
    if path:
        store(path, found, records)
