"""The paper: every number is of a stored record, and the text names nothing that is not there."""

import doctest
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from paper import wording
from paper.build import build, check, generated
from paper.document import Known, chosen, named, sources, unknown
from paper.pictures import PICTURES, draw
from paper.protocol import properties
from paper.records import EXPERIMENTS, HERE, Records
from paper.reproduce import page
from paper.results import of_claim
from paper.tables import TABLES, learnt
from paper.typeset import TypesetError, bibliography_faults, faults, is_there, typeset
from shmsim.claims import Claim, write_claims

PAGES = range(10, 13)
AGAIN = "bring it up to date with: .venv/bin/python -m paper --no-pdf"
REPLACED = tomllib.loads((HERE / "replaced.toml").read_text())
needs_latex = pytest.mark.skipif(not is_there(), reason="latexmk and pdflatex are not installed")


@pytest.fixture(scope="module")
def records():
    return Records()


# The stored records.


def test_numbers_tables_and_the_map_are_those_of_the_stored_records(records):
    expected = generated(records)
    kept = {path.relative_to(HERE) for path in (HERE / "generated").iterdir()}
    assert kept | {Path("REPRODUCE.md")} == set(expected), AGAIN
    for path, text in expected.items():
        assert (HERE / path).read_text() == text, f"{path} is older than its records: {AGAIN}"


def test_the_text_names_nothing_that_is_not_there(records):
    check(records)


def test_every_table_and_picture_is_named_somewhere_in_the_text():
    assert named(HERE, "usetable") == {*TABLES, "protocol", "failed", "holding"}
    assert named(HERE, "usepicture") == set(PICTURES)


def test_what_is_said_of_protocols_is_shown_by_tests_that_are_there():
    folder = EXPERIMENTS.parent / "tests" / "protocol"
    there = {path.name: path.read_text() for path in folder.glob("test_*.py")}
    for each in properties():
        assert each.shown_by
        assert each.broken_in
        for test in each.tests:
            file, name = test.split("::")
            assert f"def {name}(" in there[file], test


def test_of_every_claim_that_fails_it_is_said_what_was_learnt(records):
    failing = {name for name in records.sources if not all(c.holds for c in records.claims(name))}
    assert failing <= set(learnt()), "say it in paper/learnt.toml"
    assert set(learnt()) <= set(records.sources)


def test_every_table_of_the_text_is_made():
    for path in sources(HERE):
        assert "begin{tabular}" not in path.read_text(), f"{path.name} has a table typed by hand"


def test_whoever_is_cited_for_a_number_is_in_the_bibliography_and_in_the_text():
    bibliography = (HERE / "references.bib").read_text()
    text = "\n".join(path.read_text() for path in sources(HERE))
    results = named(HERE, "result")
    for line in (HERE / "cited.toml").read_text().splitlines():
        if line.startswith("source"):
            source = line.split('"')[1]
            assert f"{{{source}," in bibliography
            assert source in text
        if line.startswith("["):
            assert f"cited/{line.strip('[]')}" in results


