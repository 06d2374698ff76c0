"""Settings as lines to paste: environment, command line, Docker Compose, Kubernetes."""

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from shmsim.export.engines import Engine, Setting
from shmsim.nearest import instead


class Answer(NamedTuple):
    """What to set, and what to say about it.

    Parameters
    ----------
    engine
        The rows of one version.
    settings
        What to set, as (setting, value).
    shm_mib
        What of /dev/shm a container has to allow; 0 for no advice.
    said
        Lines for people.
    beside
        Variables by which this package, installed beside the engine, does what no setting does;
        said, and not among the lines to paste.
    """

    engine: Engine
    settings: tuple[tuple[Setting, str], ...]
    shm_mib: int
    said: tuple[str, ...]
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> list[tuple[str, str]]:
        """Names and values of environment variables."""
        return [(row.name, value) for row, value in self.settings if row.kind == "env"]

    @property
    def flags(self) -> list[str]:
        """Words of the command line."""
        words = []
        for row, value in self.settings:
            if row.kind == "flag":
                words.append(row.name)
                if row.unit != "switch":
                    words.append(value)
        return words


def as_env(answer: Answer) -> list[str]:
    """Lines of an environment file; flags, which it cannot hold, as a comment."""
    lines = [f"{name}={value}" for name, value in answer.environment]
    if answer.flags:
        lines.append(f"# and on the command line: {' '.join(answer.flags)}")
    return lines


def as_flags(answer: Answer) -> list[str]:
    """One command, its environment before it."""
    words = [f"{name}={value}" for name, value in answer.environment]
    command = answer.engine.command
    return [" ".join([*words, command, *answer.flags])] if command else []


def as_compose(answer: Answer) -> list[str]:
    """A service of a Compose file; what it lacks is yours."""
    service = []
    if answer.flags:
        service.append(f"    command: {json.dumps(answer.flags)}  # after what is there")
    if answer.environment:
        service.append("    environment:")
        service += [f"      {name}: {json.dumps(value)}" for name, value in answer.environment]
    if answer.shm_mib:
        service.append(f'    shm_size: "{answer.shm_mib}m"')
    if not service:
        return []
    engine = answer.engine
    image = engine.image.format(version=engine.version.removeprefix("v"))
    if image:
        service.insert(0, f"    image: {image}")
    return ["services:", f"  {_name(engine)}:", *service]


def as_kubernetes(answer: Answer) -> list[str]:
    """What to merge into the pod's spec; memory of a tmpfs counts towards the pod's limit."""
    container = []
    if answer.flags:
        container.append(f"      args: {json.dumps(answer.flags)}  # after what is there")
    if answer.environment:
        container.append("      env:")
        for name, value in answer.environment:
            container += [f"        - name: {name}", f"          value: {json.dumps(value)}"]
    if answer.shm_mib:
        container += [
            "      volumeMounts:",
            "        - name: shm",
            "          mountPath: /dev/shm",
        ]
    if not container:
        return []
    lines = ["spec:", "  containers:", f"    - name: {_name(answer.engine)}", *container]
    if answer.shm_mib:
        lines += [
            "  volumes:",
            "    - name: shm",
            "      emptyDir:",
            "        medium: Memory",
            f"        sizeLimit: {answer.shm_mib}Mi",
        ]
    return lines


def _name(engine: Engine) -> str:
    return engine.name.replace(".", "-")  # of a container: letters, digits and dashes


FORMATS: Final[dict[str, Callable[[Answer], list[str]]]] = {
    "env": as_env,
    "flags": as_flags,
    "compose": as_compose,
    "kubernetes": as_kubernetes,
}


def check_format(form: str) -> None:
    """Refuse what is no format.

    Raises
    ------
    ValueError
        If there is none of that name, with the nearest there is.
    """
    if form not in FORMATS:
        raise ValueError(f"no format {form!r}{instead(form, FORMATS)}")


def render(answer: Answer, form: str) -> str:
    """Write an answer: what is said about it as comments, then the lines to paste.

    Raises
    ------
    ValueError
        If there is no such format.
    """
    check_format(form)
    return "\n".join([*(f"# {line}" for line in answer.said), *FORMATS[form](answer)])
