"""What the site has that no file in docs/ holds: pages made from the code, experiments, formulas.

Links are written for the repository, where ``../realrun/layout.py`` is a file. Here a link to a
page of the site is turned into one; a link to another file becomes its text; a link to nothing is a
warning, and so stops the build.
"""

import html
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SITE: Final = Path(__file__).parent
DOCS: Final = SITE.parent
ROOT: Final = DOCS.parent
sys.path.insert(0, str(SITE))

import made  # noqa: E402 - beside this file, which MkDocs does not look for

_log = logging.getLogger("mkdocs.hooks.shmsim")

_EXPERIMENTS: Final = "{experiments}"
_MADE: Final = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)
_FENCE: Final = re.compile(r"^ *(?:```|~~~)")
_LINK: Final = re.compile(r"(?<!!)\[([^\]\[]*)\]\(([^()\s]+)\)")
_FORMULA: Final = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>', re.DOTALL
)


@cache
def _from_elsewhere() -> list[Path]:
    """Pages that stand outside docs/, relative to the root."""
    experiments = ROOT / "experiments"
    own, each = experiments.glob("README.md"), experiments.glob("*/README.md")
    bench = experiments.glob("bench/*.md")
    paths = [ROOT / "CHANGELOG.md", *own, *sorted(each), *sorted(bench)]
    return list(dict.fromkeys(path.relative_to(ROOT) for path in paths))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the experiments into the navigation."""
    pages = [p.as_posix() for p in _from_elsewhere() if p.parts[0] == "experiments"]
    for entry in config.nav or []:
        for title, content in entry.items():
            if content == _EXPERIMENTS:
                entry[title] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages from elsewhere in."""
    for path in _from_elsewhere():
        files.append(File.generated(config, path.as_posix(), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made from the code, and make links of the repository links of the site."""
    del config, files
    uri = page.file.src_uri
    markdown = _MADE.sub(lambda found: made.MADE[found[1]](), markdown)
    at = (ROOT if _is_elsewhere(uri) else DOCS) / uri
    return _outside_fences(markdown, lambda line: _LINK.sub(lambda m: _link(m, at, uri), line))


def on_page_content(content: str, **_: Any) -> str:
    """Write formulas as MathML, which browsers draw by themselves."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tag, bracket, latex = found.groups()
    display = "block" if bracket == "[" else "inline"
    return f"<{tag}>{convert(html.unescape(latex), display=display)}</{tag}>"


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    lines, inside = [], False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            inside = not inside
        lines.append(line if inside else change(line))
    return "\n".join(lines)


def _is_elsewhere(uri: str) -> bool:
    return Path(uri) in _from_elsewhere()


def _link(found: re.Match[str], at: Path, uri: str) -> str:
    """A link as it has to be on a page of the site."""
    text, target = found.groups()
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return found[0]
    file = Path(os.path.normpath(at.parent / path))
    if not file.exists():
        _log.warning("%s links to %s, which is not there", uri, target)
        return found[0]
    if file.is_relative_to(DOCS):
        place = file.relative_to(DOCS)
    elif file.is_relative_to(ROOT) and _is_elsewhere(str(file.relative_to(ROOT))):
        place = file.relative_to(ROOT)
    else:
        return text
    here = os.path.relpath(place, Path(uri).parent)
    return f"[{text}]({here}{hash_}{anchor})"
