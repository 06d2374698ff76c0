"""Pages that are made from the code, so that they cannot say anything else than it does."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import typer

from realrun.cli import app as realrun_app
from shmsim import config as configuration
from shmsim import records as record_rows
from shmsim.cli import app as shmsim_app
from shmsim.profile import COSTS, OPTIONAL_COSTS
from shmsim.program import PANEL
from shmsim.units import format_ns

_UNIT: Final = "_ns"


def commands() -> str:
    """Every command of both programs, with its arguments and options."""
    return "\n\n".join(
        text
        for name, app in (("realrun", realrun_app), ("shmsim", shmsim_app))
        for text in _program(name, app)
    )


def _program(name: str, app: typer.Typer) -> Iterator[str]:
    program: Any = typer.main.get_command(app)
    context = typer.Context(program, info_name=name)
    yield f"## {name}\n\n{_prose(program.help)}"
    for word in program.list_commands(context):
        command = program.get_command(context, word)
        inner = typer.Context(command, info_name=word, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        yield f"### {name} {word}\n\n```text\n{name} {word} {usage}\n```\n\n{_prose(command.help)}"
        records = [
            parameter.get_help_record(inner)
            for parameter in command.get_params(inner)
            if getattr(parameter, "rich_help_panel", None) != PANEL and parameter.name != "help"
        ]
        if any(records):
            yield _table(
                ("argument or option", "means"),
                ([f"`{names}`", _cell(text)] for names, text in filter(None, records)),
            )


def _prose(text: str | None) -> str:
    """Help as Markdown: what must not be wrapped is a block."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "").replace(r"\\[", "[")):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b").strip("\n").replace(r"\[", "[")
            paragraphs.append(f"```text\n{lines}\n```")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def settings() -> str:
    """Every key of a config, with its default and what it may be."""
    sections = [
        _section(f"[{name}]", section_type, f"{name}.")
        for name, section_type in configuration._SECTIONS.items()
    ]
    fields = {f.name: f for f in dataclasses.fields(configuration.RunConfig)}
    means = dict(_parameters(configuration.RunConfig))
    rows = [(name, fields[name].default, means[name]) for name in configuration._RUN_KEYS]
    return "\n\n".join([*sections, _keys("[run]", "", rows, "run.")])


def _section(title: str, section_type: type, prefix: str) -> str:
    means = dict(_parameters(section_type))
    rows = [(f.name, f.default, means[f.name]) for f in dataclasses.fields(section_type)]
    lead, *_ = inspect.cleandoc(section_type.__doc__ or "").split("\nParameters\n")
    return _keys(title, lead.strip(), rows, prefix)


def _keys(title: str, lead: str, rows: list[tuple[str, Any, str]], prefix: str) -> str:
    body = _table(
        ("key", "default", "allowed", "means"),
        (
            [
                f"`{name.removesuffix(_UNIT)}`",
                _value(name, default),
                _allowed(name, configuration._ALLOWED.get(prefix + name)),
                _cell(text),
            ]
            for name, default, text in rows
        ),
    )
    return "\n\n".join(filter(None, [f"## `{title}`", lead, body]))


def _value(name: str, value: Any) -> str:
    if name.endswith(_UNIT):
        return f"`{format_ns(value)}`" if value else "`0`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, int) and value >= 1 << 20 and value.bit_count() == 1:
        return f"2^{value.bit_length() - 1}"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _allowed(name: str, allowed: tuple[Any, ...] | None) -> str:
    if allowed is None:
        return ""
    if all(isinstance(word, str) for word in allowed):
        return ", ".join(_value("", word) for word in allowed)
    low, high = (_value(name, end) for end in allowed)
    return f"{low} to {high}"


def costs() -> str:
    """Every cost of a profile."""
    return "\n\n".join(
        [
            _costs(COSTS),
            "A profile may also have these. Whoever needs one that is not there says so.",
            _costs(OPTIONAL_COSTS),
        ]
    )


def _costs(named: Mapping[str, tuple[str, str]]) -> str:
    rows = ([f"`{name}`", along or "", _cell(means)] for name, (along, means) in named.items())
    return _table(("cost", "along", "between"), rows)


def tables() -> str:
    """Every table of a run, column by column."""
    parts = []
    for name, row_type in record_rows._ROWS.items():
        lead, *_ = inspect.cleandoc(row_type.__doc__ or "").split("\nParameters\n")
        means = dict(_parameters(row_type))
        types = inspect.get_annotations(row_type)
        rows = (
            [f"`{column}`", _type(types[column]), _cell(means[column])]
            for column in row_type._fields
        )
        parts.append(f"## {name}\n\n{lead.strip()}\n\n" + _table(("column", "type", "is"), rows))
    return "\n\n".join(parts)


def _type(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation)) if annotation != list[int] else "ints"


def _parameters(documented: type) -> Iterator[tuple[str, str]]:
    """Names and texts below ``Parameters`` in a docstring; who share a text have it each."""
    _, _, below = inspect.cleandoc(documented.__doc__ or "").partition("\nParameters\n")
    for names, text in re.findall(r"^(\S.*)\n((?:(?: +.*)?(?:\n|\Z))+)", below, re.MULTILINE):
        for name in names.split(", "):
            yield name, " ".join(text.split())


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("``", "`")


MADE: Final[dict[str, Callable[[], str]]] = {
    "commands": commands,
    "configuration": settings,
    "profile": costs,
    "records": tables,
}
