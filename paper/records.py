"""The stored records: which there are, what they claim, and how each is had again."""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmsim.claims import Claim, read_claims
from shmsim.profile import MachineProfile

HERE: Final = Path(__file__).parent
EXPERIMENTS: Final = HERE.parent / "experiments"


class Source(NamedTuple):
    """One record, and how it is had again.

    Parameters
    ----------
    name
        As the text calls it: ``"10_model_against_machine"``, ``"bench/handoff"``.
    title
        What it is about, in words.
    claims
        Its claims file, from the folder of all records.
    command
        What runs it, from the root of the project.
    seconds
        How long that takes on two cores; as the record says, if it does.
    runs
        What runs: real processes, the model, or both.
    """

    name: str
    title: str
    claims: str
    command: str
    seconds: float
    runs: str

    @property
    def takes(self) -> str:
        """How long, in words."""
        return in_words(self.seconds)


class Origin(NamedTuple):
    """What code made a record, and when.

    Parameters
    ----------
    commit
        That was checked out.
    dirty
        Whether files differed from it, records not counted.
    started
        ISO 8601.
    """

    commit: str
    dirty: bool
    started: str


class Records:
    """A folder of records, laid out as ``experiments/`` is.

    Parameters
    ----------
    root
        The folder; of a fresh run, another one than `EXPERIMENTS`.
    """

    def __init__(self, root: Path = EXPERIMENTS) -> None:
        self.root = root
        self.sources = {s.name: s for s in _sources(root) if (root / s.claims).is_file()}

    def has(self, name: str) -> bool:
        """Whether there is a record of that name."""
        return name in self.sources

    def claims(self, name: str) -> list[Claim]:
        """What a record claims."""
        return read_claims(self.root / self.sources[name].claims)

    def machine(self, name: str) -> dict[str, Any]:
        """Facts of the machine that it was run on."""
        facts: dict[str, Any] = read_json(self.root / self.sources[name].claims)["machine"]
        return facts

    def origins(self, name: str) -> list[Origin]:
        """Of each node of a record; none of one that was stored before benches told it."""
        record = self._record(name)
        if record.is_file():
            told = list(read_json(record)["nodes"].values())
        else:
            claims = read_json(self.root / self.sources[name].claims)
            told = [claims["origin"]] if "origin" in claims else []
        return [Origin(*(node[field] for field in Origin._fields)) for node in told]

    def read(self, *path: str) -> Any:
        """The content of a JSON file."""
        return read_json(self.root.joinpath(*path))

    def profile(self, *path: str) -> MachineProfile:
        """A stored profile."""
        return MachineProfile.read(self.root.joinpath(*path))

    def summary(self, name: str) -> dict[str, Any]:
        """The figures that an experiment says a text may quote."""
        (found,) = read_json(self._record(name))["summary"].values()
        return dict(found)

    def plan(self, name: str) -> dict[str, Any]:
        """The resolved config of an experiment."""
        return dict(read_json(self._record(name))["plan"])

    def contents(self, name: str) -> dict[str, Any]:
        """What the cells of an experiment found, by their names; skipped ones are left out."""
        cells = read_json(self._record(name))["cells"]
        return {cell["name"]: cell["content"] for cell in cells if "content" in cell}

    def _record(self, name: str) -> Path:
        return self.root / name / "results" / "record.json"


@cache
def read_json(path: Path) -> Any:
    """The content of a JSON file, read once."""
    return json.loads(path.read_text())


def _sources(root: Path) -> list[Source]:
    """Those that are listed, and every further experiment that has claims."""
    listed = tomllib.loads((HERE / "records.toml").read_text())["record"]
    found = {row["name"]: Source(**row) for row in listed}
    for record in root.glob("[0-9]*/results/record.json"):
        name = record.parents[1].name
        known = found.get(name) or Source(
            name,
            _title(EXPERIMENTS / name / "README.md"),
            f"{name}/results/claims.json",
            f"python experiments/run.py {name}",
            0.0,
            _worlds(record),
        )
        found[name] = known._replace(seconds=_seconds(record))
    return sorted(found.values(), key=lambda source: source.name)


def _title(readme: Path) -> str:
    """The heading of an experiment without its number."""
    heading = readme.read_text().partition("\n")[0].lstrip("# ").strip()
    return heading.lstrip("0123456789 ")


def _seconds(record: Path) -> float:
    return float(sum(node["seconds"] for node in read_json(record)["nodes"].values()))


def in_words(seconds: float) -> str:
    """A duration as a text tells it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _worlds(record: Path) -> str:
    words = {"model": "the model", "machine": "real processes", "emulated": "emulated devices"}
    worlds = {cell["world"] for cell in read_json(record)["cells"]}
    return " and ".join(text for world, text in words.items() if world in worlds)
