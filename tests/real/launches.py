"""Launches a run of a minute, and tells who its children are once it is under way.

``python launches.py during|starting``: with ``starting`` it tells at once, and watches nobody.
"""

import json
import sys
import time

import realrun.run
from tests.real.conftest import children
from tests.real.runs import config, spec


def tell() -> None:
    """The process ids, as one line of JSON."""
    sys.stdout.write(json.dumps(sorted(children())) + "\n")
    sys.stdout.flush()


told = False


def progress(step: int) -> None:
    global told
    if step > 10 and not told:
        told = True
        tell()


if sys.argv[1] == "starting":
    realrun.run._watch = lambda *_: (tell(), time.sleep(60))
realrun.run.run_once(
    spec(config(workers=2, requests=200, output_p50=1000, output_p95=1000)), progress
)
