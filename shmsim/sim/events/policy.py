"""Policies as the engine calls them: state, context and plan lie in the arrays.

Each class gets a small function, written for its fields and compiled once per session: it takes a
policy out of the arrays, calls the class's own compiled methods and puts the answer back. The
engine calls it through a pointer, so that the engine is compiled once for all policies.
"""

from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numba

from shmsim.routing import RouteContext, RoutePolicy
from shmsim.sim.compiled import check_policy, compile_policy
from shmsim.sim.deciding import REST_FIELD, can_rest
from shmsim.sim.events import words as w
from shmsim.sim.events.asking import SIGNATURE, address_of
from shmsim.sim.events.compiling import compiled, is_plain
from shmsim.sim.events.memory import Memory
from shmsim.wait import (
    MAX_STAGES,
    Stage,
    StageCpu,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
)

#: The engine calls by address, so nobody needs a way in from Python or C.
_OPTIONS: Final[Any] = {
    "error_model": "python",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
#: By what the methods were compiled to and the classes of the value, so that a class that was
#: defined again counts.
_MADE: Final[dict[Any, Any]] = {}

_WAIT_POLICY: Final = f"""
def asked(s, x, what, w, n, c, u, out):
    policy = {{policy}}
    ctx = WaitContext(
        s[c], s[c + 1], s[c + 2], s[c + 3] != 0, s[c + 4], s[c + 5], s[c + 6], x[u],
        WaitCosts(
            {", ".join(f"s[{w.TOLD_COSTS + i}]" for i in range(w.N_TOLD))}, x[{w.PRICE}],
            s[{w.TOLD_SHARING}] != 0,
        ),
    )
    if what == {w.ASK_PLAN}:
        plan = plan_of(policy, ctx)
{{plan}}
    else:
        cpu = StageCpu(s[c + 10], s[c + 11], s[c + 12], s[c + 13])
        outcome = WaitOutcome(
            s[c + 7], s[c + 8], s[c + 9], cpu, s[c + 14], s[c + 15] != 0, s[c + 16]
        )
        policy = after_of(policy, ctx, outcome)
{{store}}
    return 0
"""
_ROUTING: Final = """
def asked(s, x, what, w, n, c, u, out):
    policy = {policy}
    return route_of(policy, RouteContext(s[c], s[c + 1] != 0, s[c + 2], s[c + 3], s[c + 4]))
"""


class _Shape:
    """How the fields of a policy lie in the arrays, as source."""

    def __init__(self, policy: Any) -> None:
        self.names: dict[str, type[Any]] = {}
        self.n_words = self.n_numbers = 0
        self.stores: list[str] = []
        self.made = self._walk(type(policy), "policy", policy)

    def _walk(self, kind: Any, path: str, value: Any) -> str:
        """Source of a value of this type; notes how to store it again."""
        if isinstance(kind, TypeVar):  # what is in a wrapper only its value says
            kind = type(value)
        if kind is float:
            at = f"x[n + {self.n_numbers}]"
            self.n_numbers += 1
            self.stores.append(f"{at} = {path}")
            return at
        if kind in (int, bool):
            at = f"s[w + {self.n_words}]"
            self.n_words += 1
            self.stores.append(f"{at} = {path}")
            return at if kind is int else f"{at} != 0"
        if isinstance(kind, type) and hasattr(kind, "_fields"):
            name = f"Type{len(self.names)}"
            self.names[name] = kind
            hints = get_type_hints(kind)
            parts = [self._walk(hints[f], f"{path}.{f}", getattr(value, f)) for f in kind._fields]
            return f"{name}({', '.join(parts)})"
        assert get_origin(kind) is tuple, "compile_policy refuses every other type"
        parts = [
            self._walk(part, f"{path}[{i}]", value[i]) for i, part in enumerate(get_args(kind))
        ]
        return f"({', '.join(parts)},)" if parts else "()"


def _values(value: Any) -> list[Any]:
    """The numbers of a policy, in the order of `_Shape`."""
    if isinstance(value, tuple):
        return [number for part in value for number in _values(part)]
    return [value]


def store_policy(memory: Memory, policy: Any) -> tuple[int, int, int, int]:
    """Put a policy into memory; returns addresses and numbers of its words and its numbers."""
    values = _values(policy)
    words = [int(v) for v in values if not isinstance(v, float)]
    numbers = [v for v in values if isinstance(v, float)]
    return memory.store(words), len(words), memory.store_numbers(numbers), len(numbers)


def looks_number(policy: WaitPolicy) -> int:
    """Which of its numbers says from what share of the waits it learns; -1 if it never rests."""
    kind: Any = type(policy)
    if not can_rest(kind):
        return -1
    fields = kind._fields[: kind._fields.index(REST_FIELD)]
    before = _values(tuple(getattr(policy, field) for field in fields))
    return sum(isinstance(value, float) for value in before)


def wait_function(policy: WaitPolicy) -> int:
    """Address of the function that the engine asks instead of a wait policy.

    Raises
    ------
    TypeError
        If the class does not compile (`shmsim.sim.compiled.compile_policy`), or a field does not
        have the type it is annotated with.
    """
    kind = type(policy)
    if is_plain():
        methods: Any = (kind.plan, kind.after)
    else:
        check_policy(policy, 0)  # each field has the type it is annotated with
        methods = compile_policy(policy)
    shape = _Shape(policy)
    plan = "\n".join(
        f"        s[out + {3 * i + j}] = plan[{i}].{field}"
        for i in range(MAX_STAGES)
        for j, field in enumerate(Stage._fields)
    )
    store = "\n".join(f"        {line}" for line in shape.stores)
    source = _WAIT_POLICY.format(policy=shape.made, plan=plan, store=store)
    known = {
        "plan_of": methods[0],
        "after_of": methods[1],
        **{t.__name__: t for t in (WaitContext, WaitCosts, WaitOutcome, StageCpu, WaitPlan)},
    }
    return _made(methods, source, known, shape)


def route_function(routes: RoutePolicy) -> int:
    """Address of the function that the engine asks instead of a routing."""
    kind = type(routes)
    shape = _Shape(routes)
    known = {"route_of": compiled(kind.route), "RouteContext": RouteContext}
    return _made((kind,), _ROUTING.format(policy=shape.made), known, shape)


def _made(methods: tuple[Any, ...], source: str, known: dict[str, Any], shape: _Shape) -> int:
    key = (methods, source, tuple(shape.names.values()))
    if key not in _MADE:
        names = known | shape.names
        exec(source, names)
        function = numba.njit(SIGNATURE, **_OPTIONS)(names["asked"])
        _MADE[key] = function, address_of(function)
    address: int = _MADE[key][1]
    return address
