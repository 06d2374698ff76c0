import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shmsim import metrics
from shmsim.metrics import (
    core_utilisation,
    cores_of,
    cpu_per_token_ns,
    device_utilisation,
    duration_s,
    e2e_ns,
    goodput_per_s,
    host_share,
    itl_ns,
    mean_in_system,
    output_tokens_per_s,
    quantiles,
    queue_ns,
    requests_per_s,
    step_gap_ns,
    step_time_ns,
    summarize,
    total_tokens_per_s,
    tpot_ns,
    ttft_ns,
    wait_cores_of,
    wait_delay_ns,
)
from shmsim.records import CoreRow, ProcessRow, RequestRow, RunRecords, StepRow, WaitRow
from shmsim.units import MS, US, S
from shmsim.wait import SCHEDULER_RECV, WORKER_RECV

REQUESTS = [
    RequestRow(0, 10 * MS, True, 100, 3, [15 * MS, 17 * MS, 21 * MS]),
    RequestRow(1, 12 * MS, False, 50, 1, [21 * MS]),
    RequestRow(2, 20 * MS, False, 10, 2, [25 * MS, 26 * MS]),
]


def test_ttft_is_from_arrival_to_the_first_token():
    assert ttft_ns(REQUESTS).tolist() == [5 * MS, 9 * MS, 5 * MS]


def test_tpot_leaves_the_first_token_out_and_one_token_has_none():
    first, second, third = tpot_ns(REQUESTS)
    assert (first, third) == (3 * MS, 1 * MS)
    assert math.isnan(second)


def test_itl_is_every_gap_between_two_tokens_of_one_request():
    assert itl_ns(REQUESTS).tolist() == [2 * MS, 4 * MS, 1 * MS]
    assert itl_ns(REQUESTS[1:2]).tolist() == []


def test_quantiles_leave_out_what_has_no_value():
    values = np.array([4.0, np.nan, 1.0, 2.0, 3.0, np.nan])
    assert quantiles(values) == (4, 2.5, 2.5, pytest.approx(1 + 0.99 * 3))
    nothing = quantiles(np.array([np.nan]))
    assert nothing.n == 0
    assert all(map(math.isnan, nothing[1:]))


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e15, 1e15)))
def test_quantiles_are_those_of_numpy_bit_for_bit(values):
    assert quantiles(values)[2:] == tuple(np.percentile(values, [50, 99]))


def wait(site, call, pending, started_ns, published_ns, seen_ns):
    return WaitRow(
        "p", site, call, 0, pending, started_ns, published_ns, seen_ns, 0, 0, 0, False, 0
    )


def test_the_delay_of_a_wait_counts_from_its_start_when_the_publication_was_earlier():
    records = RunRecords(
        waits=[
            wait(WORKER_RECV, 0, True, 10 * US, 50 * US, 57 * US),
            wait(WORKER_RECV, 0, True, 60 * US, 20 * US, 61 * US),
            wait(WORKER_RECV, 0, False, 0, 50 * US, 99 * US),  # for an arrival
            wait(WORKER_RECV, 1, True, 0, 50 * US, 53 * US),
            wait(SCHEDULER_RECV, 0, True, 0, 50 * US, 54 * US),
        ]
    )
    assert wait_delay_ns(records, WORKER_RECV).tolist() == [7 * US, 1 * US]
    assert wait_delay_ns(records, WORKER_RECV, call=1).tolist() == [3 * US]
    assert wait_delay_ns(records, SCHEDULER_RECV).tolist() == [4 * US]


def process(name, cpu_ns):
    return ProcessRow(name, 20 * MS, cpu_ns, 0, 0, 0, 0, 0, 0)


def test_the_summary_of_a_run_adds_up_by_hand():
    records = RunRecords(
        steps=[StepRow(i, 1, 0, 0, 0, 0, 0, 0, 0) for i in range(5)],
        requests=REQUESTS,
        processes=[process("scheduler", 5 * MS), process("worker0", 2 * MS), process("worker1", 0)],
    )
    summary = summarize(records)
    assert summary.ttft.mean == pytest.approx((5 + 9 + 5) / 3 * MS)
    assert summary.ttft_after_idle == (1, 5 * MS, 5 * MS, 5 * MS)
    assert summary.tpot == (2, 2 * MS, 2 * MS, pytest.approx((1 + 0.99 * 2) * MS))
    assert summary.itl.n == 3
    assert summary.scheduler_cores == 0.25
    assert summary.worker_cores == 0.05
    assert summary.duration_s == 16 * MS / S
    assert summary.requests_per_s == 3 / summary.duration_s
    assert summary.output_tokens_per_s == 6 / summary.duration_s
    assert summary.total_tokens_per_s == 166 / summary.duration_s
    assert summary.n_steps == 5


def test_a_run_without_a_request_has_no_summary():
    with pytest.raises(ValueError, match="holds no finished request"):
        summarize(RunRecords())


def test_end_to_end_is_from_arrival_to_the_last_token():
    assert e2e_ns(REQUESTS).tolist() == [11 * MS, 9 * MS, 6 * MS]


