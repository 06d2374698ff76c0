"""Compiled twins of policies, made from the class's own source: `compile_policy`, `check_policy`.

A policy and the helpers it calls are plain Python, and numba only calls what it has compiled
itself. So each method is rebuilt here as a function whose globals and closure hold compiled twins
of the Python functions they held; the class, and the module or notebook cell that defines it, stay
as they are and import no numba. A policy without fields needs nothing special: numba takes an empty
NamedTuple as an argument of no size.

A wrapper calls methods of the policy that it carries as a field. numba knows no methods of a
NamedTuple, so it is told here that ``plan`` and ``after`` of one are the twins of its class's
(`overload_method`). What class that is only a value can say: compile a wrapper by one.

A twin is used again only while the code and everything it refers to are the same, so that running
a notebook cell again works. It is kept in memory, and on disk (`shmsim.sim.kept`) if a file holds
the class.
"""

import dis
import hashlib
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
from numba.core import types
from numba.core.extending import overload_method

from shmsim.code_hash import CodeHash
from shmsim.sim.kept import VERSIONS, keep
from shmsim.sources import refuse_changed
from shmsim.tape import Tape
from shmsim.units import S
from shmsim.wait import (
    SITE_NAMES,
    StageCpu,
    WaitContext,
    WaitCosts,
    WaitOutcome,
    WaitPlan,
    WaitPolicy,
    check_plan,
)

_WAY_OUT: Final = (
    "A policy is a NamedTuple of int, float and bool; its methods and helpers use arithmetic, "
    "comparisons, if, loops, math.exp/log/sqrt, NamedTuples and module-level functions of the same "
    "kind. Instead of _replace write the whole value, instead of ** multiply, instead of a method "
    "on self call a module-level function, and give a number the same type on every branch with "
    "int() or float()."
)
#: Modules whose functions numba knows by itself.
_KNOWN_TO_NUMBA: Final = frozenset({"math", "cmath", "numpy", "numba", "builtins"})


class CompiledPolicy(NamedTuple):
    """The two methods of a policy class, compiled; to be called from Python or compiled code.

    Parameters
    ----------
    plan
        ``plan(policy, ctx)``, a `WaitPlan`.
    after
        ``after(policy, ctx, outcome)``, the policy for the next wait.
    """

    plan: Callable[[Any, WaitContext], WaitPlan]
    after: Callable[[Any, WaitContext, WaitOutcome], Any]


def compile_policy(policy: type[WaitPolicy] | WaitPolicy) -> CompiledPolicy:
    """Compile the methods of a policy class.

    Parameters
    ----------
    policy
        The class, or a value of it: a wrapper round any policy must be given as a value. A
        NamedTuple of int, float and bool fields (or NamedTuples and tuples of fixed length of
        these) with the methods of `WaitPolicy`; it may live in a module or in a notebook.

    Returns
    -------
    CompiledPolicy
        Functions that give the same bits as the methods. Takes half a second the first time, and
        up to five for long ones; no time for a class that was compiled before, in any session.

    Raises
    ------
    TypeError
        If the class leaves the subset that numba compiles, or a number has another type on some
        branch than the field it goes to. Names the class, the method, the reason and the way out.
    """
    policy_type: Any = policy if isinstance(policy, type) else type(policy)
    value = None if isinstance(policy, type) else policy
    name = policy_type.__name__
    if not issubclass(policy_type, tuple) or not hasattr(policy_type, "_fields"):
        raise TypeError(
            f"{name} is no NamedTuple, so it has no compiled twin; write "
            f"'class {name}(NamedTuple):' with its parameters and what it learns as fields"
        )
    example = _example(policy_type, name, value)
    self_type = _type_of(example)
    return CompiledPolicy(
        _compile(example, "plan", (self_type, _CONTEXT_TYPE), _PLAN_TYPE),
        _compile(example, "after", (self_type, _CONTEXT_TYPE, _OUTCOME_TYPE), self_type),
    )


def _compile(example: Any, method: str, arguments: tuple[Any, ...], result: Any) -> Any:
    policy_type = type(example)
    where = f"{policy_type.__name__}.{method}"
    function = getattr(policy_type, method, None)
    if not isinstance(function, FunctionType):
        raise TypeError(f"{where} must be a plain method (def {method}(self, ...)), got {function}")
    try:
        twin = _twin(function, (), arguments[0])
        # Of a notebook's cell numba keeps code elsewhere.
        if not twin.signatures and Path(function.__code__.co_filename).exists():
            keep(method, twin, lambda _: _name_of(example, function))
        twin.compile(arguments)
    except Exception as error:  # numba has some dozen kinds, not all of one family
        raise TypeError(f"{where} does not compile: {_reason(error)}. {_WAY_OUT}") from error
    returned = twin.overloads[arguments].signature.return_type
    if returned != result:
        raise TypeError(
            f"{where} must return {result} on every branch, but its result has the type {returned}."
            f" {_WAY_OUT}"
        )
    return twin


