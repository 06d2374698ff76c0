"""Reports as a reader meets them: at a desk, on a telephone, with the keyboard, in the dark."""

from itertools import pairwise

import pytest

from realrun.report import write_report
from tests.real.browser import Browser, needs_chromium
from tests.report_folders import HOSTILE, write_grid, write_run, write_validation

pytestmark = [pytest.mark.real, pytest.mark.timeout(120), needs_chromium]

DESK, TELEPHONE = 1280, 390
LETTERS_PX = 9.0  # the least that letters of a picture may have; they are drawn with 8 or more
DRAWN_PT = 8.0
FOLDERS = {"validation": write_validation, "grid": write_grid, "run": write_run}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module", params=FOLDERS)
def page(request, tmp_path_factory):
    return write_report(FOLDERS[request.param](tmp_path_factory.mktemp(request.param) / "run"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return write_report(write_validation(tmp_path_factory.mktemp("hostile") / "run", HOSTILE))


def overflow(browser):
    """How many pixels of the page lie beyond the right edge, and the widest elements there."""
    return browser.evaluate(
        """(() => {
          const width = document.documentElement.clientWidth;
          const beyond = [...document.body.querySelectorAll('*')]
            .filter(e => !e.closest('svg') && e.getBoundingClientRect().right > width + 1)
            .map(e => e.outerHTML.slice(0, 80));
          return [document.documentElement.scrollWidth - width, beyond.slice(0, 3)];
        })()"""
    )


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_nothing_lies_beyond_the_edge_and_nobody_complains(browser, page, width):
    browser.open(page, width)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert overflow(browser) == [0, []]
    assert browser.complaints == []


def test_the_page_asks_for_nothing_else(browser, page):
    browser.open(page, DESK)
    assert browser.loaded == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_every_picture_is_there_once_with_letters_that_can_be_read(browser, page, width):
    browser.open(page, width)
    figures = browser.evaluate(
        """[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')]
             .filter(s => s.getClientRects().length)
             .map(s => [s.clientWidth, s.clientHeight, s.viewBox.baseVal.width,
                        s.querySelector('title').textContent.length,
                        s.querySelector('desc').textContent.length]))"""
    )
    assert figures
    for shown in figures:
        ((wide, high, drawn, n_title, n_about),) = shown
        assert wide > 200
        assert high > 80
        assert n_title > 10
        assert n_about > 20
        assert DRAWN_PT * wide / drawn >= LETTERS_PX


def test_headings_go_down_one_at_a_time_and_the_verdict_comes_first(browser, page):
    browser.open(page, DESK)
    headings = browser.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => [+h.tagName[1], h.innerText])"
    )
    levels = [level for level, _ in headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    seconds = [text for level, text in headings if level == 2]
    assert seconds[0] == "Verdict"
    assert seconds[-1] == "Limits"


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, page, width):
    browser.open(page, width)
    wanted = browser.evaluate(
        "[...document.querySelectorAll('a[href], summary')].map(e => e.innerText)"
    )
    reached = []
    for _ in wanted:
        browser.press("Tab")
        text, outline, left, right, inside = browser.evaluate(
            """(() => { const e = document.activeElement, r = e.getBoundingClientRect();
                 return [e.innerText, getComputedStyle(e).outlineStyle, r.left, r.right,
                         r.top >= 0 && r.bottom <= innerHeight]; })()"""
        )
        reached.append(text)
        assert outline == "solid"
        assert inside
        assert left >= 0
        assert right <= width
    assert reached == wanted


def test_the_first_key_skips_to_the_verdict(browser, page):
    browser.open(page, TELEPHONE)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#verdict"


_CONTRASTS = """(() => {
  const parts = text => text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = text => { const [r, g, b] = parts(text); return .2126*r + .7152*g + .0722*b; };
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.endsWith(', 0)')) return colour;
    }
  };
  return [...document.querySelectorAll('p,a,th,td,dt,strong,span,caption,figcaption,li,summary')]
    .filter(e => e.getClientRects().length)
    .map(e => { const both = [light(getComputedStyle(e).color), light(ground(e))].sort();
                return (Math.max(...both) + .05) / (Math.min(...both) + .05); });
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_by_day_and_by_night(browser, page, dark):
    browser.open(page, DESK, dark=dark)
    assert min(browser.evaluate(_CONTRASTS)) >= 4.5  # WCAG 2.2, 1.4.3


def test_pictures_follow_the_page_into_the_dark(browser, page):
    line = "document.querySelector('figure svg path[style*=\\'stroke: var(--ink\\']')"
    used = f"getComputedStyle({line}).stroke"
    browser.open(page, DESK)
    by_day = browser.evaluate(used)
    browser.open(page, DESK, dark=True)
    by_night = browser.evaluate(used)
    assert by_day != by_night
    assert by_night == browser.evaluate("getComputedStyle(document.body).color")


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_names_from_a_file_stay_names(browser, hostile, width):
    browser.open(hostile, width)
    assert browser.evaluate("window.hit") is None
    assert browser.evaluate("document.querySelectorAll('script,img,b,iframe,object').length") == 0
    assert HOSTILE[0] in browser.evaluate("document.body.innerText")
    assert overflow(browser) == [0, []]
    assert browser.complaints == []
    assert browser.loaded == [hostile.resolve().as_uri()]


def test_a_script_would_not_run_even_if_one_came_in(browser, page, tmp_path):
    broken = tmp_path / "broken.html"
    text = page.read_text().replace("<main>", "<main><script>window.hit = 1</script>")
    broken.write_text(text)
    browser.open(broken, DESK)
    assert browser.evaluate("window.hit") is None
    assert browser.complaints  # that a script was refused: the console is really heard
