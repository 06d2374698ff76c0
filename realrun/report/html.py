"""HTML that nothing from a file can break: text is escaped wherever it is not HTML already."""

import html
import unicodedata
from collections.abc import Iterable, Sequence

_EMPTY = frozenset({"meta", "br"})
#: Categories of Unicode that are not to be seen, and may turn a line round or end a file.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


class Html(str):
    """Text that is HTML already; any other is escaped before it comes into a page."""

    __slots__ = ()


def escaped(text: str) -> Html:
    r"""Text as HTML; characters that cannot be seen become the replacement character.

    Examples
    --------
    >>> escaped("<b> & \x00")
    '&lt;b&gt; &amp; �'
    """
    seen = "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSEEN else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )
    return Html(html.escape(seen, quote=True))


def element(name: str, /, *content: str, **attributes: str) -> Html:
    """One element.

    Parameters
    ----------
    name
        Of the element.
    content
        What is in it: `Html` as it stands, any other text escaped.
    attributes
        By name, ``_`` for ``-``; one that is a word of Python has ``_`` behind it, as ``class_``.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
    )
    if name in _EMPTY:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(content)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Several parts, one behind the other."""
    return Html("".join(part if isinstance(part, Html) else escaped(part) for part in parts))


def paragraph(*content: str) -> Html:
    """A paragraph."""
    return element("p", *content)


def bullets(items: Iterable[str]) -> Html:
    """A list."""
    return element("ul", *(element("li", item) for item in items))


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, of_figures: bool = True
) -> Html:
    """A table whose first column names the row; figures are kept in one piece, text is not.

    Where a page is narrow each row becomes a block, and each cell says its column before it.
    """
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(
                element("td", cell, data_column=name)
                for name, cell in zip(columns[1:], row[1:], strict=True)
            ),
        )
        for row in rows
    ]
    return element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *body),
        class_="figures" if of_figures else "facts",
    )


def cards(facts: Iterable[tuple[str, str, str]]) -> Html:
    """A few figures that stand out: what it is, the figure, and what it is to be read against."""
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", name),
                element("dd", element("strong", value), " ", element("span", against)),
            )
            for name, value, against in facts
        ),
        class_="cards",
    )
