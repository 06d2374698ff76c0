"""ZeroMQ over ipc: pairs, and publish/subscribe with the replies pushed back."""

import pickle
import tempfile
from typing import Any

import zmq
from message import LEAVE, REPLY
from system import System


def _send(socket: "zmq.Socket[bytes]", message: Any) -> None:
    """Send a message as the pyzmq manual advises: big buffers out of band and not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    if buffers:
        socket.send_multipart([head, *buffers], copy=False)
    else:
        socket.send(head)


def _receive(socket: "zmq.Socket[bytes]") -> Any:
    head = socket.recv()
    if not socket.rcvmore:
        return pickle.loads(head)
    return pickle.loads(head, buffers=socket.recv_multipart(copy=False))


class _Zmq(System):
    """A context, and a folder for the addresses."""

    def __init__(self) -> None:
        super().__init__()
        self._context = zmq.Context()
        self._folder = tempfile.TemporaryDirectory()

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder.name}/{name}"

    def about(self) -> dict[str, Any]:
        return {"pyzmq": zmq.__version__, "libzmq": zmq.zmq_version()}

    def close(self) -> None:
        self.join()  # the last message must leave before its socket does
        self._context.destroy()
        self._folder.cleanup()


class Pairs(_Zmq):
    """A PAIR with each reader; the call is pickled once for each."""

    def start(self, n_readers: int) -> None:
        """Bind a socket for each reader."""
        self._sockets = []
        for index in range(n_readers):
            socket = self._context.socket(zmq.PAIR)
            socket.bind(self._address(f"pair{index}"))
            self._sockets.append(socket)
            self.spawn(_read_pair, self._address(f"pair{index}"))
        self.call("hello")

    def call(self, message: Any) -> None:
        """Send to all, then receive from each."""
        for socket in self._sockets:
            _send(socket, message)
        for socket in self._sockets:
            _receive(socket)

    def close(self) -> None:
        """Send the end to all."""
        for socket in self._sockets:
            _send(socket, LEAVE)
        super().close()


def _read_pair(address: str) -> None:
    socket = zmq.Context.instance().socket(zmq.PAIR)
    socket.connect(address)
    while (call := _receive(socket)) is not LEAVE:
        _send(socket, REPLY)
    del call  # it lived until the next one, as where somebody works on it


class PubSub(_Zmq):
    """One PUB for the calls, one PULL for the replies of all readers."""

    def start(self, n_readers: int) -> None:
        """Bind both sockets and wait for the subscriptions."""
        self._n_readers = n_readers
        # An XPUB is a PUB that can tell when a reader has subscribed.
        self._calls = self._context.socket(zmq.XPUB)
        self._calls.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._calls.bind(self._address("calls"))
        self._replies = self._context.socket(zmq.PULL)
        self._replies.bind(self._address("replies"))
        for _ in range(n_readers):
            self.spawn(_read_subscription, self._address("calls"), self._address("replies"))
        for _ in range(n_readers):
            self._calls.recv()
        self.call("hello")

    def call(self, message: Any) -> None:
        """Publish once, pull as many replies as there are readers."""
        _send(self._calls, message)
        for _ in range(self._n_readers):
            _receive(self._replies)

    def close(self) -> None:
        """Publish the end."""
        _send(self._calls, LEAVE)
        super().close()


def _read_subscription(calls_address: str, replies_address: str) -> None:
    context = zmq.Context.instance()
    calls, replies = context.socket(zmq.SUB), context.socket(zmq.PUSH)
    replies.connect(replies_address)
    calls.setsockopt(zmq.SUBSCRIBE, b"")
    calls.connect(calls_address)
    while (call := _receive(calls)) is not LEAVE:
        _send(replies, REPLY)
    del call  # it lived until the next one, as where somebody works on it
