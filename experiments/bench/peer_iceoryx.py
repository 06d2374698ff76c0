"""iceoryx2: publish/subscribe carries the bytes, an event wakes the other side."""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import tempfile
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import iceoryx2 as iox2
from message import LEAVE, REPLY
from system import System, segment_prefix

_FIRST_SLICE_BYTES: Final = 4096


class _Channel:
    """A publish/subscribe service and an event of the same name.

    Parameters
    ----------
    node
        The node of this process.
    name
        Who opens the same name reaches the same channel.
    """

    def __init__(self, node: Any, name: str) -> None:
        def service() -> Any:
            return node.service_builder(iox2.ServiceName.new(name))

        self._data = service().publish_subscribe(iox2.Slice[ctypes.c_uint8]).open_or_create()
        self._event = service().event().open_or_create()

    def sender(self) -> "_Sender":
        return _Sender(self._data, self._event)

    def receiver(self) -> "_Receiver":
        return _Receiver(self._data, self._event)


class _Sender:
    """Pickles into the memory of the channel, then wakes whoever listens."""

    def __init__(self, data: Any, event: Any) -> None:
        builder = data.publisher_builder().initial_max_slice_len(_FIRST_SLICE_BYTES)
        self._publisher = builder.allocation_strategy(iox2.AllocationStrategy.PowerOfTwo).create()
        self._notifier = event.notifier_builder().create()

    def send(self, message: Any) -> None:
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        sample = self._publisher.loan_slice_uninit(len(pickled))
        ctypes.memmove(sample.payload_ptr, pickled, len(pickled))
        sample.assume_init().send()
        self._notifier.notify()


class _Receiver:
    """Parks until notified, and unpickles in place."""

    def __init__(self, data: Any, event: Any) -> None:
        self._subscriber = data.subscriber_builder().create()
        self._listener = event.listener_builder().create()

    def receive(self) -> Any:
        # One notification may stand for several samples, so look before sleeping.
        while (sample := self._subscriber.receive()) is None:
            # A process that was stopped and goes on finds its wait interrupted.
            with contextlib.suppress(iox2.ListenerWaitError):
                self._listener.blocking_wait()
        message = pickle.loads(sample.payload().as_memory_view())
        sample.delete()
        return message


def _node(folder: str, prefix: str) -> Any:
    config = iox2.config.default()
    config.global_cfg.root_path = iox2.Path.new(folder)
    config.global_cfg.prefix = iox2.FileName.new(prefix)
    builder = iox2.NodeBuilder.new().signal_handling_mode(iox2.SignalHandlingMode.Disabled)
    return builder.config(config).create(iox2.ServiceType.Ipc)


class PublishSubscribe(System):
    """One channel for the calls and one for the replies of all readers; everybody parks."""

    def start(self, n_readers: int) -> None:
        """Open both channels; the readers say when they have theirs."""
        self._n_readers = n_readers
        self._folder = tempfile.TemporaryDirectory()
        self._prefix = segment_prefix(os.getpid())
        node = _node(self._folder.name, self._prefix)
        self._calls = _Channel(node, "calls").sender()
        self._replies = _Channel(node, "replies").receiver()
        ready: list[Connection] = []
        for _ in range(n_readers):
            here, there = multiprocessing.Pipe(duplex=False)
            self.spawn(_read, self._folder.name, self._prefix, there)
            there.close()
            ready.append(here)
        for connection in ready:
            connection.recv()

    def call(self, message: Any) -> None:
        """Publish once, take as many replies as there are readers."""
        self._calls.send(message)
        for _ in range(self._n_readers):
            self._replies.receive()

    def close(self) -> None:
        """Publish the end and remove the files."""
        self._calls.send(LEAVE)
        self.join()
        for path in Path("/dev/shm").glob(f"{self._prefix}*"):  # iceoryx2 leaves one of its own
            path.unlink(missing_ok=True)
        self._folder.cleanup()

    def about(self) -> dict[str, Any]:
        """The version."""
        return {"iceoryx2": version("iceoryx2")}


def _read(folder: str, prefix: str, ready: Connection) -> None:
    node = _node(folder, prefix)
    calls = _Channel(node, "calls").receiver()
    replies = _Channel(node, "replies").sender()
    ready.send("ready")
    while calls.receive() is not LEAVE:
        replies.send(REPLY)
