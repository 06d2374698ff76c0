"""How a bench stores what it found: claims and where they come from, every cell beside them."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from realrun.host import machine_facts
from shmsim.claims import Claim, write_claims
from shmsim.whole import write_whole

_HERE: Final = Path(__file__).parent
sys.path.append(str(_HERE.parent))  # a bench is a script of its own, and the runner lies beside it

from runner.origin import commit  # noqa: E402

#: Asked when the bench starts: a checkout may move on while it measures.
_COMMIT, _IS_DIRTY = commit(_HERE)
_STARTED = datetime.now(UTC).isoformat(timespec="seconds")


def store(path: Path, found: list[Claim], record: dict[str, Any]) -> None:
    """Write the claims to a file, and the record beside it."""
    origin = {"commit": _COMMIT, "dirty": _IS_DIRTY, "started": _STARTED}
    write_claims(path, machine_facts(), found, origin)
    beside = path.with_name(f"{path.stem}_cells.json")
    write_whole(beside, json.dumps(record, indent=1, default=float) + "\n")
    print(f"\nstored in {path} and {beside}")
