"""Of two runs that differ, what differs first."""

from dataclasses import replace

import pytest

from shmsim.config import CoresConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.difference import first_difference
from shmsim.policies import Park
from shmsim.sim.run import simulate
from tests.toy import toy_profile

LENGTHS = {"prompt_p50": 20, "prompt_p95": 20, "output_p50": 6, "output_p95": 6}
CONFIG = RunConfig(
    EngineConfig(workers=2), workload=WorkloadConfig(requests=2, **LENGTHS), cores=CoresConfig(n=2)
)


@pytest.fixture(scope="module")
def run():
    return simulate(CONFIG, Park(), toy_profile())


def changed(run, table, index, **fields):
    rows = list(getattr(run, table))
    rows[index] = rows[index]._replace(**fields)
    return replace(run, **{table: rows})


def test_equal_runs_do_not_differ(run):
    assert first_difference(run, simulate(CONFIG, Park(), toy_profile())) is None


def test_the_earliest_instant_of_all_tables_comes_first(run):
    late = run.steps[1].seen_ns
    found = changed(run, "steps", 1, seen_ns=late + 1)
    found = changed(found, "processes", 0, cpu_ns=1)
    difference = first_difference(run, found)
    assert (difference.at_ns, difference.place) == (late, "steps[1]")
    assert (difference.expected, difference.found) == (run.steps[1], found.steps[1])
    # Of the waits, which come process by process, the last one listed may be the first one there.
    index = max(i for i, row in enumerate(run.waits) if row.seen_ns < late)
    found = changed(found, "waits", index, cpu_ns=-1)
    difference = first_difference(run, found)
    assert (difference.at_ns, difference.place) == (run.waits[index].seen_ns, f"waits[{index}]")
    token_ns = run.requests[0].token_ns
    found = changed(found, "requests", 0, token_ns=[token_ns[0] - 1, *token_ns[1:]])
    assert first_difference(run, found).at_ns == min(token_ns[0] - 1, difference.at_ns)


def test_a_row_too_many_differs_from_its_first_instant_on(run):
    found = replace(run, steps=run.steps[:-1])
    difference = first_difference(run, found)
    assert difference[1:] == (f"steps[{len(run.steps) - 1}]", run.steps[-1], None)
    assert difference.at_ns == min(run.steps[-1].scheduled_ns, run.steps[-1].published_ns)
    assert first_difference(found, run).found == run.steps[-1]


def test_a_sum_alone_differs_when_the_run_ends(run):
    difference = first_difference(run, changed(run, "cores", 1, busy_ns=0))
    assert (difference.at_ns, difference.place) == (float("inf"), "cores[1]")
