"""Functions by their address: how the engine asks a policy that it was not compiled with."""

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shmsim.sim.events.compiling import is_plain

#: Asked instead of a policy, see `shmsim.sim.events.policy`.
Asked = Callable[..., int]

#: Arguments: memory, what is asked for, addresses of the state (its words, its numbers), of the
#: context or lesson, of its random number, and of the plan. A routing returns its answer.
SIGNATURE: Final = types.int64(
    types.CPointer(types.int64),  # type: ignore[no-untyped-call]
    types.CPointer(types.float64),  # type: ignore[no-untyped-call]
    *(types.int64 for _ in range(6)),
)

#: In plain Python an address is a place in this list.
_FUNCTIONS: Final[list[Asked]] = []


def address_of(function: Any) -> int:
    """The word by which `ask` finds a function; it must be kept as long as it may be asked."""
    if is_plain():
        _FUNCTIONS.append(function)
        return len(_FUNCTIONS) - 1
    made = function.overloads[SIGNATURE.args]
    address: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return address


def _ask_plain(address: int, *arguments: Any) -> int:
    return _FUNCTIONS[address](*arguments)


@intrinsic
def _ask_compiled(
    _context: Any,
    address: Any,
    s: Any,
    x: Any,
    what: Any,
    words: Any,
    numbers: Any,
    about: Any,
    luck: Any,
    out: Any,
) -> Any:
    """Call a function of `SIGNATURE`; what it raises goes on to the caller."""

    def call(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(SIGNATURE.return_type, SIGNATURE.args)
        function = builder.inttoptr(arguments[0], ir.PointerType(kind))
        status, answer = convention.call_function(
            builder, function, SIGNATURE.return_type, SIGNATURE.args, arguments[1:]
        )
        with cgutils.if_unlikely(builder, status.is_error):  # type: ignore[no-untyped-call]
            convention.return_status_propagate(builder, status)
        return answer

    return SIGNATURE.return_type(types.int64, *SIGNATURE.args), call


#: Ask the function at an address: ``ask(address, s, x, what, words, numbers, about, luck, out)``.
ask: Callable[..., int] = _ask_plain if is_plain() else _ask_compiled
