"""Files that are there whole or not at all: on a full disk, after an error, after Ctrl-C.

What is half a file is worse than none: it looks like a result. So all is written beside its place,
and takes it when it is complete; until then what was there stays.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: How the name ends of what is being written; a kill may leave such a file.
UNFINISHED: Final = ".unfinished"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give the path to write to instead of ``path``, whose place it takes if nothing fails.

    What is no file, as ``/dev/stdout``, is written to as it is, and so is a file in a folder where
    nothing can be added.

    Raises
    ------
    OSError
        If the folder is missing or the file cannot take its place.
    """
    target = path.resolve()  # a link goes on leading to the file
    if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
        yield path
        return
    unfinished = target.with_name(f"{target.name}.{os.getpid()}{UNFINISHED}")
    try:
        yield unfinished
        unfinished.replace(target)
    except OSError as error:
        if error.filename == str(unfinished):  # a reader knows the name that was asked for
            error.filename = str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes, *, synced: bool = False) -> None:
    """Write a file so that it is there whole or not at all.

    Parameters
    ----------
    path
        The file; its folder is there.
    content
        All of it; text becomes UTF-8.
    synced
        Whether that holds also if the machine crashes; takes a while.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    with whole(path) as unfinished, unfinished.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if synced:
            file.flush()
            os.fsync(file.fileno())
