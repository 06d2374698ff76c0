"""Links lead somewhere, and a term is defined once."""

import re

import pytest

from tests.docs.pages import DOCS, NAMES, ROOT

_LINK = re.compile(r"(?<!!)\[[^\]\[]*\]\(([^()\s]+)\)")
_TERM = re.compile(r'^<span id="([^"]+)">(.+?)</span>\n:   ', re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_file_that_is_there(name):
    for target in _LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        path = target.partition("#")[0]
        if path and ":" not in path:
            assert ((ROOT / name).parent / path).exists(), f"{name} links to {target}"


def test_a_term_is_defined_once_and_in_the_glossary():
    terms = _TERM.findall((DOCS / "glossary.md").read_text(encoding="utf-8"))
    places, names = zip(*terms, strict=True)
    assert len(set(places)) == len(places)
    assert len({name.lower() for name in names}) == len(names)
    for page in DOCS.glob("*.md"):
        if page.name != "glossary.md":
            assert not re.search(r"^:   ", page.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_term_that_is_linked_is_in_the_glossary(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    places = {place for place, _ in _TERM.findall((DOCS / "glossary.md").read_text("utf-8"))}
    assert set(re.findall(r"glossary\.md#([\w-]+)", text)) <= places
