"""Reports: what is in a page, and that no file can put anything else into it."""

import html
import json
import math
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from realrun.cli import app
from realrun.report import disturbed_in, write_report
from realrun.report.html import Html, element, escaped, table
from realrun.report.parts import quoted
from realrun.report.replays import typical_plan
from realrun.report.stored import policy_of, read_validation
from realrun.spec import policy_to_json
from shmsim.policies import PRESETS, WakeAhead
from shmsim.policies.wrappers import Clamped
from shmsim.wait import DOZE, REHEARSE, SPIN, TYPICAL_COSTS
from tests.report_folders import (
    HOSTILE,
    comparison,
    records_of,
    write_grid,
    write_run,
    write_validation,
)
from tests.report_folders import table as figures_of

#: Whatever a page may consist of; anything else came out of a file.
ELEMENTS = set(
    re.findall(
        r"\w+",
        "a body caption clippath code dd defs desc details div dl dt figcaption figure g h1 h2 h3 "
        "head header html li main meta nav p path pattern pre rect section span strong style "
        "summary svg table tbody td th thead title tr ul use",
    )
)
FOLDERS = {"validation": write_validation, "grid": write_grid, "run": write_run}


@pytest.fixture(scope="module", params=FOLDERS)
def whole(request, tmp_path_factory):
    """A folder of every kind, and its page with all pictures."""
    folder = FOLDERS[request.param](tmp_path_factory.mktemp(request.param) / "run")
    return folder, write_report(folder).read_text()


@pytest.fixture
def bare(monkeypatch):
    """Pages without what takes time: their pictures are empty."""
    monkeypatch.setattr("realrun.report.pictures.inline_svg", lambda *_: "<svg></svg>")


