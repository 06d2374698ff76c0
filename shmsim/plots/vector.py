"""Pictures as SVG: to a file, or as a part of a page that lends them its colours."""

import io
import re
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from matplotlib.figure import Figure

from shmsim.plots.style import COLOURS, FAINT, GRID, INK, PAPER, styled
from shmsim.whole import write_whole

#: By which variable of CSS a page may set each colour; without, it stays as it was drawn.
VARIABLES: Final[dict[str, str]] = {
    INK: "--ink",
    FAINT: "--faint",
    GRID: "--grid",
    PAPER: "--paper",
    **{colour: f"--colour{index}" for index, colour in enumerate(COLOURS)},
}
_NO_METADATA: Final = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_HEAD: Final = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', re.DOTALL)
_OPENING: Final = re.compile(r"^.*?(?=<svg )", re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>\n?", re.DOTALL)
# It would hold for the whole page; both are inherited, so that the root can carry them.
_STYLE: Final = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>\n?", re.DOTALL)
_JOINS: Final = "stroke-linejoin: round; stroke-linecap: butt"
_ID: Final = re.compile(r'(\bid="|url\(#|xlink:href="#)')
_SLUG: Final = re.compile(r"[a-z][a-z0-9-]*")


def write_svg(figure: Figure, path: Path) -> None:
    """Store a picture; the same picture gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _svg(figure))


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """A picture as an element of an HTML page, as wide as the page lets it be.

    Parameters
    ----------
    figure
        The picture.
    name
        Of this picture within the page: lower-case letters, digits and hyphens. It keeps the ids of
        two pictures apart.
    title, description
        For those who do not see it: what it is, and what it shows. They may hold any text.

    Raises
    ------
    ValueError
        If the name is no such word.
    """
    if _SLUG.fullmatch(name) is None:
        raise ValueError(f"a picture is named by a-z, 0-9 and hyphens, got {name!r}")
    svg = _svg(figure)
    for superfluous in (_METADATA, _COMMENT, _STYLE):
        svg = superfluous.sub("", svg)
    svg = _ID.sub(rf"\g<1>{name}-", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour.lower(), f"var({variable}, {colour.lower()})")
    head = _HEAD.search(svg)
    assert head is not None, "matplotlib begins an SVG with its view box"
    opening = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{head[1]}" role="img" '
        f'style="{_JOINS}" aria-labelledby="{name}-title {name}-about">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-about">{escape(description)}</desc>'
    )
    return opening + svg[head.end() :].strip()


@styled
def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return _OPENING.sub("", buffer.getvalue(), count=1)
