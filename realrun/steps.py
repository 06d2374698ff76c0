"""What a run on a real device tells about it: its step times, and what was not as asked."""

import csv
from collections import Counter
from pathlib import Path

from shmsim.inputs.measured_steps import FEWEST_SAMPLES
from shmsim.metrics import step_time_ns
from shmsim.records import RunRecords
from shmsim.whole import whole


def write_steps(path: Path, records: RunRecords) -> int:
    """Store the times of steps that only decode, for ``device.file``; returns how many.

    Batches that were too rare to tell a distribution are left out; the model takes the next larger
    one for them.

    Raises
    ------
    ValueError
        If no batch was frequent enough.
    """
    rows = [
        (step.n_decode, round(float(took_ns)))
        for step, took_ns in zip(records.steps, step_time_ns(records.steps), strict=True)
        if step.n_decode and not step.n_prefill_tokens
    ]
    counts = Counter(n_decode for n_decode, _ in rows)
    kept = [row for row in rows if counts[row[0]] >= FEWEST_SAMPLES]
    if not kept:
        raise ValueError(
            f"no number of decoding sequences came in {FEWEST_SAMPLES} steps without prompt "
            "tokens; let the workload run longer"
        )
    with whole(path) as unfinished, unfinished.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("n_decode", "step_ns"))
        writer.writerows(kept)
    return len(kept)


def device_notes(records: RunRecords) -> list[str]:
    """What about the devices of a run a reader of its figures must know."""
    notes = []
    devices = records.meta.get("devices", [])
    for rank, device in enumerate(devices):
        if device.get("not_registered"):
            notes.append(
                f"worker {rank}: shared memory is not registered with the GPU "
                f"({device['not_registered']}), so inputs go by {device['memory']} memory"
            )
        if device.get("not_observed"):
            notes.append(
                f"worker {rank}: ends of steps are observed by {device['observe']!r} instead of "
                f"as asked ({device['not_observed']})"
            )
    if records.meta.get("emulated"):
        n_without = sum(device["kind"] == "none" for device in devices)
        notes.append(
            f"emulated: {n_without} of {len(devices)} workers have no device and only receive"
            if n_without
            else "emulated: several workers share a GPU and take turns, so no time means anything"
        )
    return notes
