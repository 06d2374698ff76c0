"""One policy on one tape: the state of the compiled loop, and what comes out of it."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from shmsim.sim.compiled import check_policy
from shmsim.sim.contended import CARRYING
from shmsim.sim.loop import _SECOND_CALL_BYTES
from shmsim.sim.recurrence.drawing import drawer, settler
from shmsim.sim.recurrence.loop import (
    AT_END_OF_WINDOW,
    BAD_PLAN,
    BATCH_UNSIZED,
    FINISHED,
    TOO_LATE,
    loop_for,
)
from shmsim.sim.recurrence.packed import classes_of, pack_row, shape_of
from shmsim.sim.recurrence.state import (
    ACTOR,
    BATCH,
    ENGINE,
    LEAVING,
    N_LATE_BATCHES,
    SITE,
    STEP,
    TOKENS,
    WAIT,
    n_batches_for,
)
from shmsim.sim.recurrence.tapes import SharedTape
from shmsim.sim.recurrence.unchanged import Unchanged
from shmsim.wait import (
    DEVICE_DONE,
    SCHEDULER_RECV,
    WORKER_RECV,
    Stage,
    WaitPlan,
    WaitPolicy,
    check_plan,
    echo_guard_ns,
)


class UndecidedError(ValueError):
    """A run that only an engine with events can go on with."""


class Compiled(NamedTuple):
    """Policies, and the loop that is compiled for them.

    Parameters
    ----------
    policy, device_policy
        How scheduler and workers wait for messages, and workers for the device (None: as realrun
        does).
    loop
        See `shmsim.sim.recurrence.loop.loop_for`.
    row, device_row
        The policies as records, see `shmsim.sim.recurrence.packed.pack_row`.
    """

    policy: WaitPolicy
    device_policy: WaitPolicy | None
    loop: Callable[..., int]
    row: Any
    device_row: Any

    @classmethod
    def of(cls, policy: WaitPolicy, device_policy: WaitPolicy | None, n_workers: int) -> "Compiled":
        """Compile what is not compiled yet.

        Raises
        ------
        TypeError
            As `shmsim.sim.compiled.check_policy`.
        """
        both = [each for each in (policy, device_policy) if each is not None]
        # By the classes of all fields: a value with an int for a float is checked, and refused.
        one_worker = n_workers == 1
        shape = (shape_of(policy), shape_of(device_policy), one_worker)
        unchanged, loop = _KNOWN.get(shape, (None, None))
        if unchanged is None or loop is None or not unchanged.holds():
            for each in both:
                check_policy(each, 0)  # its fields have the types that it is compiled for
            loop = loop_for(policy, device_policy, one_worker=one_worker)
            _KNOWN.pop(shape, None)
            while len(_KNOWN) >= MOST_KNOWN:
                del _KNOWN[next(iter(_KNOWN))]
            _KNOWN[shape] = Unchanged({kind for each in both for kind in classes_of(each)}), loop
        row = pack_row(policy)
        device_row = row if device_policy is None else pack_row(device_policy)
        return cls(policy, device_policy, loop, row, device_row)


#: Of how many shapes of policies it is known what they were compiled from: those compiled last. A
#: cell of a notebook that defines a class makes a new one each time.
MOST_KNOWN: Final = 128
_KNOWN: Final[dict[Any, tuple[Unchanged, Callable[..., int]]]] = {}


class EngineRun:
    """A run in progress.

    Parameters
    ----------
    shared
        The tape.
    compiled
        The policies.
    keeps_rows
        Whether to note every wait.

    Attributes
    ----------
    requests
        What became of each.
    """

    def __init__(
        self,
        shared: SharedTape,
        compiled: Compiled,
        *,
        keeps_rows: bool,
    ) -> None:
        """Be at the start."""
        self.shared = shared
        policy, device_policy, self._loop, row, device_row = compiled
        self._deciding = shared.deciding[type(policy)]
        config, profile = shared.config, shared.profile
        engine, payload = config.engine, config.payload
        self._costs = shared.wait_costs
        n_workers, n_replies = engine.workers, shared.n_replies
        is_async = engine.scheduling == "async"
        self.requests = shared.requests.copy()
        most_output = int(self.requests["output"].max())
        n_buckets = 1 << (most_output + engine.depth).bit_length()
        self._leaving = np.zeros(n_buckets, LEAVING)
        self._leaving["head"] = -1
        self._engine = np.zeros(1, ENGINE)
        constants = {
            "n_workers": n_workers,
            "n_replies": n_replies,
            "two_calls": engine.calls_per_step == 2,
            "is_async": is_async,
            "depth": engine.depth,
            "margin": shared.margin,
            "most_sequences": engine.max_sequences,
            "most_tokens": engine.max_batched_tokens,
            "n_requests": len(self.requests),
            "is_closed": shared.is_closed,
            "leaving_mask": n_buckets - 1,
            "second_bytes": _SECOND_CALL_BYTES,
            "has_courier": CARRYING in profile.costs,
            "has_further": "notify_further" in profile.costs,
            "has_device_policy": device_policy is not None,
            "guard_ns": echo_guard_ns(self._costs),
            "output_bytes": payload.output_bytes,
            "largest_output_bytes": profile.costs["d2h"].xs[-1] if payload.output_bytes else 0,
            "keeps_rows": keeps_rows,
            "n_admitted": shared.n_at_start,
            "partial": -1,
            "last_completed_ns": -1,
            **self._costs._asdict(),
        }
        for name, value in constants.items():
            self._engine[name] = value
        self._actors = np.zeros(1 + 2 * n_workers, ACTOR)
        self._actors["costs"] = [*shared.actor_costs, *shared.actor_costs[1:]]
        sums_ns = [*shared.actor_sums_ns, *shared.actor_sums_ns[1:]]
        self._actors["write_ns"], self._actors["take_ns"] = zip(*sums_ns, strict=True)
        self._actors["rank"] = [*range(1 + n_workers), *range(1, 1 + n_workers)]
        sites = self._sites = np.zeros(n_replies + 2 * n_workers, SITE)
        if engine.calls_per_step == 2:
            # Where both calls are awaited, in turn; else only the reply to the second.
            sites["alternates"][: n_replies + n_workers] = 1
            if is_async:
                sites["alternates"][:n_replies] = 0
                sites["first_call"][:n_replies] = 1
        sites["policy"] = 2 * np.arange(len(sites))
        sites["kind"] = np.repeat(
            (SCHEDULER_RECV, WORKER_RECV, DEVICE_DONE), (n_replies, n_workers, n_workers)
        )
        for_messages = slice(n_replies + n_workers)
        for_device = slice(n_replies + n_workers, len(shared.site_costs))
        for some, deciding in (
            (for_messages, self._deciding),
            (for_device, shared.device_deciding),
        ):
            if deciding is not None:
                costs = shared.site_costs[some]
                sites["costs"][some] = costs
                sites["decision"][some] = deciding.plans
                sites["begin_ns"][some] = shared.begin_sums_ns(costs, deciding)
        self._states = np.repeat(row, 2 * len(sites))
        self._device_states = np.repeat(device_row, 2 * len(sites))
        is_late = is_async and device_policy is not None
        n_batches = N_LATE_BATCHES if is_late else n_batches_for(engine.depth)
        self._batches = np.zeros(n_batches, BATCH)
        self._batches["step"][-1] = -1  # what workers know at the start
        self._past = np.zeros((n_workers, n_batches), SITE)
        n_rows = shared.window_steps + 3 * shared.margin
        self._tokens = np.zeros(n_rows, TOKENS)
        self._step_rows = np.zeros(n_rows if keeps_rows else 1, STEP)
        per_step = max(n_replies * engine.calls_per_step, engine.calls_per_step + 1)
        self._wait_rows = np.zeros((1 + n_workers, n_rows * per_step if keeps_rows else 1), WAIT)
        self._point_at_everything()
        self.is_finished = False

    def _point_at_everything(self) -> None:
        """Let the compiled loop know where the arrays are, all of which are held here."""
        shared = self.shared
        arrays = {
            "factors": shared.factors,
            "law_ints": shared.law.ints,
            "law_floats": shared.law.floats,
            "states": self._states,
            "device_states": self._device_states,
            "actors": self._actors,
            "sites": self._sites,
            "past": self._past,
            "requests": self.requests,
            "leaving": self._leaving,
            "batches": self._batches,
            "tokens": self._tokens,
            "step_rows": self._step_rows,
            "wait_rows": self._wait_rows,
        }
        for name, array in arrays.items():
            assert array.flags.c_contiguous, "the loop knows no strides"
            self._engine[name] = array.ctypes.data
        self._engine["draw"], self._engine["settle"] = drawer().address, settler().address
        self._engine["law_kind"] = shared.law.kind
        self._engine["factor_mask"] = len(shared.factors) - 1
        self._engine["batch_mask"] = len(self._batches) - 1
        self._engine["most_wait_rows"] = self._wait_rows.shape[1]

    def _point_at_window(self) -> None:
        shared = self.shared
        passages = {"costs": shared.passage, "decisions": self._deciding.passage}
        if shared.device_deciding is not None:
            passages["device_decisions"] = shared.device_deciding.passage
        for name, passage in passages.items():
            self._engine[name] = passage.window.costs.ctypes.data

    def advance(self) -> None:
        """Run through the window of the tape, or to the end.

        Raises
        ------
        ValueError
            If a plan cannot be carried out (`shmsim.wait.check_plan`), or a batch lies outside the
            step-time law.
        UndecidedError
            If a reply thread falls so far behind that what it waited for is forgotten.
        """
        if self.is_finished:
            return
        engine, shared = self._engine[0], self.shared
        self._point_at_window()
        engine["n_step_rows"] = 0
        self._actors["n_rows"] = 0
        status = BATCH_UNSIZED
        while status == BATCH_UNSIZED:
            sizes = shared.sizes
            engine["n_sized"] = sizes.shape[1]
            engine["request_sizes"], engine["reply_sizes"] = (row.ctypes.data for row in sizes)
            status = self._loop(self._engine.ctypes.data, shared.stop_step)
            if status == BATCH_UNSIZED:
                shared.size_up(4 * sizes.shape[1])
        if status == BAD_PLAN:
            site = self._sites[engine["culprit"]]
            stages = zip(site["kinds"], site["untils_ns"], site["periods_ns"], strict=True)
            check_plan(WaitPlan(*(Stage(*map(int, stage)) for stage in stages)))
            raise AssertionError("check_plan refuses what the loop does")
        if status == TOO_LATE:
            rank = int(engine["culprit"])
            site = self._sites[shared.n_replies + shared.config.engine.workers + rank]
            raise UndecidedError(
                f"the reply thread of worker{rank} is {engine['step'] - site['n_learnt']} steps "
                "behind its main thread, more than the recurrence remembers; let another engine "
                "run this policy, or choose an engine.device_wait that is done within a step"
            )
        if status not in (FINISHED, AT_END_OF_WINDOW):
            batch = self._batches[engine["culprit"] % len(self._batches)]
            n_decode, n_prefill, n_kv = (int(batch[x]) for x in ("n_decode", "n_prefill", "n_kv"))
            shared.config.device.step_time.draw_ns(n_decode, n_prefill, n_kv, 0.0)
            raise AssertionError("the law knows the batch after all")
        self.is_finished = status == FINISHED

    @property
    def tokens(self) -> Any:
        """When each step of the last window was seen, and for how many sequences."""
        return self._tokens[: self._engine[0]["n_step_rows"]]

    @property
    def steps(self) -> Any:
        """Rows of the steps of the last window, if they are kept."""
        return self._step_rows[: self._engine[0]["n_step_rows"]]

    def waits(self, process: int) -> Any:
        """Rows of waits of the scheduler (0) or a worker (from 1 on) in the last window."""
        return self._wait_rows[process, : self._actors[process]["n_rows"]]

    @property
    def n_steps(self) -> int:
        """Steps done so far."""
        return int(self._engine[0]["n_done"])

    @property
    def end_ns(self) -> int:
        """When the last thread ended."""
        return int(self._actors["t_ns"].max())

    def process(self, number: int, field: str) -> int:
        """What the scheduler (0) or a worker (from 1 on) used or did, by a field of `ACTOR`."""
        found = int(self._actors[number][field])
        if number:
            found += int(self._actors[number + self.shared.config.engine.workers][field])
        return found

    def cpu_ns(self, number: int) -> int:
        """CPU time of a process, its I/O thread included."""
        return self.process(number, "cpu_ns") + self.process(number, "courier_ns")
