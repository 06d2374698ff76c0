"""What is read off a message."""

from types import SimpleNamespace

from realrun.vllm.calls import (
    EXECUTE,
    NOTHING_YET,
    OTHER,
    SAMPLE,
    describe,
    expected_after,
    is_expected_after,
)


def execute(scheduled, known):
    batch = SimpleNamespace(
        total_num_scheduled_tokens=sum(scheduled.values()),
        num_scheduled_tokens=scheduled,
        scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=known),
    )
    return ("execute_model", (batch,), {}, 0)


SAMPLE_MESSAGE = ("sample_tokens", (None,), {}, 0)


def test_a_batch_is_told_by_its_tokens():
    call = describe(execute({"a": 1, "b": 1, "c": 50}, [10, 20]), NOTHING_YET)
    assert (call.kind, call.step, call.is_fresh) == (EXECUTE, 0, False)
    assert (call.n_decode, call.n_prefill_tokens, call.n_kv_tokens) == (2, 50, 30)


def test_both_calls_of_a_step_have_its_number():
    first = describe(execute({"a": 1}, [10]), NOTHING_YET)
    second = describe(SAMPLE_MESSAGE, first)
    third = describe(execute({"a": 1}, [11]), second)
    assert [c.step for c in (first, second, third)] == [0, 0, 1]
    assert [c.kind for c in (first, second, third)] == [EXECUTE, SAMPLE, EXECUTE]


def test_whoever_read_the_first_call_expects_the_second():
    call = describe(execute({"a": 1}, [10]), NOTHING_YET)
    assert expected_after(call) == call._replace(kind=SAMPLE)
    assert is_expected_after(call)


def test_behind_the_second_the_next_step_comes_if_there_is_work():
    sampled = describe(SAMPLE_MESSAGE, describe(execute({"a": 1}, [10]), NOTHING_YET))
    expected = expected_after(sampled)
    assert (expected.kind, expected.step) == (EXECUTE, 1)
    assert is_expected_after(sampled)
    nothing = describe(SAMPLE_MESSAGE, describe(execute({}, []), NOTHING_YET))
    assert not is_expected_after(nothing)
    assert not is_expected_after(describe(("check_health", (), {}, None), nothing))


def test_a_batch_of_new_requests_only_ends_an_idle_time():
    assert describe(execute({"a": 16}, []), NOTHING_YET).is_fresh
    assert describe(("check_health", (), {}, None), NOTHING_YET).kind == OTHER
