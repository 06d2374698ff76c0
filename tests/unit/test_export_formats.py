import shlex

import pytest

from shmsim.export.engines import GENERIC, engine_names, load_engine
from shmsim.export.formats import FORMATS, Answer, render

SETTINGS = [
    (name, row) for name in engine_names() if name != GENERIC for row in load_engine(name).settings
]
VALUES = {"switch": "1", "MiB": "64", "level": "3", "pauses": "12345"}


def answers():
    """One for each setting, with the value it would be given."""
    for name, row in SETTINGS:
        engine = load_engine(name).at(row.since)
        yield pytest.param(
            Answer(engine, ((row, VALUES[row.unit]),), 640, ("why: so",)), id=f"{name} {row.name}"
        )


ANSWERS = list(answers())


def expected(answer):
    ((row, value),) = answer.settings
    if row.kind == "env":
        return {row.name: value}, []
    return {}, [row.name] if row.unit == "switch" else [row.name, value]


def lines(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_environment_file_holds_the_variables_and_tells_the_flags(answer):
    text = render(answer, "env")
    environment, flags = expected(answer)
    assert dict(line.split("=", 1) for line in lines(text)) == environment
    assert (f"# and on the command line: {' '.join(flags)}" in text) == bool(flags)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_command_line_holds_both(answer):
    (line,) = lines(render(answer, "flags"))
    environment, flags = expected(answer)
    words = shlex.split(line)
    assert dict(w.split("=", 1) for w in words[: len(environment)]) == environment
    assert words[len(words) - len(flags) :] == flags


@pytest.mark.parametrize("answer", ANSWERS)
def test_compose_and_kubernetes_hold_both_and_the_shared_memory(answer):
    yaml = pytest.importorskip("yaml")
    environment, flags = expected(answer)
    ((_, service),) = yaml.safe_load(render(answer, "compose"))["services"].items()
    assert service.get("environment", {}) == environment
    assert service.get("command", []) == flags
    assert service["shm_size"] == "640m"

    spec = yaml.safe_load(render(answer, "kubernetes"))["spec"]
    (container,) = spec["containers"]
    assert {e["name"]: e["value"] for e in container.get("env", [])} == environment
    assert container.get("args", []) == flags
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert spec["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "640Mi"}}
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_said_is_a_comment_in_every_format(form):
    engine = load_engine("libgomp").at("13")
    text = render(Answer(engine, (), 0, ("first", "second")), form)
    assert text.splitlines()[:2] == ["# first", "# second"]


def test_where_nothing_is_set_there_is_nothing_to_paste():
    engine = load_engine("vllm").at("0.33.0")
    for form in ("env", "compose", "kubernetes"):
        assert lines(render(Answer(engine, (), 0, ("nothing to set",)), form)) == []


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="no format 'yaml'; known are env, flags, compose"):
        render(Answer(load_engine("vllm").at("0.33.0"), (), 0, ()), "yaml")
