"""Builds the C extension beside its source, for a checkout that nobody installed.

setup.py does the same where this is installed; on a node without a network there may be neither
setuptools nor anything to get it from, but a C compiler.
"""

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_SOURCE: Final = "_native.c"
_LIMIT_S: Final = 120.0


def build_native(folder: Path = _FOLDER) -> str:
    """Build it, unless it is there.

    Parameters
    ----------
    folder
        Where its source is, and where it goes.

    Returns
    -------
    str
        Why there is none; empty if there is one now. Without it Python does the spinning.
    """
    if any(folder.glob("_native*.so")):
        return ""
    named = str(sysconfig.get_config_var("CC") or "").split()[:1]
    compiler = next(filter(None, map(shutil.which, [*named, "cc", "gcc", "clang"])), None)
    if compiler is None:
        return "there is no C compiler"
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        return f"the headers of Python are not in {include}"
    # As in setup.py: one binary for all CPythons, but for those without a lock.
    is_stable = not sysconfig.get_config_var("Py_GIL_DISABLED")
    ending = ".abi3.so" if is_stable else sysconfig.get_config_var("EXT_SUFFIX")
    macros = ["-DPy_LIMITED_API=0x030B0000"] if is_stable else []
    flags = ["-O2", "-std=c11", "-shared", "-fPIC", *macros, f"-I{include}"]
    try:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = Path(work) / "built.so"
            command = [compiler, *flags, str(folder / _SOURCE), "-o", str(built)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error" in line]
                return f"{compiler} failed: {(errors or ['it said nothing'])[0]}"
            built.replace(folder / f"_native{ending}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it cannot be built: {error}"
    return ""
