"""Work on a Dask cluster, whose workers may join, leave and be killed while it runs.

Dask repeats a task whose worker was lost, and tells of each once. What is done here is around that:
an address where nobody answers, workers that would give other bits, and none that is left. Whoever
sends tasks trusts the cluster and is trusted by it: its messages are pickle.
"""

import asyncio
import contextlib
import json
import logging
import queue
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

from shmsim.extras import how_to_add
from shmsim.sim.fingerprint import differences, fingerprint
from shmsim.sweep.key import check_engine

_CONNECT_S: Final = 10.0
_PATIENCE_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0
#: Dask takes 0 s for no limit.
_LEAST_WAIT_S: Final = 0.1
_FAILED: Final = ("error", "cancelled")
#: What an interrupt leaves: a task runs in a thread of its worker, and a thread cannot be stopped.
_GOES_ON: Final = (
    "all was stopped and cleaned up here, and what no worker had begun is taken back; what one had "
    "begun goes on there to its end, and nobody hears of it"
)

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Cluster:
    """A connection to a Dask scheduler whose workers give the bits of this process.

    Parameters
    ----------
    address
        Of the scheduler, as ``"tcp://node1:8786"``, or the path of the JSON file that
        ``dask scheduler --scheduler-file`` wrote.
    patience_s
        How long the cluster may be without a worker, at the start and between two jobs of a queue.

    Raises
    ------
    ValueError
        If the address is none, or a worker would give other bits; says which, and what differs.
    OSError
        If nobody answers there, or no worker is there in time.
    RuntimeError
        If Dask is not installed.
    """

    def __init__(self, address: str, patience_s: float = _PATIENCE_S) -> None:
        """Connect, and look at the workers that are there."""
        try:
            from distributed import Client
            from distributed.comm import get_address_host_port
        except ModuleNotFoundError:
            raise RuntimeError(
                f"a cluster needs Dask, here and on its machines; {how_to_add('cluster')}"
            ) from None
        self._address = _address(address)
        self._patience_s = patience_s
        self._waiting: Mapping[str, Any] = {}
        try:
            host, port = get_address_host_port(self._address)
        except ValueError as error:
            raise ValueError(
                f"{self._address!r} is no address of a Dask scheduler, as tcp://node1:8786 is: "
                f"{error}"
            ) from None
        _reach(host, port)
        # What it logs, with tracebacks, is said here in a sentence.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        try:
            self._client = Client(self._address, timeout=_CONNECT_S, set_as_default=False)
        except OSError as error:
            raise ConnectionError(
                f"what answers at {self._address} is no Dask scheduler that this Dask understands: "
                f"{error}"
            ) from None
        try:
            self._check_workers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Connected already."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Disconnect; an interrupt says from here on what it could not stop."""
        self.close()
        if isinstance(error, KeyboardInterrupt) and self._waiting:
            raise KeyboardInterrupt(_GOES_ON) from None

    def close(self) -> None:
        """Disconnect; the scheduler forgets what was still to do for this process."""
        self._client.close()

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
    ) -> Iterator[tuple[Item, Result]]:
        """Give every item once, with ``function(shared, item)``, as they are done.

        Parameters
        ----------
        function
            Of a module that workers can import.
        shared
            Sent once, not with every item.
        items
            Each is a task of its own.

        Raises
        ------
        ValueError
            If the function raises one, or a worker that joined meanwhile would give other bits.
        RuntimeError
            If the function raises anything else, an item killed several workers in turn, or the
            scheduler or all workers are gone.

        Notes
        -----
        Who stops listening, as by Ctrl-C, cancels what has not begun. What runs goes on to its end
        on its worker, and nobody hears of it.
        """
        listed = list(items)
        if not listed:
            return
        # A task, not scattered data: Dask repeats it if the workers that hold its result are lost.
        common = self._client.submit(_same, shared, pure=False)
        futures = self._client.map(
            _checked,
            listed,
            function=function,
            shared=common,
            expected=dict(fingerprint()),
            pure=False,
        )
        waiting = {f.key: (f, item) for f, item in zip(futures, listed, strict=True)}
        self._waiting = waiting
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            for future in futures:
                future.add_done_callback(done.put)
            # What somebody still holds, Dask does again if the worker that did it is lost.
            del future, futures
            while waiting:
                for key, result in self._results(self._next(done)):
                    yield waiting.pop(key)[1], result
        finally:
            if waiting and self._client.status == "running":
                with contextlib.suppress(OSError):  # a scheduler that is gone has forgotten them
                    self._client.cancel([future for future, _ in waiting.values()])

    def _check_workers(self) -> None:
        """Wait for a worker, and compare all that are there with this process."""
        until_s = time.monotonic() + self._patience_s
        while True:
            left_s = max(until_s - time.monotonic(), 0.0)
            try:
                self._client.wait_for_workers(1, timeout=max(left_s, _LEAST_WAIT_S))
            except OSError:
                raise self._nobody() from None
            answers = self._client.run(fingerprint, on_error="return")
            # Whoever died of the question, or cannot be reached, is no worker; others may come.
            answers = {w: there for w, there in answers.items() if not isinstance(there, OSError)}
            for worker, there in answers.items():
                if isinstance(there, Exception):
                    raise ValueError(
                        f"the worker {worker} has no shmsim like the one here "
                        f"({type(there).__name__}: {there}); install the same on all machines"
                    )
                _refuse_unlike(worker, dict(fingerprint()), there)
            if answers:
                return
            if not left_s:
                raise self._nobody()
            time.sleep(min(left_s, _LOOK_EVERY_S))

    def _next(self, done: "queue.SimpleQueue[Any]") -> list[Any]:
        """Those that are done, at least one."""
        last_seen_s = time.monotonic()
        while True:
            try:
                some = [done.get(timeout=_LOOK_EVERY_S)]
            except queue.Empty:
                if self._has_workers():
                    last_seen_s = time.monotonic()
                elif time.monotonic() - last_seen_s > self._patience_s:
                    raise self._nobody() from None
                continue
            while not done.empty():
                some.append(done.get())
            return some

    def _results(self, some: list[Any]) -> Iterator[tuple[str, Any]]:
        """Results of those that are done, by key; nobody here holds these any more."""
        failed = [f for f in some if f.status in _FAILED]
        finished = [f for f in some if f not in failed]  # or lost since, see `_gathered`
        results = self._gathered(finished) if finished else []
        keys = [future.key for future in finished]
        del some[:], finished[:]
        yield from zip(keys, results, strict=True)
        for future in failed:
            self._explain(future)

    def _gathered(self, finished: list[Any]) -> list[Any]:
        """Results of what was finished; waits while Dask does again what was lost since."""
        # Dask itself waits for ever if no worker is left that could.
        loop = self._client.loop.asyncio_loop
        gathering = self._client.gather(finished, asynchronous=True)
        pending = asyncio.run_coroutine_threadsafe(gathering, loop)
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pending.add_done_callback(done.put)
        try:
            self._next(done)
            results: list[Any] = pending.result()
        except Exception:  # one was lost, and failed when it was done again
            for future in finished:
                if future.status in _FAILED:
                    self._explain(future)
            raise
        finally:
            pending.cancel()
        return results

    def _has_workers(self) -> bool:
        try:
            return bool(self._client.nthreads())
        except OSError:  # Dask notices too, and cancels what waits
            return False

    def _nobody(self) -> ConnectionError:
        return ConnectionError(
            f"the Dask scheduler at {self._address} has had no worker that answers for "
            f"{self._patience_s:g} s; start some with 'dask worker', then run the same command "
            "again: what was finished is kept"
        )

    def _explain(self, future: Any) -> NoReturn:
        """Say why a task has no result."""
        from distributed import KilledWorker

        if future.status != "error":
            raise RuntimeError(
                f"the Dask scheduler at {self._address} is gone; start it again, then run the same "
                "command: what was finished is kept"
            )
        error = future.exception()
        if isinstance(error, KilledWorker):
            raise RuntimeError(
                f"{error.allowed_failures + 1} workers died of one task, the last one at "
                f"{error.last_worker.address}, perhaps for want of memory: start fewer of them, "
                "then run the same command again: what was finished is kept"
            )
        if isinstance(error, ValueError):
            raise error
        raise RuntimeError(f"a worker failed: {type(error).__name__}: {error}")


