"""Makes leaderboard.md and leaderboard.json of bundles.

Usage: python experiments/leaderboard/build.py [--bundles FOLDER] [--out FOLDER] [--check]

Without --bundles they are those that experiments left in their records, which no other file can
contradict, and those that others contributed to bundles/ beside this file.

The same bundles give the same bytes. With --check nothing is written, and it exits with 1 if a file
is not what its bundles give.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from board import board_of
from words import page

from shmsim.whole import write_whole

HERE: Final = Path(__file__).parent
_RECORDED: Final = "[0-9][0-9]_*/results/*/bundle.json"
FAILURE, MISUSE = 1, 2


def own_bundles() -> list[Path]:
    """Those of the stored records, and those that were contributed."""
    return [*sorted(HERE.parent.glob(_RECORDED)), *sorted((HERE / "bundles").glob("*.json"))]


def files_of(paths: list[Path]) -> dict[str, str]:
    """Content of each file, by its name.

    Raises
    ------
    ValueError
        If one is damaged.
    """
    for path in paths:  # each alone first: whoever sends a wrong one is told which it is
        try:
            page(board_of([path]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} lacks what the leaderboard shows: {error!r}") from None
    board = board_of(paths)
    return {
        "leaderboard.md": page(board),
        "leaderboard.json": json.dumps(board.as_data(), indent=1) + "\n",
    }


def main(arguments: list[str]) -> int:
    """Build, or check; returns the exit code."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--bundles", type=Path, help="a folder with all of them")
    made.add_argument("--out", type=Path, default=HERE)
    made.add_argument("--check", action="store_true", help="write nothing; 1 if a file is stale")
    asked = made.parse_args(arguments)
    try:
        paths = sorted(asked.bundles.glob("*.json")) if asked.bundles else own_bundles()
        if not paths:
            raise ValueError(
                f"{asked.bundles} holds no bundle; 'realrun contribute RUN -o FILE' makes one"
            )
        files = files_of(paths)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSE
    if asked.check:
        stale = [
            name
            for name, text in files.items()
            if not (asked.out / name).is_file()
            or (asked.out / name).read_text(encoding="utf-8") != text
        ]
        if stale:
            print(f"stale: {', '.join(stale)}; run {Path(__file__).name} again", file=sys.stderr)
        return FAILURE if stale else 0
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(asked.out / name, text)
    print(f"{asked.out}: {', '.join(files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
