from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.routing import (
    ARENA,
    INLINE,
    MIB,
    NO_ARENA,
    ROUTE_NAMES,
    ROUTE_PRESETS,
    SOCKET,
    VLLM_ARENA,
    ArenaPlan,
    RouteContext,
    SlotClass,
    check_arena,
    class_for,
    settle,
)

SLOT = 16 * MIB
EDGES = (-1, 0, 1)
SIZES = st.integers(0, 1 << 40)
CONTEXTS = st.builds(
    lambda n, stream, rest, slot, free: RouteContext(n, stream, n + rest, slot, free),
    SIZES,
    st.booleans(),
    SIZES,
    SIZES,
    st.integers(0, 9),
)


def answer(name, n_bytes, *, is_stream=False, message_bytes=None, arena_free=1):
    total = n_bytes if message_bytes is None else message_bytes
    return ROUTE_PRESETS[name].route(RouteContext(n_bytes, is_stream, total, SLOT, arena_free))


# The presets.


@pytest.mark.parametrize("policy", ROUTE_PRESETS.values(), ids=ROUTE_PRESETS)
@given(ctx=CONTEXTS)
def test_every_policy_answers_with_a_route(policy, ctx):
    assert policy.route(ctx) in range(len(ROUTE_NAMES))


def test_presets_differ_from_each_other_and_are_true():
    assert len(set(ROUTE_PRESETS.values())) == len(ROUTE_PRESETS)
    assert all(ROUTE_PRESETS.values())


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("arena_free", [0, 8])
def test_vllm_keeps_a_message_in_the_slot_only_if_it_is_smaller_than_the_slot(
    is_stream, arena_free
):
    found = [answer("vllm", SLOT + d, is_stream=is_stream, arena_free=arena_free) for d in EDGES]
    assert found == [INLINE, SOCKET, SOCKET]


def test_vllm_sends_every_part_of_a_large_message_through_the_socket():
    assert answer("vllm", 100, is_stream=True, message_bytes=SLOT) == SOCKET
    assert answer("vllm", 100, is_stream=True, message_bytes=SLOT - 1) == INLINE


def test_vllms_arena_takes_buffers_of_8_mib_and_more():
    assert [answer("vllm-arena", 8 * MIB + d) for d in EDGES] == [INLINE, ARENA, ARENA]


def test_vllms_arena_never_takes_the_stream():
    found = [answer("vllm-arena", SLOT + d, is_stream=True) for d in EDGES]
    assert found == [INLINE, SOCKET, SOCKET]


@given(ctx=CONTEXTS)
def test_vllm_with_a_full_arena_is_vllm_without_one(ctx):
    full = ctx._replace(arena_free=0)
    assert ROUTE_PRESETS["vllm-arena"].route(full) == ROUTE_PRESETS["vllm"].route(full)


def test_what_went_to_the_arena_does_not_push_the_rest_of_the_message_out_of_the_slot():
    stream_bytes, tensor_bytes = 2_000, 128 * MIB
    assert answer("vllm-arena", tensor_bytes, message_bytes=tensor_bytes + stream_bytes) == ARENA
    # The arena has it, so the parts still to be placed are the stream alone.
    assert answer("vllm-arena", stream_bytes, is_stream=True) == INLINE


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_flipped_rule_sends_small_parts_to_the_socket_and_large_ones_to_shared_memory(
    is_stream,
):
    found = [answer("flipped", MIB + d, is_stream=is_stream) for d in EDGES]
    assert found == [SOCKET, ARENA, ARENA]


@given(ctx=CONTEXTS)
def test_all_socket_uses_no_shared_memory(ctx):
    assert ROUTE_PRESETS["all-socket"].route(ctx) == SOCKET


@given(ctx=CONTEXTS)
def test_all_shm_asks_for_no_socket(ctx):
    assert ROUTE_PRESETS["all-shm"].route(ctx) != SOCKET


def test_all_shm_fills_the_slot_to_the_last_byte():
    assert [answer("all-shm", SLOT + d) for d in EDGES] == [INLINE, INLINE, ARENA]


# What becomes of an answer.