def _address(text: str) -> str:
    """The address, if need be from the file that a scheduler wrote."""
    if not text.endswith(".json"):
        return text
    try:
        return str(json.loads(Path(text).read_text())["address"])
    except OSError as error:
        raise ValueError(
            f"cannot read {text}: {error.strerror}; 'dask scheduler --scheduler-file {text}' "
            "writes it when it starts"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{text} is no file of a Dask scheduler: it names no address") from None


def _reach(host: str, port: int) -> None:
    """Say at once if nobody listens: Dask would try again for as long as it may take."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(
            f"nobody answers at {host}:{port} ({error}); start a Dask scheduler with 'dask "
            "scheduler', which says its address"
        ) from None


def _refuse_unlike(worker: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    found = differences(here, there)
    if found:
        raise ValueError(
            f"the worker {worker} could give other bits than this process ({found}); install the "
            "same on all machines, with constraints.txt"
        )


# On the workers.


def _same(shared: Shared) -> Shared:
    return shared


def _checked(
    item: Item,
    function: Callable[[Shared, Item], Result],
    shared: Shared,
    expected: Mapping[str, str],
) -> Result:
    """Run one item, unless this worker, which may have joined late, is unlike the client."""
    from distributed import get_worker

    address = get_worker().address
    _refuse_unlike(address, expected, fingerprint())
    try:
        result = function(shared, item)
    except ValueError as error:
        raise ValueError(f"{error} (on the worker {address})") from None
    check_engine()  # modules that were loaded for it are of the source that was compared, too
    return result