def _name_of(example: Any, function: FunctionType) -> str:
    """Of all that a twin is compiled from: code, what that refers to, classes, and how."""
    refuse_changed([Path(__file__)])
    found = CodeHash()
    found.note(f"{VERSIONS} {_type_of(example)}")
    found.note(hashlib.sha256(Path(__file__).read_bytes()).hexdigest())
    found.add(function)
    for kind in _classes(example):
        found.add(kind)
    return found.hexdigest()[:32]


def _classes(value: Any) -> Iterator[type]:
    """Class of a value, and of the values within it."""
    yield type(value)
    for part in value if isinstance(value, tuple) else ():
        yield from _classes(part)


def _example(kind: Any, where: str, value: Any = None) -> Any:
    """A value of an annotated type, for numba to take the type from.

    Where the annotation leaves it open, as that of a wrapped policy does, ``value`` says it.
    """
    if isinstance(kind, TypeVar):
        if not hasattr(value, "_fields"):
            raise TypeError(
                f"{where} can be any policy; compile the wrapper by a value, such as "
                "compile_policy(Clamped(Park())), whose inner policy is a NamedTuple"
            )
        return _example(type(value), where, value)
    if kind in (int, float, bool):
        return kind()
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        try:
            hints = get_type_hints(kind)
        except NameError as error:
            raise TypeError(f"cannot read the annotations of {where}: {error}") from None
        given = value if isinstance(value, kind) else None
        return kind(
            *[_example(hints.get(f), f"{where}.{f}", getattr(given, f, None)) for f in kind._fields]
        )
    if get_origin(kind) is tuple and ... not in get_args(kind):
        return tuple(_example(part, where) for part in get_args(kind))
    raise TypeError(
        f"{where} has the type {getattr(kind, '__name__', kind)}, which a policy cannot carry: "
        "write int, float, bool, a NamedTuple of these, or a tuple of fixed length such as "
        "tuple[float, float]"
    )


def _type_of(value: Any) -> Any:
    return numba.typeof(value)  # type: ignore[no-untyped-call]


_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


def _reason(error: Exception) -> str:
    """The line of numba's report that says why, and where."""
    # Where colorama is installed numba writes in bold.
    lines = [line.strip() for line in _STYLE.sub("", str(error)).splitlines()]
    why = next((x for x in lines if x and not x.startswith(("Failed in", "During"))), str(error))
    place = next((f" ({line.rstrip(':')})" for line in lines if line.startswith("File ")), "")
    return why.rstrip(".: ") + place


# Methods of a policy that is a field of another. Each type of field has a twin of its own: in a
# wrapper round a wrapper of its class numba would else see a function that calls itself.

# Lowering a call of a method asks `if signature.recvr`, and the type of a policy without fields has
# the length 0: it would drop the receiver. Types without a length are true anyway.
types.BaseNamedTuple.__bool__ = lambda _: True  # type: ignore[attr-defined]


@overload_method(types.BaseNamedTuple, "plan")
def _plan_of_field(policy: Any, ctx: Any) -> Any:
    twin = _twin(policy.instance_class.plan, (), policy)

    def plan(policy: Any, ctx: Any) -> Any:
        return twin(policy, ctx)

    return plan


@overload_method(types.BaseNamedTuple, "after")
def _after_of_field(policy: Any, ctx: Any, outcome: Any) -> Any:
    twin = _twin(policy.instance_class.after, (), policy)

    def after(policy: Any, ctx: Any, outcome: Any) -> Any:
        return twin(policy, ctx, outcome)

    return after


# Rebuilding a function with compiled twins in its globals.

#: Twins by what they were made of: code, defaults and everything the code refers to.
_TWINS: Final[dict[Any, Any]] = {}


