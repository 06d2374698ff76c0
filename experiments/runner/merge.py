"""Joins the records of several nodes into one, and refuses what does not belong together."""

from collections.abc import Sequence

from runner.experiment import MACHINE_WORLDS
from runner.record import Record, Row


def merged(records: Sequence[Record]) -> Record:
    """One record of all nodes; each row keeps the label of its node.

    Parameters
    ----------
    records
        At least one. A node that is in two of them must say the same in both.

    Raises
    ------
    ValueError
        If they are of different experiments, plans, efforts or sources; if a node says two things;
        or if what was measured on one node was emulated on another.
    """
    if not records:
        raise ValueError("there is nothing to merge; name the record.json of each node")
    first = records[0]
    nodes = dict(first.nodes)
    rows = list(first.rows)
    for record in records[1:]:
        _check_alike(first, record)
        for label, node in record.nodes.items():
            theirs = [row for row in record.rows if row.node == label]
            if label in nodes:
                if [row for row in rows if row.node == label] != theirs:
                    raise ValueError(
                        f"two records say different things of a node called {label}; run each node "
                        "with a --node LABEL of its own"
                    )
                continue
            nodes[label] = node
            rows += theirs
    _refuse_mixed(rows)
    return first._replace(nodes=nodes, rows=tuple(rows), summaries={})


def _check_alike(first: Record, other: Record) -> None:
    for what in ("experiment", "effort", "plan"):
        ours, theirs = getattr(first, what), getattr(other, what)
        if ours != theirs:
            shown = "" if what == "plan" else f": {ours} and {theirs}"
            raise ValueError(f"these records are of different {what}s{shown}; merge like with like")
    sources = {node["source"] for record in (first, other) for node in record.nodes.values()}
    if len(sources) > 1:
        raise ValueError(
            "these records were made by different code; check out one commit on all nodes and run "
            "them again"
        )


def _refuse_mixed(rows: Sequence[Row]) -> None:
    worlds: dict[str, str] = {}
    for row in rows:
        world = worlds.setdefault(row.name, row.world)
        if world != row.world:
            raise ValueError(
                f"cell {row.name} is {world!r} on one node and {row.world!r} on {row.node}; what "
                "was emulated is never put beside what was measured"
            )


def agreement(record: Record) -> tuple[int, int]:
    """How many cells of the model say the same on every node, of how many that all have."""
    by_name: dict[str, list[Row]] = {}
    for row in record.rows:
        if row.world not in MACHINE_WORLDS and row.content is not None:
            by_name.setdefault(row.name, []).append(row)
    shared = [found for found in by_name.values() if len(found) == len(record.nodes)]
    return sum(all(row.content == found[0].content for row in found) for found in shared), len(
        shared
    )
