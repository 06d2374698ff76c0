"""Routing gives the same bits in CPython and compiled by numba."""

import numba
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmsim.routing import (
    ARENA,
    INLINE,
    NO_ARENA,
    ROUTE_PRESETS,
    SOCKET,
    VLLM_ARENA,
    ArenaPlan,
    BySize,
    RouteContext,
    SlotClass,
    SlotFirst,
    class_for,
    settle,
)

COMPILED = {kind: numba.njit(kind.route) for kind in (SlotFirst, BySize)}
settle_compiled = numba.njit(settle)
class_for_compiled = numba.njit(class_for)

PLANS = [
    NO_ARENA,
    VLLM_ARENA,
    ArenaPlan((SlotClass(4096, 3), SlotClass(1 << 20, 2), SlotClass(1 << 28, 1)), 1),
]
BOUNDARIES = [b + d for b in (1, 4096, 1 << 20, 1 << 23, 1 << 24, 1 << 28) for d in (-1, 0, 1)]
SIZES = st.sampled_from(BOUNDARIES) | st.integers(0, 1 << 40)
CONTEXTS = st.builds(RouteContext, SIZES, st.booleans(), SIZES, SIZES, st.integers(0, 9))
ROUTES = st.sampled_from((INLINE, ARENA, SOCKET))
POLICIES = (
    st.sampled_from(list(ROUTE_PRESETS.values()))
    | st.builds(SlotFirst, ROUTES, SIZES, SIZES)
    | st.builds(BySize, ROUTES, ROUTES, SIZES)
)


def same(plain, compiled):
    return type(plain) is type(compiled) and plain == compiled


def test_every_preset_is_compiled():
    assert {type(policy) for policy in ROUTE_PRESETS.values()} == set(COMPILED)


@given(policy=POLICIES, ctx=CONTEXTS)
def test_a_routing_gives_the_same_answer_compiled(policy, ctx):
    assert same(policy.route(ctx), COMPILED[type(policy)](policy, ctx))


@given(wanted=ROUTES, fits_inline=st.booleans(), arena_free=st.integers(0, 99))
def test_an_answer_settles_alike_compiled(wanted, fits_inline, arena_free):
    arguments = (wanted, fits_inline, arena_free)
    assert same(settle(*arguments), settle_compiled(*arguments))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{len(plan.classes)} classes")
@given(n_bytes=SIZES, data=st.data())
def test_a_buffer_goes_to_the_same_class_compiled(plan, n_bytes, data):
    free = tuple(data.draw(st.integers(0, c.n_slots)) for c in plan.classes)
    assert same(class_for(plan, n_bytes, free), class_for_compiled(plan, n_bytes, free))
