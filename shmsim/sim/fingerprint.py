"""What two processes must have in common for a run to give the same bits in both."""

import hashlib
import math
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Final

import numpy as np
from scipy.special import ndtri

from shmsim.sweep.key import engine_hash
from shmsim.tape import Tape

_LIBRARIES: Final = ("numpy", "scipy", "simpy", "numba", "llvmlite")
_TRIALS: Final = 4096


@cache
def fingerprint() -> Mapping[str, str]:
    """Python, libraries, processor and source of this process, by name.

    ``arithmetic`` is the hash of a trial: versions do not tell which C library there is, nor which
    of its instructions numpy found in this processor, and both have a say in the last bit of an
    exponential.
    """
    return {
        "python": f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}",
        **{name: version(name) for name in _LIBRARIES},
        "processor": platform.machine(),
        "arithmetic": _arithmetic(),
        "source of shmsim": engine_hash()[:12],
    }


def _arithmetic() -> str:
    """Hash of what the model's kinds of arithmetic give here: laws, draws, sums."""
    rng = Tape(1).generator("fingerprint", "trial")
    uniform, normal = rng.random(_TRIALS), rng.standard_normal(_TRIALS)
    plain = [f(u) for f in (math.exp, math.log, math.log1p, math.erfc) for u in uniform.tolist()]
    arrays = [
        normal,
        rng.gamma(0.5, 1.0, _TRIALS),
        ndtri(uniform),
        np.exp(normal),
        np.log(uniform),
        np.array(plain),
        np.array([normal.sum(), normal.mean(), normal.std()]),
    ]
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:12]


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs between two fingerprints, in words; empty if nothing does.

    Examples
    --------
    >>> differences({"numpy": "2.4.6", "scipy": "1.17.1"}, {"numpy": "2.3.1", "scipy": "1.17.1"})
    'numpy: 2.4.6 here, 2.3.1 there'
    """
    return "; ".join(
        f"{name}: {here.get(name, 'none')} here, {there.get(name, 'none')} there"
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    )
