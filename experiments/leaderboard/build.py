"""Makes leaderboard.md and leaderboard.json of the bundles beside it.

Usage: python experiments/leaderboard/build.py [--bundles FOLDER] [--out FOLDER] [--check]

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

HERE: Final = Path(__file__).parent
FAILURE, MISUSE = 1, 2


def files_of(bundles: Path) -> dict[str, str]:
    """Content of each file, by its name.

    Raises
    ------
    ValueError
        If there is no bundle, or one is damaged.
    """
    paths = sorted(bundles.glob("*.json"))
    if not paths:
        raise ValueError(f"{bundles} holds no bundle; 'realrun contribute RUN -o FILE' makes one")
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
    made.add_argument("--bundles", type=Path, default=HERE / "bundles")
    made.add_argument("--out", type=Path, default=HERE)
    made.add_argument("--check", action="store_true", help="write nothing; 1 if a file is stale")
    asked = made.parse_args(arguments)
    try:
        files = files_of(asked.bundles)
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
        (asked.out / name).write_text(text, encoding="utf-8")
    print(f"{asked.out}: {', '.join(files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
