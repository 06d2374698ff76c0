"""What vLLM's CPU build leaves in /dev/shm however it ends: the memory of its all-reduce.

Each worker makes one with ``shm_open`` (vLLM's ``csrc/cpu/shm.cpp``) and nobody removes it, two of
them for each start with two workers. Whose they are is told by who has them mapped.
"""

import os
from pathlib import Path
from typing import Final

from realrun.vllm.beside import SHM

_NAME: Final = "*-cpushm_*"


def left_by(session: int) -> set[Path]:
    """Segments of the all-reduce that the processes of a session have mapped."""
    found: set[Path] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if os.getsid(int(maps.parent.name)) == session:
                paths = (line.partition("/")[1:] for line in maps.read_text().splitlines())
                found.update(Path("".join(parts)) for parts in paths)
        except OSError:  # it has ended meanwhile, or is none of ours
            continue
    return {path for path in found if path.parent == SHM and path.match(_NAME)}