@pytest.mark.parametrize("name", REPLACED)
def test_a_number_of_a_record_that_was_replaced_is_in_its_commit(name):
    of = REPLACED[name]
    assert f"replaced/{name}" in named(HERE, "result")
    shown = subprocess.run(
        ["git", "show", f"{of['commit']}:{of['file']}"],
        cwd=HERE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if shown.returncode:
        pytest.skip("no history of the project here")
    for words in of["words"]:
        assert words in shown.stdout, words


#: A measured quantity: a number with a decimal point, or a range, and its unit.
MEASURED = re.compile(r"\d+\.\d+\\,(ms|s|\\%|\\textmu)|\d+ to \d+\\,(ms|s|\\%|\\textmu)")


def test_what_was_measured_is_no_number_in_the_text():
    allowed = {"1 to 20\\,ms", "1 to 100\\,ms"}  # of plans: step times
    found = [
        (path.name, match[0])
        for path in sources(HERE)
        for match in MEASURED.finditer(path.read_text())
        if not match[0].startswith(tuple(allowed))
    ]
    assert found == []


def test_the_text_says_nothing_of_whose_machine_it_was(records):
    made = "\n".join(generated(records).values())
    for name in records.sources:
        assert str(records.machine(name)["kernel"]) not in made


def test_every_record_that_is_listed_names_a_script_that_is_there(records):
    for source in records.sources.values():
        program, script = source.command.split()[:2]
        if program == "python":
            assert (EXPERIMENTS.parent / script).is_file(), source.command
        else:
            assert (program, script) in {("realrun", "vllm-ab"), ("realrun", "vllm-soak")}


def test_one_command_runs_all_of_them_again(records):
    done = subprocess.run(
        ["make", "-n", "reproduce"],
        cwd=EXPERIMENTS.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "python experiments/run.py all" in done.stdout
    for name, source in records.sources.items():
        if source.command.startswith("python experiments/bench"):
            assert source.command in done.stdout, name


def test_every_file_of_claims_is_listed_so_that_none_that_fails_is_left_out(records):
    found = {
        str(path.relative_to(EXPERIMENTS))
        for path in EXPERIMENTS.glob("*/results/*.json")
        if "claims" in (stored := json.loads(path.read_text())) and "machine" in stored
    }
    assert found == {source.claims for source in records.sources.values()}
    ids = [claim.id for name in records.sources for claim in records.claims(name)]
    assert len(ids) == len(set(ids))


def test_an_interval_is_never_printed_beside_its_value(records):
    def told(text):
        return float(text.replace("$-$", "-").replace("\\,", ""))

    for name in records.sources:
        for c in records.claims(name):
            if c.low <= c.value <= c.high:
                low, high = wording.interval(c.value, c.low, c.high, "ratio").split(" to ")
                value = wording.quantity(c.value, "ratio")
                assert told(low) <= told(value) <= told(high), c.id


def test_the_map_says_of_a_record_which_code_made_it_and_when(records):
    text = page(records)
    origin = records.origins("08_oversubscription")[0]
    assert f"`{origin.commit[:9]}` | {origin.started[:10]}" in text
    edited = [name for name in records.sources if any(o.dirty for o in records.origins(name))]
    assert text.count(", edited") == len(edited)


def test_the_commit_that_made_a_record_is_in_the_history(records):
    made = {o.commit for name in records.sources for o in records.origins(name)}

    def git(*arguments):
        return subprocess.run(
            ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False
        )

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no whole history of the project here")
    for commit in made:
        # That git still knows it is not enough: it may hang on nothing, and be gone in a clone.
        is_there = git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
        assert is_there, f"{commit}: run its record again from a clean checkout"


def test_the_same_records_give_the_same_pictures_to_the_byte(tmp_path):
    records = Records()
    records.sources = {"bench/model": records.sources["bench/model"]}
    first, second = (draw(records, tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


# Records that are not there, and those that nobody listed.


@pytest.mark.parametrize(
    "name", ["08_oversubscription", "bench/kills", "bench/policies", "bench/soak"]
)
def test_a_record_that_is_not_there_takes_its_section_with_it(name):
    without = Records()
    without.sources.pop(name, None)
    check(without)


def test_an_experiment_that_nobody_listed_is_found_with_its_title_command_and_time(tmp_path):
    results = tmp_path / "04_distance_to_bound" / "results"
    claim = Claim("bound/worst", 0.5, 0.4, 0.6, "share", 0.9, ">=", 7, 3)
    write_claims(results / "claims.json", {"cpu": "x", "cores": 2}, [claim])
    record = {
        "nodes": {"here": {"seconds": 240.0}},
        "cells": [{"world": "machine"}, {"world": "model"}],
    }
    (results / "record.json").write_text(json.dumps(record))
    source = Records(tmp_path).sources["04_distance_to_bound"]
    assert source.command == "python experiments/run.py 04_distance_to_bound"
    assert (source.takes, source.runs) == ("4 min", "the model and real processes")
    assert source.title
    assert not source.title[0].isdigit()


# What stops a build.

KNOWN = Known({"a/b"}, {"t"}, {"p"}, {"01_x"}, {"c/holds": True, "c/fails": False})


def texts(tmp_path, text):
    (tmp_path / "main.tex").write_text(text)
    return list(unknown(tmp_path, KNOWN))


def test_an_unknown_name_is_told_with_the_nearest_known_one(tmp_path):
    (line,) = texts(tmp_path, r"\result{a/b} and \result{a/c}")
    assert line == "main.tex: unknown result 'a/c'; did you mean 'a/b'?"


@pytest.mark.parametrize("name", [r"\usetable{x}", r"\usepicture{x}", r"\result{x}"])
def test_a_table_a_picture_and_a_number_must_all_be_there(tmp_path, name):
    assert len(texts(tmp_path, name)) == 1
    assert not texts(tmp_path, f"% {name}")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r"\recorded{01_x}{yes}{no}", "yes"),
        (r"\recorded{02_x}{\result{x}}{no}", "no"),
        (r"\held{c/holds}{yes}{no} \held{c/fails}{yes}{no}", "yes no"),
        (r"\recorded{01_x}{\held{c/fails}{\{}{a {b} c}}{}", "a {b} c"),
        ("\\recorded{01_x}%\n {yes}\n{no}", "yes"),
        (r"50\,\% of it", r"50\,\% of it"),
    ],
)
def test_only_the_branch_that_is_chosen_is_read(text, left):
    assert chosen(text, KNOWN) == left


def test_an_unknown_claim_stops_the_build_whatever_it_would_choose():
    with pytest.raises(ValueError, match="did you mean 'c/holds'"):
        chosen(r"\held{c/hold}{}{}", KNOWN)


def test_a_brace_that_is_not_closed_is_said():
    with pytest.raises(ValueError, match="not closed"):
        chosen(r"\held{c/holds}{a", KNOWN)


def test_a_log_is_searched_for_what_a_reader_would_stumble_over():
    log = """
Overfull \\hbox (3.1pt too wide) in paragraph at lines 2--9
Underfull \\hbox (badness 1000) in paragraph
LaTeX Warning: Reference `fig:x' on page 1 undefined on input line 3.
Package natbib Warning: Citation `x' on page 1 undefined on input line 4.
LaTeX Warning: There were undefined references.
LaTeX Warning: Label `fig:y' multiply defined.
"""
    assert len(faults(log)) == 5


def test_a_warning_of_bibtex_is_a_fault(tmp_path):
    log = tmp_path / "main.blg"
    assert bibliography_faults(log) == []
    log.write_text("This is BibTeX\nWarning--empty year in x\n")
    assert bibliography_faults(log) == ["Warning--empty year in x"]


@pytest.mark.parametrize(("unit", "text"), [("ns", "48\\,\\textmu{}s"), ("ratio", "48\\,000")])
def test_a_claim_is_written_in_its_unit(unit, text):
    claim = Claim("a/b", 48_000.0, 44_000.0, 51_000.0, unit, 60_000, "<=", 3, 1)
    found = of_claim(claim)
    assert found["a/b"] == text
    assert found["a/b/verdict"] == "holds"
    assert ("a/b/percent" in found) == (unit == "ratio")


def test_numbers_are_written_as_the_examples_say():
    assert doctest.testmod(wording).failed == 0


# With LaTeX.


@needs_latex
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_paper_builds_without_a_fault_on_ten_to_twelve_pages_of_text(records, tmp_path):
    assert build(records, tmp_path) in PAGES


@needs_latex
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (r"\result{nobody/knows}", "unknown result `nobody/knows'"),
        (r"\held{nobody/knows}{a}{b}", "unknown claim `nobody/knows'"),
        (r"See \ref{nowhere}.", "undefined"),
        (r"As \citet{nobody} says.", "undefined"),
        (r"\noindent\rule{8in}{1pt}", "Overfull"),
    ],
)
def test_latex_itself_stops_at(tmp_path, body, said):
    preamble = (HERE / "main.tex").read_text().partition(r"\input{generated/results}")[0]
    bibliography = "\n\\bibliographystyle{plainnat}\n\\bibliography{references}\n"
    (tmp_path / "main.tex").write_text(
        f"{preamble}\\begin{{document}}\n{body}\\nocite{{vidur2024}}{bibliography}\\end{{document}}\n"
    )
    shutil.copy(HERE / "references.bib", tmp_path)
    with pytest.raises(TypesetError, match=said):
        typeset(tmp_path)