def _twin(function: FunctionType, callers: tuple[FunctionType, ...], receiver: Any = None) -> Any:
    if function in callers:
        raise RecursionError(f"{function.__name__} calls itself; write a loop")
    callers = (*callers, function)
    code = function.__code__
    replaced = {
        name: _replaced(function.__globals__[name], code, callers)
        for name in sorted(_global_names(code))
        if name in function.__globals__
    }
    enclosed = [_replaced(cell.cell_contents, code, callers) for cell in function.__closure__ or ()]
    key = (
        code,
        _key(function.__defaults__),
        _key(tuple((function.__kwdefaults__ or {}).items())),
        tuple((name, _key(value)) for name, value in replaced.items()),
        tuple(_key(value) for value in enclosed),
        receiver,
    )
    if key not in _TWINS:
        rebuilt = FunctionType(
            code,
            # The dispatcher keeps these alive, so that no id() in a key is ever used twice.
            {**function.__globals__, **replaced},
            function.__name__,
            function.__defaults__,
            tuple(CellType(value) for value in enclosed) or None,
        )
        rebuilt.__kwdefaults__ = function.__kwdefaults__
        rebuilt.__qualname__ = function.__qualname__
        rebuilt.__module__ = function.__module__
        # Python calls the two methods alone; a way in for each helper takes a third of the time.
        compile_it: Any = numba.njit
        alone = len(callers) == 1
        _TWINS[key] = compile_it(no_cpython_wrapper=not alone, no_cfunc_wrapper=True)(rebuilt)
    return _TWINS[key]


def _replaced(value: Any, code: CodeType, callers: tuple[FunctionType, ...]) -> Any:
    if isinstance(value, FunctionType) and not _is_known(value.__module__):
        return _twin(value, callers)
    if isinstance(value, ModuleType) and not _is_known(value.__name__):
        # `import shmsim.wait as w` and then `w.only(...)`: a module with what this code may use.
        module = ModuleType(value.__name__)
        for name in _attribute_names(code):
            if hasattr(value, name):
                setattr(module, name, _replaced(getattr(value, name), code, callers))
        return module
    return value


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _KNOWN_TO_NUMBA