class Page(HTMLParser):
    """A page taken apart as a browser would."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append(name)
        self.attributes += [(name, key, value) for key, value in attributes]

    def handle_data(self, data):
        self.words.append(data)

    def values(self, key):
        return [value for _, k, value in self.attributes if k == key]

    @property
    def text(self):
        return " ".join(self.words)


def page_of(folder):
    return Page(write_report(folder).read_text())


# What is in it.


def test_a_page_is_one_file_that_points_nowhere_else(whole):
    page = Page(whole[1])
    assert set(page.elements) <= ELEMENTS
    ids = page.values("id")
    assert len(set(ids)) == len(ids)
    for value in page.values("href") + page.values("xlink:href"):
        assert value.startswith("#")
        assert value[1:] in ids
    for name in " ".join(page.values("aria-labelledby")).split():
        assert name in ids
    assert not [key for _, key, _ in page.attributes if key.startswith("on") or key == "src"]
    urls = re.findall(r"url\(([^)]*)\)", " ".join(v or "" for _, _, v in page.attributes))
    assert all(url[0] == "#" and url[1:] in ids for url in urls)


def test_the_verdict_comes_first_and_the_limits_last(whole):
    page = Page(whole[1])
    sections = [v for name, key, v in page.attributes if (name, key) == ("section", "id")]
    assert sections == ["verdict", "evidence", "again", "limits"]


def test_the_same_folder_gives_the_same_page(whole, tmp_path):
    folder, first = whole
    assert write_report(folder, tmp_path / "new" / "again.html").read_text() == first


def test_the_figures_of_a_validation_are_those_of_its_file(bare, tmp_path):
    folder = write_validation(tmp_path / "run", ("spin", "middle", "tuned"))
    page, stored = page_of(folder), read_validation(folder)
    assert "tuned saves much." in page.text
    assert f"{stored.cores('tuned', 'measured'):.2f} cores" in page.text  # 0.17 + 0.13
    assert f"{stored.cores('tuned', 'measured'):.2f}" == "0.30"
    assert "+4.0 %" in page.text  # 2 * (1 + 2 / 50) against 2 ms
    assert "2.080 ± 0.010" in page.text
    assert "The model foresaw 9 of 9 figures" in page.text


def test_a_figure_beyond_its_margin_is_not_foreseen(bare, tmp_path):
    names = ("spin", "tuned")
    figures = figures_of(names)
    figures["spin"]["tpot_p50_ns"] = comparison(2e6, share=0.051)
    figures["tuned"]["worker_cores"] = comparison(1.0, share=0.051)
    page = page_of(write_validation(tmp_path / "run", names, table=figures))
    assert "The model foresaw 4 of 6 figures" in page.text


def test_the_verdict_of_a_grid_counts_by_quantity(bare, tmp_path):
    text = page_of(write_grid(tmp_path / "run")).text
    assert "2 of 2 hold" in text
    assert "0 of 2 hold" in text
    assert "2 miss, 0 cannot tell" in text
    assert "0 miss, 2 cannot tell" in text


def test_what_nobody_measured_is_none_and_no_picture_fails(tmp_path):
    names = ("spin", "tuned")
    figures = figures_of(names)
    for name in names:
        figures[name]["ttft_after_idle_p50_ns"] = comparison(math.nan)
    assert "none" in page_of(write_validation(tmp_path / "run", names, table=figures)).text


def test_one_policy_has_nobody_to_be_compared_with(bare, tmp_path):
    text = page_of(write_validation(tmp_path / "run", ("spin",))).text
    assert "spin in model and machine" in text
    assert "saves much" not in text


def test_without_records_and_profile_a_page_has_less_and_says_so(bare, tmp_path):
    folder = write_validation(tmp_path / "run")
    whole = page_of(folder).elements.count("figure")
    (folder / "profile.json").unlink()
    assert page_of(folder).elements.count("figure") == whole - 2
    for path in sorted((folder / "records").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    page = page_of(folder)
    assert page.elements.count("figure") == whole - 3
    assert "records of the runs are not here" in page.text


def test_a_lost_wake_up_is_told(bare, tmp_path):
    folder = write_validation(tmp_path / "run")
    records = records_of()
    records.processes[0] = records.processes[0]._replace(rescued=3)
    records.write(folder / "records" / "tuned-0-machine")
    assert "3 wake-ups were lost" in page_of(folder).text


def test_a_busy_box_is_told_in_the_verdict(bare, tmp_path):
    folder = write_validation(tmp_path / "run")
    assert "Disturbed" not in page_of(folder).text
    assert not disturbed_in(folder)
    records = records_of()
    wall_ns = records.processes[0].wall_ns
    records.processes[0] = records.processes[0]._replace(run_queue_ns=wall_ns // 20)
    records.write(folder / "records" / "tuned-0-machine")
    verdict, _, _ = page_of(folder).text.partition("What each policy costs")
    assert "in 1 of 1 runs on the machine" in verdict
    assert disturbed_in(folder) in verdict  # what the command says, too


def test_without_the_config_beside_it_a_command_says_that_one_is_needed(bare, tmp_path):
    folder = write_validation(tmp_path / "run")
    (folder / "config.toml").unlink()
    assert "realrun validate CONFIG.toml -p" in page_of(folder).text


def test_commands_name_presets_and_the_tuned_file(bare, tmp_path):
    folder = write_validation(tmp_path / "a run", ("spin", "vllm-1s", "tuned"))
    (folder / "policy.json").write_text('{"name": "tuned"}')
    text = page_of(folder).text
    tuned = f"'{folder}/policy.json'"
    assert f"--policy spin --policy vllm-1s --policy {tuned} -o" in text


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_a_quoted_word_is_one_word_for_a_shell(text):
    path = Path("runs") / text.strip("/") if text.strip("/") else Path("runs")
    assert shlex.split(quoted(path)) == [str(path)]


# What cannot come into it.


def test_names_from_a_file_stay_text(tmp_path):
    machine = dict.fromkeys(("cpu", "kernel", *HOSTILE), HOSTILE[0]) | {"affinity": [HOSTILE[1]]}
    page = page_of(write_validation(tmp_path / "run", HOSTILE, machine))
    assert set(page.elements) <= ELEMENTS
    assert page.elements.count("style") == 1
    assert not [key for _, key, _ in page.attributes if key.startswith("on") or key == "src"]
    for name in HOSTILE[:3]:
        assert name in page.text


def test_hostile_cells_and_verdicts_stay_text(tmp_path):
    page = page_of(write_grid(tmp_path / "run", HOSTILE))
    assert set(page.elements) <= ELEMENTS
    assert HOSTILE[0] in page.text


@given(st.text(), st.text())
def test_whatever_is_put_into_a_page_comes_out_as_text(text, value):
    page = Page(element("p", text, title=value))
    assert page.elements == ["p"]
    assert page.attributes == [("p", "title", html_text(value))]
    assert "".join(page.words) == html_text(text)


def html_text(text):
    """As a reader gets it: line ends are one character, what cannot be seen is marked."""
    return html.unescape(escaped(text))


def test_only_html_goes_unescaped():
    assert element("p", Html("<b>x</b>"), "<b>") == "<p><b>x</b>&lt;b&gt;</p>"
    assert '<td data-column="&quot;">' in table("c", ["a", '"'], [["x", "y"]])


@pytest.mark.parametrize(
    "content",
    [
        {"module": "os", "name": "system", "fields": {}},
        {"module": "shmsim.policies.os", "name": "WakeAhead", "fields": {}},
        {"module": "shmsim.policies", "name": "check_parameters", "fields": {}},
        {"module": "shmsim.policies", "name": "WakeAhead", "fields": {"unknown": 1}},
        {
            "module": "shmsim.policies.wrappers",
            "name": "Clamped",
            "fields": {"inner": {"name": "x"}},
        },
        {
            "module": "shmsim.wait",
            "name": "Stage",
            "fields": {"kind": 0, "until_ns": 1, "period_ns": 0},
        },
        {"module": 3},
        None,
        "os.system",
    ],
)
def test_no_class_of_somebody_else_is_made(content):
    assert policy_of(content) is None


def test_a_policy_of_ours_is_made_again_with_what_is_in_it():
    wake = {"module": "shmsim.policies", "name": "WakeAhead", "fields": {"guard_ns": 5}}
    assert policy_of(wake) == WakeAhead(5)
    inner = policy_of({"module": "shmsim.policies", "name": "Clamped", "fields": {"inner": wake}})
    assert isinstance(inner, Clamped)
    assert inner.inner == WakeAhead(5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_policy_of_the_library_is_made_again_of_what_a_run_stores_of_it(name):
    stored = json.loads(json.dumps(policy_to_json(PRESETS[name])))
    assert policy_of(stored) == PRESETS[name]


def damaged():
    """Contents of a validation.json that nobody of ours wrote."""
    return [
        "",
        "[]",
        "{}",
        "[" * 5000,
        "\x00",
        json.dumps({"table": 3, "machine": {}, "config": {}}),
        json.dumps(
            {"table": {}, "machine": {}, "config": {"engine": {"workers": 1}, "repeats": 1}}
        ),
        json.dumps(
            {"table": {"x": {}}, "machine": {}, "config": {"engine": {"workers": 1}, "repeats": 1}}
        ),
        json.dumps(
            {"table": {"x": 1}, "machine": [], "config": {"engine": {"workers": 1}, "repeats": 1}}
        ),
    ]


@pytest.mark.parametrize("content", damaged())
@pytest.mark.parametrize("name", ["validation.json", "grid.json", "meta.json"])
def test_a_damaged_file_is_refused_with_its_name(content, name, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("value", [1e400, "x", None, [], {}])
def test_a_figure_that_is_no_number_is_refused(value, tmp_path):
    names = ("spin", "tuned")
    figures = figures_of(names)
    figures["spin"]["tpot_p50_ns"]["measured"] = value
    with pytest.raises(ValueError, match="no validation of this program"):
        write_report(write_validation(tmp_path / "run", names, table=figures))


def test_records_that_contradict_themselves_are_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    records = records_of()
    records.processes.clear()
    records.write(folder)
    with pytest.raises(ValueError, match="run"):
        write_report(folder)


# The plan that is drawn.


def test_the_plan_is_found_again_from_the_records():
    records = records_of("rehearse-ahead")
    gaps_ns, plan = typical_plan(records, PRESETS["rehearse-ahead"], TYPICAL_COSTS)
    assert [stage.kind for stage in plan][:3] == [DOZE, REHEARSE, SPIN]
    n_pending = sum(w.site == 1 and w.call == 1 and w.pending for w in records.waits)
    assert len(gaps_ns) == n_pending


def test_a_policy_that_cannot_plan_has_no_plan():
    assert typical_plan(records_of(), WakeAhead("x"), TYPICAL_COSTS) is None


# The command.


def test_the_command_says_where_the_page_is(bare, tmp_path):
    folder = write_grid(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0
    assert "report.html" in done.output
    assert (folder / "report.html").is_file()


def test_the_command_refuses_a_folder_without_results(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_who_names_a_file_of_a_run_is_told_its_folder(tmp_path):
    write_validation(tmp_path)
    with pytest.raises(ValueError, match=f"is a file of a run; name its folder, {tmp_path}"):
        write_report(tmp_path / "validation.json")
