"""What every page says: how to get the same again, and where it ends to be true."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from realrun.host import warnings_about
from realrun.report.html import Html, element, joined, table

_CONFIG: Final = "config.toml"
_BYTES: Final = "_bytes"


def commands(*lines: str) -> Html:
    """What to type."""
    return element("pre", element("code", "\n".join(lines)))


def quoted(path: Path) -> str:
    """A path as a word for a shell."""
    text = str(path)
    plain = all(c.isalnum() or c in "/._-+" for c in text)
    return text if plain else "'" + text.replace("'", "'\\''") + "'"


def folded(title: str, content: Html) -> Html:
    """Something long that a reader opens when it is wanted."""
    return element("details", element("summary", title), content)


def config_part(folder: Path, config: Mapping[str, Any]) -> Html:
    """The config: its file if it lies beside the results, and as it was understood."""
    path = folder / _CONFIG
    parts = []
    if path.is_file():
        text = path.read_text(errors="replace")
        parts.append(folded(f"The config ({_CONFIG})", element("pre", element("code", text))))
    resolved = element("pre", element("code", json.dumps(config, indent=1)))
    parts.append(folded("The config with every default", resolved))
    return joined(parts)


def machine_part(machine: Mapping[str, Any]) -> Html:
    """The facts of the box."""
    rows = [(str(name), _shown(str(name), value)) for name, value in machine.items()]
    facts = table(
        "What decides the cost of waiting on this box.", ("fact", "value"), rows, of_figures=False
    )
    return folded("The machine", facts)


def about_machine(machine: Mapping[str, Any]) -> str:
    """The box in a few words."""
    cpu, kernel = machine.get("cpu", "unknown CPU"), machine.get("kernel", "unknown")
    return f"{cpu}, {machine.get('cores', '?')} cores, kernel {kernel}"


def limits_of_machine(machine: Mapping[str, Any]) -> list[str]:
    """What about the box shows in every figure."""
    try:
        return [_sentence(warning) for warning in warnings_about(dict(machine))]
    except (KeyError, TypeError):
        return ["The file says too little about the machine to warn of what shows."]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _shown(name: str, value: Any) -> str:
    if name.endswith(_BYTES) and isinstance(value, int):
        return f"{value / (1 << 30):.1f} GiB"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