def _key(value: Any) -> Any:
    """What tells a value from another in compiled code, where globals are constants."""
    if isinstance(value, ModuleType) and not _is_known(value.__name__):
        return tuple((name, _key(v)) for name, v in sorted(vars(value).items()))
    if isinstance(value, bool | int | str | None):
        return type(value), value
    if isinstance(value, float):
        return float, struct.pack("d", value)
    if isinstance(value, tuple):
        return type(value), tuple(_key(part) for part in value)
    return id(value)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _global_names(code: CodeType) -> set[str]:
    return {
        instruction.argval
        for part in _codes(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _attribute_names(code: CodeType) -> set[str]:
    return {name for part in _codes(code) for name in part.co_names}


_CONTEXT_TYPE: Final = _type_of(_example(WaitContext, "WaitContext"))
_OUTCOME_TYPE: Final = _type_of(_example(WaitOutcome, "WaitOutcome"))
_PLAN_TYPE: Final = _type_of(_example(WaitPlan, "WaitPlan"))


# Checking a policy.


def check_policy(policy: WaitPolicy, n_waits: int = 100_000, seed: int = 1) -> None:
    """Run a policy in CPython and compiled, side by side, over random waits; refuse any difference.

    Each side carries its own state on from wait to wait. Every plan is also checked with
    `shmsim.wait.check_plan`.

    Parameters
    ----------
    policy
        The state to start from.
    n_waits
        How many waits.
    seed
        Of the random contexts and outcomes, see `random_waits`.

    Raises
    ------
    TypeError
        If the class does not compile (see `compile_policy`), or a field of ``policy`` is not of the
        type it is annotated with.
    ValueError
        If a method raises, a plan cannot be carried out, or a plan or a state differs in a bit or
        in a type: an int must stay an int. Names the first such wait and shows both sides.

    Examples
    --------
    >>> from shmsim.policies import SpinThenPark
    >>> check_policy(SpinThenPark(50_000), n_waits=1_000)
    """
    name = type(policy).__name__
    plan_compiled, after_compiled = compile_policy(policy)
    _check_fields(policy, _example(type(policy), name, policy), name)
    state: Any = policy
    state_compiled: Any = policy
    for index, (ctx, outcome) in enumerate(random_waits(n_waits, seed)):
        given = f"state   {state!r}\n  context {ctx!r}"
        try:
            plan = state.plan(ctx)
            check_plan(plan)
        except Exception as error:
            raise ValueError(
                f"{name}.plan failed at wait {index}: {type(error).__name__}: {error}\n  {given}"
            ) from error
        found = plan_compiled(state_compiled, ctx)
        if not _same_bits(plan, found):
            raise ValueError(_difference(f"{name}.plan", index, plan, found, given))
        try:
            following = state.after(ctx, outcome)
        except Exception as error:
            raise ValueError(
                f"{name}.after failed at wait {index}: {type(error).__name__}: {error}\n  {given}"
                f"\n  outcome {outcome!r}"
            ) from error
        following_compiled = after_compiled(state_compiled, ctx, outcome)
        if not _same_bits(following, following_compiled):
            given += f"\n  outcome {outcome!r}"
            raise ValueError(
                _difference(f"{name}.after", index, following, following_compiled, given)
            )
        state, state_compiled = following, following_compiled


def _difference(where: str, index: int, plain: Any, compiled: Any, given: str) -> str:
    return (
        f"{where} gives another value or type when compiled, first at wait {index}:\n"
        f"  CPython  {plain!r}\n  compiled {compiled!r}\n  {given}\n"
        "Keep ints ints and floats floats on every branch with int() and float(), and products of "
        "durations within 64 bits; write no ** and no numpy reduction."
    )


def _same_bits(plain: Any, compiled: Any) -> bool:
    """Whether two values have the same types and bits all through."""
    if type(plain) is not type(compiled):
        return False
    if isinstance(plain, tuple):
        return len(plain) == len(compiled) and all(map(_same_bits, plain, compiled))
    if isinstance(plain, float):
        return struct.pack("d", plain) == struct.pack("d", compiled)
    return bool(plain == compiled)


def _check_fields(value: Any, example: Any, where: str) -> None:
    if type(value) is not type(example):
        raise TypeError(
            f"{where} must be of the type {type(example).__name__}, got {value!r}; an int in place "
            "of a float would make another compiled function"
        )
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None) or map(str, range(len(value)))
        for name, part, part_example in zip(names, value, example, strict=True):
            _check_fields(part, part_example, f"{where}.{name}")


def random_waits(n_waits: int, seed: int) -> Iterator[tuple[WaitContext, WaitOutcome]]:
    """Contexts and outcomes meant to lead a policy into its corners.

    Waits come in spells of 32 around one length, so that a policy which learns has something to
    learn; the lengths go from 30 ns to 30 s. Among them are waits of 0, publications before the
    wait began, idle gaps of up to a day, all sites, both calls, and costs of 0.

    Parameters
    ----------
    n_waits
        How many.
    seed
        Of the random numbers.
    """
    rng = Tape(seed).generator("check_policy", "waits")

    def spread(low: float, high: float, n: int = n_waits) -> Any:
        """Whole numbers, evenly on a logarithmic scale."""
        return np.exp(rng.uniform(np.log(low), np.log(high), n)).astype(np.int64)

    def mostly(values: Any, share: float, otherwise: Any) -> Any:
        return np.where(rng.random(n_waits) < share, values, otherwise)

    typical_ns = np.repeat(spread(30, 30 * S, n_waits // 32 + 1), 32)[:n_waits]
    wait_ns = (typical_ns * rng.uniform(0.8, 1.25, n_waits)).astype(np.int64)
    wait_ns = mostly(wait_ns, 0.9, spread(1, 30 * S))
    published_ns = mostly(wait_ns, 0.8, mostly(-wait_ns, 0.5, 0))
    seen_ns = np.maximum(published_ns, 0) + spread(1, 1e8) - 1
    since_seen_ns = mostly(spread(1, 86_400 * S), 0.9, 0)
    n_decode = mostly(spread(1, 4096), 0.9, 0)
    n_prefill = mostly(0, 0.7, spread(1, 1 << 20))
    uniform = mostly(rng.random(n_waits), 0.98, mostly(0.0, 0.5, 1.0 - 2.0**-53))
    price = mostly(10.0, 0.5, mostly(rng.exponential(100.0, n_waits), 0.9, 0.0))
    costs = [mostly(spread(1, 1e7), 0.95, 0).tolist() for _ in WaitCosts._fields[:-1]]
    cpu = [mostly(spread(1, 1e10), 0.6, 0).tolist() for _ in range(4)]
    overshoot_ns = mostly(spread(1, 1e8), 0.5, 0)
    stage, preempted = rng.integers(0, 4, (2, n_waits)).tolist()
    site = rng.integers(0, len(SITE_NAMES), n_waits).tolist()
    call, pending, belled = rng.integers(0, 2, (3, n_waits)).tolist()
    contexts = map(
        WaitContext,
        site,
        call,
        since_seen_ns.tolist(),
        map(bool, pending),
        n_decode.tolist(),
        n_prefill.tolist(),
        (n_decode * spread(1, 1e5)).tolist(),
        uniform.tolist(),
        map(WaitCosts, *costs, price.tolist()),
    )
    outcomes = map(
        WaitOutcome,
        published_ns.tolist(),
        seen_ns.tolist(),
        stage,
        map(StageCpu, *cpu),
        overshoot_ns.tolist(),
        map(bool, belled),
        preempted,
    )
    return zip(contexts, outcomes, strict=True)
