import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.inputs.rows import InputError, Loaded, Row, read_csv, read_json, read_jsonl
from shmsim.inputs.samples import Samples
from shmsim.units import MS, S


def row(**cells):
    return Row("some.csv, line 7", cells)


@pytest.mark.parametrize("value", ["3", " 3 ", 3, "3.0", "3e0"])
def test_a_number_is_read_from_text_and_from_json(value):
    assert row(x=value).whole("x") == 3
    assert row(x=value).number("x") == 3.0


@pytest.mark.parametrize(
    "value", ["", "three", "nan", "NaN", "inf", "-1", "1_0", None, True, [3], {}, "0x3"]
)
def test_what_is_no_number_within_its_range_is_refused_with_its_place(value):
    for read in (row(x=value).whole, row(x=value).number, row(x=value).instant_ns):
        with pytest.raises(
            InputError, match=r"some\.csv, line 7: x must be a.* of at least 0, got"
        ):
            read("x")


def test_a_fraction_is_no_whole_number_and_a_range_is_named():
    with pytest.raises(InputError, match=r"x must be a whole number of at least 1, got '2\.5'"):
        row(x="2.5").whole("x", 1)
    with pytest.raises(InputError, match="x must be a number from 0 to 100, got '101'"):
        row(x="101").number("x", 0, 100)
    with pytest.raises(InputError, match=r"name must be a text, got '  '"):
        row(name="  ").text("name")


@given(st.integers(0, 2 * 10**18))
def test_a_time_stamp_of_seconds_since_1970_is_exact_to_the_nanosecond(instant_ns):
    text = f"{instant_ns // S}.{instant_ns % S:09d}"
    assert row(x=text).instant_ns("x") == instant_ns
    assert row(x=str(instant_ns // MS)).instant_ns("x", MS) == instant_ns // MS * MS


def written(tmp_path, text, name="file.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_of_a_csv_know_their_line_and_an_index_without_a_name_is_no_column(tmp_path):
    path = written(tmp_path, "\ufeff,a,b\n0,1,2\n1,3,4\n")
    rows = list(read_csv(path, ["a", "b"]))
    assert [(r.whole("a"), r.whole("b")) for r in rows] == [(1, 2), (3, 4)]
    assert rows[1].where == f"{path}, line 3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", "column b is missing; this has a, c"),
        ("a,bb\n1,2\n", r"column b is missing; did you mean bb\?; this has a, bb"),
        ("", "column a, b is missing; this has none"),
        ("a,b\n1\n", "line 2: this row has not 2 cells as the header"),
        ("a,b\n1,2,3\n", "line 2: this row has not 2 cells as the header"),
        ('a,b\n"1,2\n', "is not a CSV file in UTF-8"),
        (b"a,b\n\xff,2\n", "is not a CSV file in UTF-8"),
    ],
)
def test_a_csv_of_another_shape_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        list(read_csv(written(tmp_path, text), ["a", "b"]))


def test_a_file_that_is_not_there_is_named(tmp_path):
    for read in (lambda p: list(read_csv(p, [])), lambda p: list(read_jsonl(p)), read_json):
        with pytest.raises(InputError, match=r"cannot read .*absent: No such file"):
            read(tmp_path / "absent")


def test_lines_of_json_may_be_blank_and_keep_their_number(tmp_path):
    path = written(tmp_path, '{"a": 1}\n\n{"a": 2.5}\n')
    rows = list(read_jsonl(path))
    assert [r.number("a") for r in rows] == [1.0, 2.5]
    assert rows[1].where == f"{path}, line 3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]\n", r"line 1: must be a JSON object, got \[1\]"),
        ('{"a": NaN}\n', "line 1: not JSON: NaN is no number"),
        ('{"a": 1}\n{"a"\n', "line 2: not JSON"),
        (b"\xff\n", "is not text in UTF-8"),
    ],
)
def test_what_is_no_line_of_json_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        list(read_jsonl(written(tmp_path, text)))


def test_a_missing_field_is_named_with_the_nearest_one(tmp_path):
    path = written(tmp_path, json.dumps({"input_len": 3}))
    with pytest.raises(InputError, match=r"column input_lens is missing; did you mean input_len\?"):
        read_json(path).whole("input_lens")


def test_what_was_left_out_is_counted_and_said():
    assert Loaded(None, 5).account() == "5 of 5 rows used"
    loaded = Loaded(None, 5, {"another GPU": 2, "failed": 1}, ("no head",))
    assert loaded.account() == (
        "2 of 5 rows used; 2 skipped: another GPU; 1 skipped: failed; no head"
    )


# Samples.

PAIRS = st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9)), min_size=1, max_size=9)


@given(PAIRS, st.data())
def test_samples_are_linear_between_sizes_and_level_below(pairs, data):
    by_size = dict(pairs)
    samples = Samples.of("t", by_size.items())
    size = data.draw(st.integers(0, max(by_size)))
    xs = sorted(by_size)
    low, high = max([x for x in xs if x <= size], default=xs[0]), min(x for x in xs if x >= size)
    ends = sorted((by_size[low], by_size[high]))
    assert ends[0] * (1 - 1e-12) <= samples.at(size) <= ends[1] * (1 + 1e-12)
    for x in xs:
        assert samples.at(x) == pytest.approx(by_size[x], rel=1e-12)


def test_of_several_samples_at_one_size_the_median_counts_and_none_is_made_up():
    samples = Samples.of("copy by bytes", [(4, 9.0), (2, 1.0), (4, 2.0), (4, 3.0)])
    assert samples.at(3) == 2.0
    with pytest.raises(InputError, match="copy by bytes was measured up to 4, and 5 is asked for"):
        samples.at(5)
    with pytest.raises(InputError, match="no row for copy"):
        Samples.of("copy", [])
