"""What engines can be told, version by version: a small table of facts with their sources.

One TOML file for each engine in ``shmsim/data/engines``. A row has ``since``, the first release
known to have it, and ``until``, the first that lacks it. Another setting is another row; nothing
here knows the name of any.
"""

import tomllib
from importlib.resources import files
from typing import Any, Final, NamedTuple

from shmsim.export.idle import ParkWhenIdle
from shmsim.export.version import parse_version
from shmsim.nearest import instead
from shmsim.wait import WaitPolicy

#: Whoever has no settings of its own: a hand-off of yours, or an engine that is not listed.
GENERIC: Final = "generic"
_OTHER_FILES: Final = ("pause",)


class Setting(NamedTuple):
    """One thing that an engine can be told.

    Parameters
    ----------
    name
        Of the environment variable, or the flag with its dashes.
    kind
        ``"env"`` or ``"flag"``.
    unit
        Of its value: ``"switch"`` (``"1"`` is on; a flag then takes no value), ``"MiB"``,
        ``"level"`` or ``"pauses"``.
    default
        Its value where nobody sets it.
    since, until
        First version that has it, and first that lacks it again; empty for none.
    source
        Where that is written.
    """

    name: str
    kind: str
    unit: str
    default: str
    since: str
    until: str
    source: str


class Offer(NamedTuple):
    """A way to wait that an engine has.

    Parameters
    ----------
    policy
        What it does, in the words of this library.
    values
        Settings that bring it about, as (name, value); none for what it does by itself.
    note
        What to mind; may be empty.
    since, until, source
        As of a `Setting`.
    """

    policy: WaitPolicy
    values: tuple[tuple[str, str], ...]
    note: str
    since: str
    until: str
    source: str


class Window(NamedTuple):
    """A setting that counts how many rounds to look before sleeping.

    Parameters
    ----------
    setting
        Its name.
    rounds
        How many rounds of a pause each 1 of it stands for.
    lowest, highest
        Of the setting; a ``highest`` of 0 means no limit.
    endless
        Its value for ever; empty if it has none.
    note
        What to mind.
    """

    setting: str
    rounds: int
    lowest: int
    highest: int
    endless: str
    note: str


class SharedMemory(NamedTuple):
    """What an engine takes of /dev/shm.

    Parameters
    ----------
    chunks
        Slots of each of its queues.
    call_mib, reply_mib
        Size of a slot of the one queue for calls, and of the queue of each worker for replies.
    arena_mib
        Size of its tensor arena, if it is switched on.
    advised_mib
        What its documentation says, where its queues do not tell; else 0.
    since, until, source
        As of a `Setting`.
    """

    chunks: int
    call_mib: int
    reply_mib: int
    arena_mib: int
    advised_mib: int
    since: str
    until: str
    source: str


class Beside(NamedTuple):
    """How this package, beside an engine, carries out a policy that no setting stands for.

    Parameters
    ----------
    variable
        Environment variable that names the policy file, in every process of the engine.
    page
        Of the documentation.
    tried
        Versions it ran in.
    since, until, source
        As of a `Setting`.
    """

    variable: str
    page: str
    tried: str
    since: str
    until: str
    source: str


class Engine(NamedTuple):
    """All rows of one engine, or those of one version of it.

    Parameters
    ----------
    name
        As on the command line.
    version
        Empty for all versions.
    oldest, newest
        Versions that the table was made for.
    command, image
        How it is started, to show where flags go.
    waits
        Who waits for what, there.
    no_window
        Why it cannot be told how long to look; empty if it can.
    settings, offers, window, shm
        The rows; the first offer that needs no setting is the default.
    by_key
        Which setting stands for which key of a config, as (key, name).
    beside
        What this package does there by itself, if anything.
    """

    name: str
    version: str
    oldest: str
    newest: str
    command: str
    image: str
    waits: str
    no_window: str
    settings: tuple[Setting, ...]
    offers: tuple[Offer, ...]
    window: Window | None
    shm: tuple[SharedMemory, ...]
    by_key: tuple[tuple[str, str], ...] = ()
    beside: tuple[Beside, ...] = ()

    def at(self, version: str) -> "Engine":
        """The rows of one version.

        Raises
        ------
        ValueError
            If it is older than the table.
        """
        number = parse_version(version)
        if number < parse_version(self.oldest):
            raise ValueError(
                f"nobody looked up what {self.name} {version} can be told: the table begins with "
                f"{self.oldest}; update the engine, or use --engine {GENERIC}"
            )
        return self._replace(
            version=version,
            settings=tuple(row for row in self.settings if _has(row, version)),
            offers=tuple(row for row in self.offers if _has(row, version)),
            shm=tuple(row for row in self.shm if _has(row, version)),
            beside=tuple(row for row in self.beside if _has(row, version)),
        )

    @property
    def is_newer_than_the_table(self) -> bool:
        """Whether this version came out after the table was made."""
        return parse_version(self.version) > parse_version(self.newest)

    def setting(self, name: str) -> Setting:
        """The row of a setting.

        Raises
        ------
        ValueError
            If this version lacks it.
        """
        for row in self.settings:
            if row.name == name:
                return row
        rows = [row for row in load_engine(self.name).settings if row.name == name]
        if not rows:
            known = sorted({row.name for row in load_engine(self.name).settings})
            raise ValueError(f"{self.name} has no setting {name}{instead(name, known)}")
        when = " and ".join(
            f"from {row.since}" + (f" until before {row.until}" if row.until else " on")
            for row in rows
        )
        raise ValueError(
            f"{self.name} {self.version} has no {name}, which is there {when}; leave it out, or "
            "change the version"
        )


