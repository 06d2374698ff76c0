"""What was measured: one cell per system, scenario and number of readers."""

from typing import Any, NamedTuple

import numpy as np


class Key(NamedTuple):
    """Which cell.

    Parameters
    ----------
    system
        Name of the candidate.
    n_readers
        Readers that every call waits for.
    scenario
        As `driver` calls it.
    payload
        As `message` calls it.
    """

    system: str
    n_readers: int
    scenario: str
    payload: str = "call"


class Cell:
    """The bursts of one cell, by round; a system that broke lacks rounds."""

    def __init__(self) -> None:
        self._bursts: dict[int, dict[str, Any]] = {}

    def add(self, round_index: int, burst: dict[str, Any]) -> None:
        """Keep what the driver answered in one round."""
        self._bursts[round_index] = burst

    @property
    def samples_ns(self) -> np.ndarray:
        """Round trips of all rounds."""
        return np.concatenate([b["samples_ns"] for b in self._bursts.values()])

    @property
    def median_ns(self) -> float:
        """Median round trip over all rounds."""
        return float(np.median(self.samples_ns))

    @property
    def p90_ns(self) -> float:
        """90th percentile over all rounds."""
        return float(np.percentile(self.samples_ns, 90))

    def round_medians_ns(self) -> dict[int, float]:
        """Median of every round; two systems are compared within a round."""
        return {i: float(np.median(b["samples_ns"])) for i, b in self._bursts.items()}

    @property
    def wakes_ns(self) -> np.ndarray:
        """From publication to sight, of all rounds; empty where the system cannot tell."""
        return np.concatenate([b.get("wakes_ns", []) for b in self._bursts.values()])

    def round_wakes_ns(self) -> dict[int, float]:
        """Median of `wakes_ns` in every round that has some."""
        bursts = self._bursts.items()
        return {i: float(np.median(b["wakes_ns"])) for i, b in bursts if b.get("wakes_ns")}

    def cores(self) -> tuple[float, float] | None:
        """Cores that writer and busiest reader kept busy; None where nobody counted."""
        bursts = [b for b in self._bursts.values() if "wall_ns" in b]
        if not bursts:
            return None
        wall_ns = sum(b["wall_ns"] for b in bursts)
        writer_ns = sum(b["writer"]["cpu_ns"] for b in bursts)
        reader_ns = sum(max(r["cpu_ns"] for r in b["readers"]) for b in bursts)
        return writer_ns / wall_ns, reader_ns / wall_ns

    def per_call(self) -> dict[str, float]:
        """Context switches of all processes, and the system's own counts, for each call."""
        n_calls = self.samples_ns.size
        totals: dict[str, float] = {}
        for burst in self._bursts.values():
            for usage in [burst["writer"], *burst["readers"]] if "writer" in burst else []:
                for name in ("parked", "preempted"):
                    totals[name] = totals.get(name, 0) + usage[name]
            for name, count in burst.get("counts", {}).items():
                totals[name] = totals.get(name, 0) + count
        return {name: total / n_calls for name, total in totals.items()}

    def row(self) -> dict[str, Any]:
        """The cell as it is stored."""
        samples_ns, cores = self.samples_ns, self.cores()
        wakes_ns = self.wakes_ns
        return {
            "n": int(samples_ns.size),
            "min_ns": int(samples_ns.min()),
            "median_ns": self.median_ns,
            "p90_ns": self.p90_ns,
            "max_ns": int(samples_ns.max()),
            "round_medians_ns": list(self.round_medians_ns().values()),
            "wake_median_ns": float(np.median(wakes_ns)) if wakes_ns.size else None,
            "wake_p90_ns": float(np.percentile(wakes_ns, 90)) if wakes_ns.size else None,
            "writer_cores": cores and cores[0],
            "reader_cores": cores and cores[1],
            "per_call": self.per_call(),
        }


Cells = dict[Key, Cell]
