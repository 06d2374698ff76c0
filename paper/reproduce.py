"""REPRODUCE.md: which command gives which claims again, how long it takes, and on what it ran."""

from paper.protocol import Property, properties
from paper.records import Records, in_words
from paper.wording import machine

_HEAD = """# How to get every claim again

Made by `python -m paper`; a test compares. `shmsim claims FILE` judges a file of claims, and ends
with 1 if one fails. Times are those of two cores. `make figures` runs afresh what the pictures need
and draws them; `make paper` takes the stored records.

```
make reproduce             # experiments {experiments}, benches {benches}; leaderboard, numbers
make reproduce QUICK=1     # all of these in little, a minute each at most, into runs/
```

A live vLLM needs an environment with it ([docs/vllm.md](../docs/vllm.md)); its commands, further
down, take {vllm} more.

A GPU's checks are `realrun gpu-check`; no record of one is stored. `pytest tests/theory` holds the
model against theory. What is said of protocols is no record either, but tests that go through every
interleaving (`pytest tests/protocol`):

| it is said that | shown by | it breaks in |
|---|---|---|
{protocol}
"""
_COLUMNS = (
    "| command | takes | runs | seed | the stored record is of | made by | begun |\n"
    "|---|---|---|---|---|---|---|\n"
)


def page(records: Records) -> str:
    """The page, of all records there are."""
    took = {name: source.seconds for name, source in records.sources.items()}
    kinds = {"vllm": "bench/vllm", "benches": "bench/", "experiments": ""}
    sums = dict.fromkeys(kinds, 0.0)
    for name, seconds in took.items():
        sums[next(kind for kind, begins in kinds.items() if name.startswith(begins))] += seconds
    times = {kind: in_words(seconds) for kind, seconds in sums.items()}
    head = _HEAD.format(**times, protocol="\n".join(map(_property, properties())))
    parts = [head]
    for name, source in records.sources.items():
        claims = "\n".join(f"- `{claim.id}`" for claim in records.claims(name))
        cells = (
            *(f"`{source.command}`", source.takes, source.runs),
            *(_seeds(records, name), _plain(records, name)),
            *_origin(records, name),
        )
        row = f"| {' | '.join(cells)} |"
        parts.append(f"## {name}\n\n{source.title}.\n\n{_COLUMNS}{row}\n\n{claims}\n")
    return "\n".join(parts)


def _property(of: Property) -> str:
    tests = ["<br>".join(f"`{name}`" for name in names) for names in (of.shown_by, of.broken_in)]
    return f"| {' | '.join([of.holds, *tests])} |"


def _seeds(records: Records, name: str) -> str:
    """Of its claims; a record of what is only measured draws nothing."""
    seeds = sorted({claim.seed for claim in records.claims(name) if claim.seed})
    return ", ".join(map(str, seeds)) or "none"


def _plain(records: Records, name: str) -> str:
    return machine(records.machine(name)).replace("\\,", " ")


def _origin(records: Records, name: str) -> tuple[str, str]:
    """The code that made a record, and when."""
    origins = records.origins(name)
    if not origins:
        return "not stored", "not stored"
    commits = [f"`{o.commit[:9]}`" + ", edited" * o.dirty for o in origins]
    return ", ".join(commits), ", ".join(f"{o.started[:16].replace('T', ' ')} UTC" for o in origins)