def _has(row: Setting | Offer | SharedMemory | Beside, version: str) -> bool:
    number = parse_version(version)
    return parse_version(row.since) <= number and not (
        row.until and number >= parse_version(row.until)
    )


def engine_names() -> list[str]:
    """Engines with a table, and `GENERIC`."""
    names = [
        entry.name.removesuffix(".toml")
        for entry in (files("shmsim") / "data" / "engines").iterdir()
        if entry.name.endswith(".toml")
    ]
    return [*sorted(set(names) - set(_OTHER_FILES)), GENERIC]


def load_engine(name: str) -> Engine:
    """Read the table of an engine.

    Raises
    ------
    ValueError
        If there is none, with the nearest name there is.
    """
    if name not in engine_names():
        raise ValueError(
            f"nobody looked up what engine {name!r} can be told"
            f"{instead(name, engine_names())}; '--engine {GENERIC}' tells what to build instead"
        )
    if name == GENERIC:
        return Engine(GENERIC, "", "0", "0", "", "", "", "", (), (), None, ())
    path = files("shmsim") / "data" / "engines" / f"{name}.toml"
    return parse_engine(name, tomllib.loads(path.read_text(encoding="utf-8")))


def parse_engine(name: str, content: dict[str, Any]) -> Engine:
    """Build an engine from what its file holds.

    Raises
    ------
    ValueError
        If an offer needs a setting that is not there at the same time, or a row has no source.
    """
    settings = tuple(
        Setting(
            row["name"],
            row["kind"],
            row["unit"],
            row["default"],
            row["since"],
            row.get("until", ""),
            row["source"],
        )
        for row in content["setting"]
    )
    offers = tuple(
        Offer(
            _policy(row["policy"]),
            tuple(row["set"].items()),
            row.get("note", ""),
            row["since"],
            row.get("until", ""),
            row["source"],
        )
        for row in content.get("offer", [])
    )
    window = content.get("window")
    engine = Engine(
        name,
        "",
        content["oldest"],
        content["newest"],
        content["command"],
        content["image"],
        content["waits"],
        content.get("no_window", ""),
        settings,
        offers,
        Window(
            window["setting"],
            window["rounds"],
            window["lowest"],
            window.get("highest", 0),
            window.get("endless", ""),
            window.get("note", ""),
        )
        if window
        else None,
        tuple(
            SharedMemory(
                row.get("chunks", 0),
                row.get("call_mib", 0),
                row.get("reply_mib", 0),
                row.get("arena_mib", 0),
                row.get("advised_mib", 0),
                row["since"],
                row.get("until", ""),
                row["source"],
            )
            for row in content.get("shm", [])
        ),
        tuple(content.get("config", {}).items()),
        tuple(
            Beside(
                row["variable"],
                row["page"],
                row["tried"],
                row["since"],
                row.get("until", ""),
                row["source"],
            )
            for row in content.get("beside", [])
        ),
    )
    _check(engine)
    return engine


def _check(engine: Engine) -> None:
    rows: list[Setting | Offer | SharedMemory | Beside] = [
        *engine.settings,
        *engine.offers,
        *engine.shm,
        *engine.beside,
    ]
    for row in rows:
        if not row.source.strip():
            raise ValueError(f"{engine.name}: a row since {row.since} has no source")
    for offer in engine.offers:
        there = engine.at(offer.since)
        for name, _ in offer.values:
            if name not in {row.name for row in there.settings}:
                raise ValueError(
                    f"{engine.name}: {offer.policy} needs {name}, which {offer.since} lacks"
                )


def _policy(text: str) -> WaitPolicy:
    from shmsim.config import parse_policy  # slow to load, and the names of engines do without

    return ParkWhenIdle() if text == ParkWhenIdle.__name__ else parse_policy(text).policy
