import math
import re

import numpy as np
import pytest

from shmsim.tape import Tape
from shmsim.units import MS, S
from shmsim.workload import (
    AZURE_CONVERSATION_OUTPUT,
    AZURE_CONVERSATION_PROMPT,
    Lengths,
    Request,
    Workload,
    closed_loop,
    open_loop,
    read_trace,
)

N = 20_000
TEN = Lengths(10, 10, 100)


def gaps_ns(workload):
    return np.diff([0, *(request.arrival_ns for request in workload.requests)]).astype(float)


# Arrivals.


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness):
    rate_per_s = 5.53
    gaps = gaps_ns(open_loop(N, rate_per_s, burstiness, TEN, TEN, Tape(1)))
    mean_ns, cv = S / rate_per_s, 1 / math.sqrt(burstiness)
    assert abs(gaps.mean() - mean_ns) < 4 * cv * mean_ns / math.sqrt(N)
    # Delta method with skewness 2/sqrt(k) and kurtosis 3 + 6/k of the Gamma law.
    standard_error = cv * math.sqrt((1 + 1 / burstiness) / (2 * N))
    assert abs(gaps.std() / gaps.mean() - cv) < 4 * standard_error


def test_gaps_of_burstiness_one_are_exponential():
    gaps = np.sort(gaps_ns(open_loop(N, 100.0, 1.0, TEN, TEN, Tape(2))))
    cdf = -np.expm1(-gaps / (10 * MS))
    distance = np.abs(cdf - (np.arange(N) + 0.5) / N).max()
    assert distance < 2.23 / math.sqrt(N)  # Kolmogorov: exceeded in one of 10,000 seeds


def test_requests_are_in_order_of_arrival():
    assert gaps_ns(open_loop(1000, 1e6, 0.01, TEN, TEN, Tape(1))).min() >= 0


def test_changing_the_rate_leaves_the_lengths_and_the_pattern_of_arrivals_alone():
    prompt, output = AZURE_CONVERSATION_PROMPT, AZURE_CONVERSATION_OUTPUT
    slow = open_loop(100, 1.0, 1.0, prompt, output, Tape(1)).requests
    fast = open_loop(100, 10.0, 1.0, prompt, output, Tape(1)).requests
    assert [r[1:] for r in slow] == [r[1:] for r in fast]
    for one, other in zip(slow, fast, strict=True):
        assert abs(one.arrival_ns / 10 - other.arrival_ns) <= 1


def test_a_closed_loop_has_no_arrivals_of_its_own():
    workload = closed_loop(50, 4, TEN, TEN, Tape(1))
    assert workload.concurrency == 4
    assert workload.requests == (Request(0, 10, 10),) * 50
    assert workload.n_output_tokens == 500


# Lengths.


@pytest.mark.parametrize("law", [AZURE_CONVERSATION_PROMPT, AZURE_CONVERSATION_OUTPUT])
def test_lengths_have_the_two_quantiles_they_are_given_by(law):
    n = 100_000
    drawn = np.array(law.draw(n, np.random.default_rng(1)))
    for p, quantile in ((0.50, law.p50), (0.95, law.p95)):
        standard_error = math.sqrt(p * (1 - p) / n)
        # Lengths are whole numbers, so the share at or below one is at least p.
        assert (drawn < quantile).mean() < p + 4 * standard_error
        assert (drawn <= quantile).mean() > p - 4 * standard_error


def test_lengths_stay_within_one_and_the_longest():
    drawn = Lengths(2, 40, 50).draw(N, np.random.default_rng(1))
    assert min(drawn) == 1
    assert max(drawn) == 50


def test_equal_quantiles_are_a_constant():
    assert set(Lengths(7, 7, 100).draw(100, np.random.default_rng(1))) == {7}


# Traces.

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = (
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:46.6805900,396,109\n"
    "2023-11-16 18:15:48.1805900,91,16\n"
    "2023-11-16 18:15:50.6805901,5,1\n"
)


@pytest.fixture
def trace(tmp_path):
    def write(text):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def test_a_trace_is_read_from_its_first_row_on_to_the_nanosecond(trace):
    assert read_trace(trace(HEADER + ROWS)) == Workload(
        (
            Request(0, 374, 44),
            Request(0, 396, 109),
            Request(1_500_000_000, 91, 16),
            Request(4_000_000_100, 5, 1),
        )
    )


def test_the_later_format_with_offset_more_columns_and_a_byte_order_mark_reads_alike(trace):
    text = (HEADER + ROWS).replace("00,", "00+00:00,").replace("01,5", "01+00:00,5")
    extra = "".join(f"{line},x\n" for line in text.splitlines())
    assert "+00:00" in extra
    assert read_trace(trace("\ufeff" + extra)) == read_trace(trace(HEADER + ROWS))


def test_a_window_holds_its_start_and_not_its_end_and_counts_from_its_start(trace):
    path = trace(HEADER + ROWS)
    window = read_trace(path, start_ns=1500 * MS, duration_ns=2_500_000_100)
    assert window.requests == (Request(0, 91, 16),)
    window = read_trace(path, start_ns=1 * S, duration_ns=2_500_000_101 + 500 * MS)
    assert [r.arrival_ns for r in window.requests] == [500 * MS, 3_000_000_100]


def test_speed_divides_the_arrivals_after_the_window_is_cut(trace):
    path = trace(HEADER + ROWS)
    window = read_trace(path, start_ns=1 * S, duration_ns=1 * S, speed=2.0)
    assert window.requests == (Request(250 * MS, 91, 16),)


def test_at_most_so_many_requests_are_taken_and_what_follows_is_not_even_read(trace):
    path = trace(HEADER + ROWS + "rubbish,1,1\n")
    assert len(read_trace(path, max_requests=3).requests) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
            "column GeneratedTokens is missing; a trace has the columns TIMESTAMP, ContextTokens, "
            "GeneratedTokens, this file has TIMESTAMP, ContextTokens",
        ),
        ("", "column TIMESTAMP, ContextTokens, GeneratedTokens is missing"),
        (
            HEADER + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45.9,1,1\n",
            "trace.csv, line 3: TIMESTAMP 2023-11-16 18:15:45.9 is earlier than the row before; "
            "sort the trace by time",
        ),
        (
            HEADER + "2023-11-16 18:15:46,1,0\n",
            "trace.csv, line 2: GeneratedTokens must be a whole number of at least 1, got '0'",
        ),
        (
            HEADER + "2023-11-16 18:15:46,1.5,1\n",
            "trace.csv, line 2: ContextTokens must be a whole number of at least 1, got '1.5'",
        ),
        (
            HEADER + "2023-11-16 18:15:46,1\n",
            "trace.csv, line 2: GeneratedTokens must be a whole number of at least 1, got ''",
        ),
        (
            HEADER + "yesterday,1,1\n",
            "trace.csv, line 2: TIMESTAMP 'yesterday' is no date and time as in "
            "'2023-11-16 18:15:46.6805900'",
        ),
        (HEADER + ",1,1\n", "trace.csv, line 2: TIMESTAMP '' is no date and time"),
        (HEADER, "trace.csv has a header and no row below it"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named_with_its_line_and_the_way_out(trace, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_trace(trace(text))


def test_a_window_without_a_request_is_refused(trace):
    path = trace(HEADER + ROWS)
    with pytest.raises(ValueError, match="no request in the window that starts 9 s after"):
        read_trace(path, start_ns=9 * S)
    with pytest.raises(ValueError, match=r"starts 2 s after the first row and lasts 0\.5 s"):
        read_trace(path, start_ns=2 * S, duration_ns=500 * MS)
