"""Maps over items on a cluster, and prints what came: its address, a folder, how, how many items.

Each item notes beside its name which process took it up, then waits for the file ``go``.
"""

import json
import os
import sys
import time
from pathlib import Path

from shmsim.sim.cluster import Cluster


def square(folder: str, item: int) -> int:
    """Square an item."""
    with (Path(folder) / f"item{item}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return item * item


def first_waits(folder: str, item: int) -> int:
    """Square an item; only the first waits."""
    with (Path(folder) / f"item{item}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while item == 0 and not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return item * item


def fatal(folder: str, item: int) -> int:
    """End the worker."""
    os._exit(1)


if __name__ == "__main__":
    address, where, how, n, patience_s = sys.argv[1:]
    with Cluster(address, float(patience_s)) as cluster:
        function = {"square": square, "first": first_waits, "fatal": fatal}[how]
        for came in cluster.map(function, where, range(int(n))):
            sys.stdout.write(json.dumps(came) + "\n")
            sys.stdout.flush()
