"""Prompts and outputs, told by what each step was about."""

import pytest

from realrun.vllm.lengths import Step, read_lengths


def steps(requests, chunk=10_000, first=0):
    """What a scheduler would send for requests of (arrival, prompt, output), the first token of
    which comes with the last of their prompt; at most so many prompt tokens of each in a step.
    """
    found = []
    number = 0
    states = [[arrival, prompt, output, 0] for arrival, prompt, output in requests]
    while any(done < prompt + output - 1 for _, prompt, output, done in states):
        batch = [s for s in states if s[0] <= number and s[3] < s[1] + s[2] - 1]
        prefilling = [s for s in batch if s[3] < s[1]]
        taken = [min(chunk, s[1] - s[3]) for s in prefilling]
        known = sum(s[3] for s in batch)
        found.append(Step(first + number, len(batch) - len(prefilling), sum(taken), known))
        for state in batch:
            state[3] += 1 if state[3] >= state[1] else min(chunk, state[1] - state[3])
        number += 1
    return found


@pytest.mark.parametrize("together", [1, 3])
def test_requests_that_come_and_go_together_have_their_lengths(together):
    one_after_another = [(40 * i, 16, 30) for i in range(4) for _ in range(together)]
    trace = [step for step in steps(one_after_another) if step.n_decode or step.n_prefill_tokens]
    trace = [step._replace(number=number) for number, step in enumerate(trace)]
    lengths = read_lengths(trace)
    assert lengths.prompts == [16] * 4 * together
    assert lengths.outputs == [30] * 4 * together
    assert lengths.quantiles() == {
        "prompt_p50": 16,
        "prompt_p95": 16,
        "output_p50": 30,
        "output_p95": 30,
    }


def test_requests_that_overlap_are_told_apart_if_outputs_are_alike():
    requests = [(0, 20, 50), (10, 40, 50), (31, 60, 50), (55, 80, 50)]
    lengths = read_lengths(steps(requests))
    assert lengths.prompts == [20, 40, 60, 80]
    assert lengths.outputs == [50] * 4


def test_where_outputs_differ_their_mean_is_right():
    requests = [(0, 20, 90), (10, 20, 20), (32, 20, 40)]
    lengths = read_lengths(steps(requests))
    assert sum(lengths.outputs) == 150
    assert len(lengths.outputs) == 3


def test_a_prompt_in_pieces_is_one():
    requests = [(0, 20, 90), (10, 1000, 20)]
    lengths = read_lengths(steps(requests, chunk=300))
    assert lengths.prompts == [20, 1000]
    assert sorted(lengths.outputs) == [20 + 10 + 3, 90 - 10 - 3]  # who goes is who came first


def test_one_that_comes_as_another_goes_is_a_request_too():
    requests = [(0, 10, 20), (20, 10, 20)]
    overlapping = steps([(0, 10, 21), (20, 10, 20)])
    assert [step.n_decode for step in overlapping[20:22]] == [1, 1]
    lengths = read_lengths(overlapping)
    assert lengths.prompts == [10, 10]
    assert lengths.outputs == [20, 21]
    assert read_lengths(steps(requests)).prompts == [10, 10]


def test_what_the_trace_cuts_off_counts_as_far_as_it_shows():
    (*trace,) = steps([(0, 16, 100)])
    lengths = read_lengths(trace[40:70])
    assert lengths.prompts == [16 + 39]
    assert lengths.outputs == [30]


def test_a_gap_between_steps_ends_what_is_known():
    trace = steps([(0, 16, 30)]) + steps([(0, 24, 50)], first=1000)
    lengths = read_lengths(trace)
    assert lengths.prompts == [16, 24]
    assert lengths.outputs == [30, 50]


def test_a_prompt_of_one_token_counts_as_such():
    trace = [Step(0, 0, 16, 0), Step(1, 1, 0, 16), Step(2, 2, 0, 17), Step(3, 2, 0, 19)]
    lengths = read_lengths(trace)
    assert lengths.prompts == [1, 16]
    assert lengths.outputs == [2, 4]
