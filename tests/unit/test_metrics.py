import math

import numpy as np
import pytest

from shmsim.metrics import (
    itl_ns,
    quantiles,
    summarize,
    tpot_ns,
    ttft_ns,
    wait_delay_ns,
)
from shmsim.records import ProcessRow, RequestRow, RunRecords, StepRow, WaitRow
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
