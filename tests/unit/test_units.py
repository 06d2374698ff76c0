import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.units import FOREVER_NS, MS, NS, US, S, format_ns, parse_duration_ns

UNITS = {"ns": NS, "us": US, "µs": US, "ms": MS, "s": S, "min": 60 * S}


@given(st.integers(-(10**15), 10**15), st.sampled_from([*UNITS]), st.sampled_from(["", " "]))
def test_a_whole_number_of_a_unit_is_that_many_of_its_nanoseconds(number, unit, space):
    assert parse_duration_ns(f"{number}{space}{unit}") == number * UNITS[unit]


@given(st.integers(-(10**15), 10**15))
def test_microseconds_with_three_decimals_are_exact(ns):
    sign, us, rest = "-" if ns < 0 else "", *divmod(abs(ns), 1000)
    assert parse_duration_ns(f"{sign}{us}.{rest:03}us") == ns


@given(st.integers(0, 10**18))
def test_what_is_printed_reads_back_within_its_digits(ns):
    back = parse_duration_ns(format_ns(ns, 6))
    assert abs(back - ns) <= 0.5e-5 * ns


@given(st.integers(1, 999), st.sampled_from(["ns", "µs", "ms"]))
def test_a_short_number_prints_as_it_was_written(number, unit):
    assert format_ns(number * UNITS[unit]) == f"{number} {unit}"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999.4, "999 ns"),
        (999.6, "1 µs"),  # and not "1e+03 ns"
        (-1_960_000, "-1.96 ms"),
        (90 * S, "90 s"),
        (float("nan"), "nan ns"),
        (float("-inf"), "-inf s"),
    ],
)
def test_a_duration_prints_in_the_unit_a_person_would_choose(ns, text):
    assert format_ns(ns) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("50", "duration '50' has no unit; write one of ns, us, µs, ms, s, min, as in '50us'"),
        ("5 h", "duration '5 h' has the unknown unit 'h'; write one of ns, us, µs, ms, s, min"),
        ("1.5ns", "duration '1.5ns' is not a whole number of nanoseconds"),
        ("soon", "'soon' is not a duration; write a number and a unit, as in '50us'"),
        ("", "'' is not a duration"),
        ("1e3us", "'1e3us' is not a duration"),
        ("5 5us", "'5 5us' is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_way_out(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_duration_ns(text)


def test_forever_can_be_added_to_an_instant_and_stays_within_64_bits():
    assert FOREVER_NS + 100 * 365 * 86_400 * S < 2**63
