"""The pages about export and the arena say what the tables and the code do."""

import re
import tomllib
from pathlib import Path

import pytest

from shmsim.arena_sizing.workloads import WORKLOADS
from shmsim.config import parse_config
from shmsim.export.engines import GENERIC, engine_names, load_engine
from shmsim.export.formats import FORMATS
from shmsim.routing import VLLM_ARENA

DOCS = Path(__file__).parents[2] / "docs"
EXPORT = (DOCS / "export.md").read_text(encoding="utf-8")
ARENA = (DOCS / "arena.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [n for n in engine_names() if n != GENERIC])
def test_the_page_has_every_setting_with_its_versions_and_default(name):
    for row in load_engine(name).settings:
        (line,) = [x for x in EXPORT.splitlines() if x.startswith(f"| `{row.name}` |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert row.since in cells
        assert not row.until or row.until in cells
        is_flag = row.kind == "flag" and row.unit == "switch"
        assert ("off" if is_flag else row.default) in cells


def test_the_page_names_every_engine_and_format():
    for word in (*FORMATS, GENERIC):
        assert f"`{word}`" in EXPORT or f"## {word}" in EXPORT
    headings = re.findall(r"^## (.+)$", EXPORT, re.MULTILINE)
    assert {h.lower() for h in headings} >= set(engine_names())


def test_the_page_about_the_arena_has_a_config_that_is_read_and_names_that_exist():
    (text,) = re.findall(r"```toml\n(.*?)```", ARENA, re.DOTALL)
    assert parse_config(tomllib.loads(text)).engine.workers == 4
    for name in WORKLOADS:
        assert f"`{name}`" in ARENA
    ((slot_bytes, n_slots),) = VLLM_ARENA.classes
    assert f"{n_slots} x {slot_bytes >> 20} MiB" in ARENA