WAYS = [
    # wanted, fits inline, free slots in the arena -> taken
    (INLINE, True, 0, INLINE),
    (INLINE, True, 3, INLINE),
    (INLINE, False, 3, ARENA),
    (INLINE, False, 0, SOCKET),
    (ARENA, True, 3, ARENA),
    (ARENA, False, 1, ARENA),
    (ARENA, True, 0, INLINE),
    (ARENA, False, 0, SOCKET),
    (SOCKET, True, 3, SOCKET),
    (SOCKET, True, 0, SOCKET),
    (SOCKET, False, 3, SOCKET),
    (SOCKET, False, 0, SOCKET),
]


@pytest.mark.parametrize(("wanted", "fits_inline", "arena_free", "taken"), WAYS)
def test_an_answer_that_cannot_be_followed_falls_back(wanted, fits_inline, arena_free, taken):
    assert settle(wanted, fits_inline, arena_free) == taken


def test_the_table_of_fallbacks_is_complete():
    listed = {(wanted, fits, free > 0) for wanted, fits, free, _ in WAYS}
    assert listed == set(product((INLINE, ARENA, SOCKET), (True, False), (True, False)))


@given(wanted=st.sampled_from((INLINE, ARENA, SOCKET)), fits=st.booleans(), free=st.integers(0, 99))
def test_what_is_settled_can_be_followed_and_stays_settled(wanted, fits, free):
    taken = settle(wanted, fits, free)
    assert taken != INLINE or fits
    assert taken != ARENA or free > 0
    assert settle(taken, fits, free) == taken


# The arena.

PLANS = st.builds(
    lambda sizes, counts, divert: ArenaPlan(
        tuple(map(SlotClass, sorted(sizes), counts)), min(divert, max(sizes, default=divert))
    ),
    st.sets(st.integers(1, 1 << 30), max_size=4),
    st.lists(st.integers(1, 64), min_size=4, max_size=4),
    st.integers(1, 1 << 30),
)


@pytest.mark.parametrize("plan", [NO_ARENA, VLLM_ARENA])
def test_the_arenas_that_come_with_the_project_are_sound(plan):
    check_arena(plan)


def test_vllms_arena_is_2_gib():
    assert sum(c.slot_bytes * c.n_slots for c in VLLM_ARENA.classes) == 2048 * MIB


@given(plan=PLANS, n_bytes=st.integers(0, 1 << 31), data=st.data())
def test_a_buffer_goes_to_the_smallest_class_that_fits_and_has_a_free_slot(plan, n_bytes, data):
    check_arena(plan)
    free = tuple(data.draw(st.integers(0, c.n_slots)) for c in plan.classes)
    possible = [i for i, c in enumerate(plan.classes) if n_bytes <= c.slot_bytes and free[i] > 0]
    assert class_for(plan, n_bytes, free) == min(possible, default=-1)


def test_the_last_byte_of_a_slot_is_used():
    plan = ArenaPlan((SlotClass(10, 1), SlotClass(20, 1)), 1)
    assert [class_for(plan, n, (1, 1)) for n in (9, 10, 11, 20, 21)] == [0, 0, 1, 1, -1]


REFUSED = {
    "an empty slot": (
        ArenaPlan((SlotClass(0, 1),), 1),
        r"classes\[0\]\.slot_bytes must be at least 1 byte, got 0",
    ),
    "a class without slots": (
        ArenaPlan((SlotClass(MIB, 2), SlotClass(2 * MIB, 0)), 1),
        r"classes\[1\]\.n_slots must be at least 1, got 0; leave the class out .*2 MiB",
    ),
    "a class that does not grow": (
        ArenaPlan((SlotClass(4096, 2), SlotClass(4096, 1)), 1),
        "class 1 has slots of 4096 bytes after slots of 4096 bytes; sort the classes",
    ),
    "a threshold of nothing": (
        ArenaPlan((), 0),
        "divert_bytes must be at least 1 byte, got 0",
    ),
    "a threshold above every slot": (
        ArenaPlan((SlotClass(MIB, 2),), MIB + 1),
        r"divert_bytes is 1048577 bytes .*largest slot holds 1048576 bytes \(1 MiB\); lower",
    ),
}


@pytest.mark.parametrize(("plan", "message"), REFUSED.values(), ids=REFUSED)
def test_an_arena_that_cannot_be_is_refused_with_the_way_out(plan, message):
    with pytest.raises(ValueError, match=message):
        check_arena(plan)


def test_a_threshold_of_the_largest_slot_is_allowed():
    check_arena(ArenaPlan((SlotClass(MIB, 2),), MIB))
