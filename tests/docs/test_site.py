"""The site is built strictly, needs nobody else's server, and says what the code does."""

import re
import shutil
import subprocess
import sys

import pytest
import typer

from realrun.cli import app as realrun_app
from shmsim.cli import app as shmsim_app
from shmsim.config import RunConfig
from shmsim.profile import COSTS
from shmsim.records import ProcessRow, WaitRow
from tests.docs.pages import DOCS, NAMES, ROOT

pytest.importorskip("mkdocs", reason="the site needs the extra docs: pip install -e .[docs]")
pytestmark = pytest.mark.slow

_LOADED = re.compile(r'<(?:script|img|iframe)[^>]+src="?([^">\s]+)|<link[^>]+href="?([^">\s]+)')


def build(root, out):
    # Not --quiet: it mutes the warnings that strictness counts.
    words = [sys.executable, "-m", "mkdocs", "build", "-f", "docs/site/mkdocs.yml"]
    return subprocess.run(
        [*words, "-d", str(out)], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where it was built."""
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_a_link_to_nothing_stops_the_build(tmp_path):
    for beside in ROOT.iterdir():
        if beside.name != "docs":
            (tmp_path / beside.name).symlink_to(beside)
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs/index.md").open("a") as page:
        page.write("\n[gone](../realrun/no_such_file.py)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "index.md links to ../realrun/no_such_file.py" in done.stderr


def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        for found in _LOADED.finditer(path.read_text(encoding="utf-8")):
            address = found[1] or found[2]
            assert not re.match(r"(?:https?:)?//", address), f"{path.name} loads {address}"
    for path in site.rglob("*.css"):
        assert "@import" not in path.read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"{page.stem}.html" in start, page.name
    for name in NAMES:
        if name.startswith("experiments/"):
            assert name.replace("README.md", "index.html").replace(".md", ".html") in start, name


def test_formulas_are_drawn_by_the_browser_itself(site):
    page = (site / "theory.html").read_text(encoding="utf-8")
    assert page.count("<math") > 20
    assert "arithmatex" not in page


def test_the_pages_that_are_made_say_what_the_code_does(site):
    commands = (site / "cli.html").read_text(encoding="utf-8")
    for name, app in (("realrun", realrun_app), ("shmsim", shmsim_app)):
        for word in typer.main.get_command(app).commands:
            assert f"{name} {word}" in commands
    keys = (site / "configuration.html").read_text(encoding="utf-8")
    for section in ("engine", "handoff", "cores", "workload", "device", "payload"):
        for key in vars(getattr(RunConfig(), section)):
            assert f"<code>{key.removesuffix('_ns')}</code>" in keys
    costs = (site / "profile.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in costs for name in COSTS)
    columns = (site / "records.html").read_text(encoding="utf-8")
    for name in (*WaitRow._fields, *ProcessRow._fields):
        assert f"<code>{name}</code>" in columns


def test_no_marker_is_left(site):
    for path in site.rglob("*.html"):
        assert "<!-- made:" not in path.read_text(encoding="utf-8")
