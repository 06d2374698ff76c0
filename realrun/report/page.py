"""A page of HTML by itself: style and pictures in it, no script, nothing to load."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from realrun.report.html import Html, element, joined

# No script runs and nothing is loaded, whatever a page holds.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
# In the dark the colours of pictures are lighter ones of the same hue (shmsim.plots.vector names
# the variables).
_STYLE: Final = """
:root {
  color-scheme: light dark;
  --ink: #1b1b20; --faint: #5f5f69; --grid: #e2e2e8; --paper: #fefefd; --panel: #f3f3f6;
  --link: #00558a; --mark: #d55e00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e8e8ec; --faint: #a3a3ae; --grid: #3a3a44; --paper: #17171b; --panel: #222229;
    --link: #7cc4f5; --mark: #ff9b57;
    --colour0: #4ba3e3; --colour1: #f08040; --colour2: #2fbf93; --colour3: #dc9abf;
    --colour4: #edb23a; --colour5: #7cc6f2; --colour6: #d0709a; --colour7: #63c2b0;
    --colour8: #bcbc55; --colour9: #a0a0a0;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 56rem;
  font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  overflow-wrap: anywhere;
}
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.2; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
p, ul { max-width: 44rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--mark); outline-offset: 2px; }
.skip { position: absolute; left: -100vw; }
.skip:focus { position: static; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; }
nav a { display: inline-block; padding: .3rem 0; }
.about, figcaption, caption, small { color: var(--faint); font-size: .9rem; }
.verdict { font-size: 1.15rem; border-left: .3rem solid var(--mark); padding-left: .8rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; }
.cards div { background: var(--panel); padding: .75rem; border-radius: .4rem; }
.cards dd { margin: 0; }
.cards strong { display: block; font-size: 1.5rem; line-height: 1.3; }
.cards span { color: var(--faint); font-size: .9rem; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; }
.narrow { display: none; }
table {
  border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: 1rem 0;
}
caption { text-align: left; padding-bottom: .25rem; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { text-align: left; }
td, thead th:not(:first-child) { text-align: right; }
/* Only names can be of any length; what the program writes stays in one piece. */
.figures td { white-space: nowrap; }
.figures thead th { overflow-wrap: normal; }
.figures th[scope=row] { min-width: 6.5rem; }
.figures { font-size: .9rem; }
pre {
  background: var(--panel); padding: .75rem; border-radius: .4rem; white-space: pre-wrap;
  font: .85rem/1.45 ui-monospace, monospace;
}
summary { cursor: pointer; padding: .3rem 0; }
@media (max-width: 40rem) {
  .wide { display: none; }
  .narrow { display: block; }
  /* Not display: none, so that a screen reader still knows the columns. */
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, thead, tbody, tr, th, td, caption { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid var(--grid); }
  th, td { border: 0; padding: .1rem 0; }
  td { display: flex; justify-content: space-between; gap: 1rem; }
  td::before { content: attr(data-column); color: var(--faint); }
  /* How an interval was got may be longer than a telephone is wide. */
  .figures td { white-space: normal; }
}
@media print { nav, .skip { display: none; } figure, tr { break-inside: avoid; } }
"""


class Section(NamedTuple):
    """A part of a page with a heading of its own.

    Parameters
    ----------
    name
        By which links find it: lower-case letters.
    title
        Its heading.
    content
        What is in it; headings within are of the third order.
    """

    name: str
    title: str
    content: Html


def page(title: str, about: str, sections: Sequence[Section]) -> str:
    """Put a page together.

    Parameters
    ----------
    title
        Of the page.
    about
        A line below it.
    sections
        From top to bottom; the first is where a reader wants to go.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    links = element(
        "nav",
        element(
            "ul",
            *(element("li", element("a", s.title, href=f"#{s.name}")) for s in sections),
        ),
        aria_label="Contents",
    )
    parts = [
        element(
            "section",
            element("h2", section.title, id=f"{section.name}-heading"),
            section.content,
            id=section.name,
            aria_labelledby=f"{section.name}-heading",
        )
        for section in sections
    ]
    skip = element("a", f"Skip to: {sections[0].title}", class_="skip", href=f"#{sections[0].name}")
    heading = element("header", element("h1", title), element("p", about, class_="about"))
    body = element("body", skip, heading, links, element("main", *parts))
    return joined([Html("<!doctype html>\n"), element("html", head, body, lang="en"), "\n"])
