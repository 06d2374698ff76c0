"""How long notebook 3 takes when a slider moves: its own cells in a kernel, its own sliders."""

import json
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

NOTEBOOK: Final = Path(__file__).parents[2] / "notebooks" / "03_write_a_policy.ipynb"
#: Of the cell that makes the sliders.
SLIDERS: Final = "interactive_output("
#: First value and step of each slider that is moved.
MOVES: Final = {"window_us": (300, 20), "step_ms": (2.5, 0.5)}
_MOVE: Final = """
import json

stamps = []
image.observe(lambda _: stamps.append(perf_counter()), "value")


def moved_ms(name, value):
    stamps.clear()
    begun = perf_counter()
    sliders[name].value = value
    return [1e3 * (stamp - begun) for stamp in stamps]


print(json.dumps({name: [moved_ms(name, v) for v in values] for name, values in MOVES.items()}))
"""


def moves_ms(n: int) -> dict[str, list[float]]:
    """Move two sliders ``n`` times each.

    Returns
    -------
    dict[str, list[float]]
        Milliseconds from the move to the picture: ``"window"``, whose bound is known, and
        ``"step_with_bound"``, whose bound is new.
    """
    moves = {name: [first + i * by for i in range(n)] for name, (first, by) in MOVES.items()}
    found = _moved(f"MOVES = {moves!r}\n{_MOVE}")
    return {
        "window": [drawn for (drawn,) in found["window_us"]],
        "step_with_bound": [drawn for (drawn,) in found["step_ms"]],
    }


def _moved(code: str) -> dict[str, Any]:
    """Run the notebook up to its sliders, then ``code``; what that printed."""
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    sources = [cell.source for cell in notebook.cells]
    (last,) = (index for index, source in enumerate(sources) if SLIDERS in source)
    moving = nbformat.v4.new_code_cell(code)  # type: ignore[no-untyped-call]
    notebook.cells = [*notebook.cells[: last + 1], moving]
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": NOTEBOOK.parent}}
    )
    client.execute()
    (printed,) = (o.text for o in moving.outputs if o.output_type == "stream")
    found: dict[str, Any] = json.loads(printed)
    return found
