"""What is stored of an experiment: one JSON file, with all that a reader needs to doubt it."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from runner.experiment import MACHINE_WORLDS, WORLDS, Cell, Content, Plan, Results
from runner.kept import hash_of
from shmsim.whole import write_whole

FORMAT: Final = 1
NAME: Final = "record.json"
EFFORTS: Final = ("quick", "full")
_NODE_KEYS: Final = ("machine", "commit", "dirty", "source", "started", "seconds")


class Row(NamedTuple):
    """What one cell gave on one node.

    Parameters
    ----------
    name, world, settings
        As in `Cell`.
    node
        Label of the node that ran it.
    seconds
        How long that took.
    content
        What came out; None if it was skipped.
    skipped
        Why; empty if it ran.
    """

    name: str
    world: str
    settings: dict[str, Any]
    node: str
    seconds: float
    content: Content | None
    skipped: str = ""

    def stored(self) -> dict[str, Any]:
        """As the file has it: content, or the reason why there is none."""
        row = self._asdict()
        del row["skipped" if self.content is not None else "content"]
        return row


class Record(NamedTuple):
    """An experiment that came to its end, on one node or several.

    Parameters
    ----------
    experiment
        Name of its folder.
    effort
        One of `EFFORTS`.
    plan
        What was asked for, resolved.
    nodes
        By label: machine, commit, whether files differed from it, hash of the source, when it
        was started, and seconds.
    rows
        Of all nodes.
    summaries
        By label: what the experiment says of that node.
    """

    experiment: str
    effort: str
    plan: Plan
    nodes: dict[str, dict[str, Any]]
    rows: tuple[Row, ...]
    summaries: dict[str, dict[str, Any]]

    @property
    def summary(self) -> dict[str, Any]:
        """That of the only node.

        Raises
        ------
        ValueError
            If there are several: then a text must say which it means.
        """
        if len(self.summaries) != 1:
            raise ValueError(
                f"{self.experiment} ran on {', '.join(self.summaries)}; take one of .summaries"
            )
        return next(iter(self.summaries.values()))

    def results(self, node: str) -> Results:
        """What the cells of one node gave."""
        rows = [row for row in self.rows if row.node == node]
        return Results(
            self.plan,
            {row.name: row.content for row in rows if row.content is not None},
            {row.name: row.skipped for row in rows if row.content is None},
            {row.name: row.world for row in rows},
        )

    def digest(self, node: str) -> str:
        """Hash of what the model said there: two runs of the same code say the same."""
        return hash_of(
            {
                row.name: row.content
                for row in self.rows
                if row.node == node and row.world not in MACHINE_WORLDS
            }
        )

    def write(self, folder: Path) -> Path:
        """Write ``record.json``; returns its path."""
        content = {
            "format": FORMAT,
            "experiment": self.experiment,
            "effort": self.effort,
            "plan": self.plan,
            "seed": self.plan["seed"],
            "nodes": self.nodes,
            "cells": [row.stored() for row in self.rows],
            "digest": {label: self.digest(label) for label in self.nodes},
            "summary": self.summaries,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NAME
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
        return path


def checked(cell: Cell, content: Content) -> Content:
    """The content of a cell, as it will be read again.

    Raises
    ------
    ValueError
        If JSON cannot hold it, or it was emulated and its cell says that it was measured.
    """
    if cell.world == "machine" and content.get("emulated"):
        raise ValueError(
            f"cell {cell.name} is of world 'machine', but its run was emulated: give it the world "
            "'emulated', so that nobody takes it for measured"
        )
    try:
        # NaN is no JSON, and a reader elsewhere would stumble over it.
        found: Content = json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cell {cell.name} gave what JSON cannot hold: {error}") from None
    return found


def read_record(path: Path) -> Record:
    """Read a ``record.json``.

    Raises
    ------
    ValueError
        If it is missing, damaged, of another format, or its model cells were changed.
    """
    try:
        stored = json.loads(path.read_text())
        if stored["format"] != FORMAT:
            raise ValueError(f"it has format {stored['format']}, and this code reads {FORMAT}")
        rows = tuple(
            Row(
                *(row[name] for name in ("name", "world", "settings", "node", "seconds")),
                row.get("content"),
                row.get("skipped", ""),
            )
            for row in stored["cells"]
        )
        record = Record(
            *(stored[name] for name in ("experiment", "effort", "plan", "nodes")),
            rows,
            stored["summary"],
        )
        _check(record, stored["digest"])
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of an experiment: {error}") from None
    return record


def _check(record: Record, digests: dict[str, str]) -> None:
    if record.effort not in EFFORTS:
        raise ValueError(f"its effort is {record.effort!r}, none of {', '.join(EFFORTS)}")
    for label, node in record.nodes.items():
        missing = [name for name in _NODE_KEYS if name not in node]
        if missing:
            raise ValueError(f"its node {label} lacks {', '.join(missing)}")
        if digests[label] != record.digest(label):
            raise ValueError(
                f"cells of the model on {label} do not fit the digest; were they edited?"
            )
    for row in record.rows:
        if row.world not in WORLDS or row.node not in record.nodes:
            raise ValueError(f"its cell {row.name} is of an unknown world or node")
