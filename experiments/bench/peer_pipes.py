"""What the standard library offers: `multiprocessing.Pipe` and `multiprocessing.Queue`."""

import multiprocessing
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from message import LEAVE, REPLY
from system import System

if TYPE_CHECKING:
    from multiprocessing.queues import Queue


class Pipe(System):
    """A pipe to each reader; every message is pickled once for each."""

    def start(self, n_readers: int) -> None:
        """Make a pipe to each reader."""
        self._pipes: list[Connection] = []
        for _ in range(n_readers):
            here, there = multiprocessing.Pipe()
            self.spawn(_read_pipe, there)
            there.close()
            self._pipes.append(here)
        self.call("hello")

    def call(self, message: Any) -> None:
        """Send to all, then receive from each."""
        for pipe in self._pipes:
            pipe.send(message)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """Send the end to all."""
        for pipe in self._pipes:
            pipe.send(LEAVE)
            pipe.close()


def _read_pipe(pipe: Connection) -> None:
    while (call := pipe.recv()) is not LEAVE:
        pipe.send(REPLY)
    del call  # it lived until the next one, as where somebody works on it


class Queues(System):
    """A queue to each reader, one back; a thread feeds each of them."""

    def start(self, n_readers: int) -> None:
        """Make the queues."""
        context = multiprocessing.get_context("spawn")
        self._calls: list[Queue[Any]] = [context.Queue() for _ in range(n_readers)]
        self._replies: Queue[Any] = context.Queue()
        for calls in self._calls:
            self.spawn(_read_queue, calls, self._replies)
        self.call("hello")

    def call(self, message: Any) -> None:
        """Put one to each, get as many."""
        for calls in self._calls:
            calls.put(message)
        for _ in self._calls:
            self._replies.get()

    def close(self) -> None:
        """Put the end to each."""
        for calls in self._calls:
            calls.put(LEAVE)
            calls.close()


def _read_queue(calls: "Queue[Any]", replies: "Queue[Any]") -> None:
    while (call := calls.get()) is not LEAVE:
        replies.put(REPLY)
    del call  # it lived until the next one, as where somebody works on it
