"""The socket route: payloads that take neither the slot nor the arena.

A PUSH socket for each reader, into its PULL socket in the private folder of the run. Nothing is
dropped, and what is on its way is bounded by the slots of the ring, whose messages name the
payloads by a serial number. One that comes too late, because its reader gave the message up, is
recognised and dropped instead of being taken for the next.
"""

import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import zmq

from realrun.doorbell import check_private, socket_address, zmq_context
from realrun.layout import RingLayout
from realrun.waiting import Stopped, TimedOut
from shmsim.units import FOREVER_NS, MS

_SERIAL: Final = struct.Struct("<Q")
_LOOK_EVERY_MS: Final = 50
_LINGER_MS: Final = 1000


class PayloadSender:
    """Sends payloads to every reader of a ring.

    Parameters
    ----------
    folder
        Where the sockets are.
    ring
        Whose messages name the payloads.
    copies
        Whether a payload is copied before `send` returns. If not, the sockets read the memory of
        the caller, who must `wait_sent` before it is written to again.
    """

    def __init__(self, folder: Path, ring: RingLayout, *, copies: bool = True) -> None:
        """Connect to every reader; those that are not there yet find everything later."""
        check_private(folder)
        self._copies = copies
        self._trackers: list[zmq.MessageTracker] = []
        # No writer before it, that may have left payloads on their way, had numbers this high.
        self._serial = time.monotonic_ns()
        names = [f"{ring.name}-payload-{reader}" for reader in range(ring.n_readers)]
        self._addresses = [socket_address(folder, name) for name in names]
        self._sockets: list[zmq.Socket[bytes]] = []
        self._open()

    def _open(self) -> None:
        for address in self._addresses:
            socket = zmq_context().socket(zmq.PUSH)
            socket.linger = _LINGER_MS
            socket.sndhwm = 0
            self._sockets.append(socket)
            socket.connect(address)

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send one payload to all; returns its serial number, for the message."""
        self._serial += 1
        *others, last = pieces
        try:
            for socket in self._sockets:
                socket.send(_SERIAL.pack(self._serial), zmq.SNDMORE)
                for piece in others:
                    self._send(socket, piece, zmq.SNDMORE)
                self._send(socket, last, 0)
        except BaseException:
            # The next payload would be taken for the rest of this one. A closed socket delivers
            # what is complete, and forgets what is not.
            self.close()
            self._open()
            raise
        return self._serial

    def _send(
        self, socket: "zmq.Socket[bytes]", piece: bytes | bytearray | memoryview, flags: int
    ) -> None:
        if self._copies:
            socket.send(piece, flags)
        else:
            self._trackers.append(socket.send(piece, flags, copy=False, track=True))

    def wait_sent(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until the sockets no longer need the memory of what was sent.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        """
        trackers, self._trackers = self._trackers, []
        for tracker in trackers:
            while True:
                try:
                    tracker.wait(_LOOK_EVERY_MS / 1000)
                    break
                except zmq.NotDone:
                    if is_stopped():
                        raise Stopped from None

    def close(self) -> None:
        """Close the sockets; what was sent is still delivered, for a second at most."""
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()


class PayloadReceiver:
    """Receives the payloads of one reader.

    Attributes
    ----------
    n_late
        Payloads of messages that were given up, which were dropped.
    """

    def __init__(self, folder: Path, ring: RingLayout, reader: int) -> None:
        """Bind the socket of a reader."""
        check_private(folder)
        address = socket_address(folder, f"{ring.name}-payload-{reader}")
        self._socket = zmq_context().socket(zmq.PULL)
        self._socket.linger = 0
        self._socket.rcvhwm = 0
        self._socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
        self._socket.bind(address)
        self.n_late = 0

    def receive(
        self,
        serial: int,
        n_bytes: int,
        is_stopped: Callable[[], bool],
        timeout_ns: int | None = None,
    ) -> bytes | memoryview:
        """Wait for a payload; returns memory that nobody else has.

        Raises
        ------
        Stopped
            If the run was stopped meanwhile.
        TimedOut
            If it does not come in time.
        ValueError
            If it is not what the message names.
        """
        deadline_ns = FOREVER_NS if timeout_ns is None else time.monotonic_ns() + timeout_ns
        while True:
            left_ns = max(deadline_ns - time.monotonic_ns(), 0)
            left_ms = min(_LOOK_EVERY_MS, -(-left_ns // MS))  # poll takes whole milliseconds: up
            if not self._socket.poll(left_ms):
                if is_stopped():
                    raise Stopped
                if time.monotonic_ns() >= deadline_ns:
                    raise TimedOut(f"payload {serial} did not come by socket in time")
                continue
            name, *frames = self._socket.recv_multipart(copy=False)
            if len(name.bytes) != _SERIAL.size:
                raise ValueError(f"a payload without a number came by socket: {name.bytes!r}")
            (found,) = _SERIAL.unpack(name.bytes)
            if found < serial:
                self.n_late += 1
                continue
            found_bytes = sum(len(frame) for frame in frames)
            if found != serial or found_bytes != n_bytes:
                raise ValueError(
                    f"payload {found} of {found_bytes:,} bytes came by socket, expected payload "
                    f"{serial} of {n_bytes:,}"
                )
            if len(frames) == 1:
                return frames[0].buffer
            return b"".join(frame.buffer for frame in frames)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
