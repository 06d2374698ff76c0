"""A path that is printed stays in one piece, however narrow the terminal, to be copied."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: How our programs call a path that they name to the user.
PATHS = {"out", "page", "path", "picture", "folder", "steps"}


def cut_paths(source: str) -> list[int]:
    """Lines of prints that may cut a path in two."""
    return [
        call.lineno
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "print"
        and not any(keyword.arg == "soft_wrap" for keyword in call.keywords)
        and any(
            isinstance(part, ast.FormattedValue)
            and isinstance(part.value, ast.Name)
            and part.value.id in PATHS
            for argument in call.args
            for part in ast.walk(argument)
        )
    ]


def test_no_path_is_cut_in_two():
    assert cut_paths('console.print(f"report: {page}", markup=False)') == [1]
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for folder in ("shmsim", "realrun", "experiments", "paper")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := cut_paths(path.read_text()))
    }
    assert not found, "say soft_wrap=True there"