def test_rates_are_counted_from_the_first_arrival_to_the_last_token():
    assert duration_s(REQUESTS) == 0.016
    assert requests_per_s(REQUESTS) == 3 / 0.016
    assert output_tokens_per_s(REQUESTS) == 6 / 0.016
    assert total_tokens_per_s(REQUESTS) == 166 / 0.016


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "n_good"), [(5, 3, 2), (9, 3, 3), (9, 2, 2), (9, 0, 1), (4, 9, 0)]
)
def test_goodput_counts_requests_within_both_limits(ttft_ms, tpot_ms, n_good):
    per_s = goodput_per_s(REQUESTS, ttft_limit_ns=ttft_ms * MS, tpot_limit_ns=tpot_ms * MS)
    assert per_s == n_good / 0.016


def test_requests_in_the_system_are_their_rate_times_their_mean_stay():
    assert mean_in_system(REQUESTS) == pytest.approx(26 / 16)
    rate, stay_s = requests_per_s(REQUESTS), e2e_ns(REQUESTS).mean() / S
    assert mean_in_system(REQUESTS) == pytest.approx(rate * stay_s)


def step(number, scheduled_ms, launched_ms, done_ms, seen_ms):
    published, replied = scheduled_ms + 1, done_ms + 1
    instants = (scheduled_ms, published, launched_ms, done_ms, replied, seen_ms)
    return StepRow(number, 1, 0, *(instant * MS for instant in instants))


SYNC = [step(0, 0, 2, 7, 10), step(1, 12, 14, 19, 22)]
ASYNC = [step(0, 0, 2, 10, 12), step(1, 4, 6, 18, 20), step(2, 12, 14, 26, 28)]


def test_the_device_works_on_one_step_at_a_time():
    assert step_time_ns(SYNC).tolist() == [5 * MS, 5 * MS]
    assert step_time_ns(ASYNC).tolist() == [8 * MS, 8 * MS, 8 * MS]
    assert step_gap_ns(SYNC).tolist() == [7 * MS]
    assert step_gap_ns(ASYNC).tolist() == [0, 0]
    assert step_time_ns([]).tolist() == step_gap_ns([]).tolist() == []


def test_the_share_of_the_host_is_what_the_device_does_not_hide():
    assert host_share(SYNC) == 1 - 10 / 20  # from 10 to 12 ms nothing was under way
    assert host_share(ASYNC) == 1 - 24 / 28
    assert math.isnan(host_share([]))


def test_the_queue_ends_when_the_step_of_the_first_token_is_scheduled():
    requests = [
        RequestRow(0, -2 * MS, True, 1, 2, [10 * MS, 22 * MS]),
        RequestRow(1, 3 * MS, False, 1, 1, [22 * MS]),
    ]
    assert queue_ns(RunRecords(steps=SYNC, requests=requests)).tolist() == [2 * MS, 9 * MS]
    with pytest.raises(ValueError, match="request 0 left at 10000000 ns, when none of 0 steps"):
        queue_ns(RunRecords(requests=requests))


def test_cores_and_cpu_time_are_shares_of_the_run():
    waits = [wait(WORKER_RECV, 0, True, 0, 1, 2)._replace(cpu_ns=3 * MS)] * 2
    records = RunRecords(
        steps=SYNC,
        waits=waits,
        requests=REQUESTS,
        processes=[process("scheduler", 5 * MS), process("p", 7 * MS)],
        cores=[CoreRow(4, 20 * MS, 5 * MS, 3 * MS, 12 * MS)],
    )
    assert cores_of(records) == {"scheduler": 0.25, "p": 0.35}
    assert wait_cores_of(records) == {"scheduler": 0, "p": 0.3}
    assert core_utilisation(records) == {4: 0.25}
    assert device_utilisation(records) == 0.5
    assert cpu_per_token_ns(records) == 2 * MS


def test_engines_that_share_a_box_are_summarised_by_role():
    processes = [process("engine1/scheduler", 5 * MS), process("engine1/worker0", 2 * MS)]
    summary = summarize(RunRecords(requests=REQUESTS, processes=processes))
    assert (summary.scheduler_cores, summary.worker_cores) == (0.25, 0.1)


NO_METRICS = ("between", "quantiles", "summarize")


def documented():
    """The table of docs/metrics.md, from the docstrings."""
    lines = ["| metric | what it is | formula |", "|---|---|---|"]
    for name, function in inspect.getmembers(metrics, inspect.isfunction):
        if function.__module__ != metrics.__name__ or name in NO_METRICS:
            continue
        text = inspect.getdoc(function)
        meaning = re.sub(r",? shape ``.*?``", "", text.splitlines()[0])
        (formula,) = re.findall(r"Formula: ``(.+)``", text)
        lines.append(f"| `{name}` | {meaning} | `{formula}` |")
    return "\n".join(lines) + "\n"


def test_the_documentation_lists_every_metric_as_its_docstring_does():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert documented() in page.read_text(), f"the table should be\n{documented()}"
