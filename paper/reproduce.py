"""REPRODUCE.md: which command gives which claims again, how long it takes, and on what it ran."""

from paper.records import Records
from paper.wording import machine

_HEAD = """# How to get every claim again

Made by `python -m paper`; a test compares. `shmsim claims FILE` judges a file of claims, and ends
with 1 if one fails. Times are those of two cores. `make figures` runs afresh what the pictures need
and draws them; `make paper` takes the stored records.

Protocols are no records but tests: `pytest tests/protocol` goes through every interleaving,
`pytest tests/theory` holds the model against theory. A GPU's checks are `realrun gpu-check`; no
record of one is stored.
"""
_COLUMNS = "| command | takes | runs | the stored record is of |\n|---|---|---|---|\n"


def page(records: Records) -> str:
    """The page, of all records there are."""
    parts = [_HEAD]
    for name, source in records.sources.items():
        claims = "\n".join(f"- `{claim.id}`" for claim in records.claims(name))
        cells = (f"`{source.command}`", source.takes, source.runs, _plain(records, name))
        row = f"| {' | '.join(cells)} |"
        parts.append(f"## {name}\n\n{source.title}.\n\n{_COLUMNS}{row}\n\n{claims}\n")
    return "\n".join(parts)


def _plain(records: Records, name: str) -> str:
    return machine(records.machine(name)).replace("\\,", " ")
