"""Only its own user gets at a segment and its sockets, and nothing in them is believed."""

import os
import re
import shutil
import stat
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from realrun.doorbell import ZmqDoorbell, socket_address
from realrun.handoff import Receiver
from realrun.layout import SegmentLayout
from realrun.segment import Segment
from realrun.sockets import PayloadReceiver, PayloadSender
from realrun.waiting import TimedOut
from shmsim.units import MS
from tests.real.handoffs import ALL_SOCKET, COSTS, PARK, handoff, receive

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

LAYOUT = SegmentLayout(1)
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def path_of(segment: Segment) -> Path:
    return Path(segment.ticket.path)


# Who may open what.


def test_a_name_of_a_segment_cannot_be_guessed_and_never_comes_again():
    tokens = set()
    for _ in range(20):
        with Segment.create(LAYOUT) as segment:
            token = path_of(segment).name.rpartition("-")[2]
            assert re.fullmatch(r"[0-9a-f]{16,}", token), "64 bits at least"
            tokens.add(token)
    assert len(tokens) == 20
    for place in range(16):
        assert len({token[place] for token in tokens}) > 1, f"digit {place} is always the same"


def test_neither_segment_nor_folder_is_open_to_others_whatever_the_umask():
    for umask in (0, 0o077):
        before = os.umask(umask)
        try:
            with Segment.create(LAYOUT, "zmq") as segment:
                assert stat.S_IMODE(path_of(segment).stat().st_mode) == 0o600
                assert stat.S_IMODE(Path(segment.ticket.folder).stat().st_mode) == 0o700
        finally:
            os.umask(before)


def test_no_socket_listens_on_a_network():
    with handoff(SegmentLayout(2), ALL_SOCKET, "zmq") as ends:
        ends.sender.send("anything", 0)
        own = set()
        for fd in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                own.add(str(fd.readlink()))
        inodes = {name[8:-1] for name in own if name.startswith("socket:[")}
        assert inodes, "nothing was looked at"
        for table in ("tcp", "tcp6", "udp", "udp6"):
            path = Path("/proc/self/net") / table
            rows = path.read_text().splitlines()[1:] if path.exists() else []
            assert not inodes & {row.split()[9] for row in rows}
        for receiver in ends.receivers:
            receive(receiver)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666])
def test_a_segment_that_others_can_open_is_refused(mode):
    with Segment.create(LAYOUT) as segment:
        path_of(segment).chmod(mode)
        with pytest.raises(PermissionError, match=f"must .* be closed to others.* mode {mode:04o}"):
            Segment.attach(segment.ticket)
        path_of(segment).chmod(0o600)
        with Segment.attach(segment.ticket):
            pass


def test_a_link_to_a_segment_is_refused(tmp_path):
    with Segment.create(LAYOUT) as segment:
        link = tmp_path / "link"
        link.symlink_to(path_of(segment))
        with pytest.raises(OSError, match=r"symbolic links.*link"):
            Segment.attach(replace(segment.ticket, path=str(link)))


def test_a_segment_that_is_gone_is_said_to_be_so_at_attach():
    with Segment.create(LAYOUT) as segment:
        ticket = segment.ticket
    with pytest.raises(FileNotFoundError, match=f"there is no segment {ticket.path}: its owner"):
        Segment.attach(ticket)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    with Segment.create(LAYOUT) as segment:
        with pytest.raises(ValueError, match="has 0 bytes"):
            Segment.attach(replace(segment.ticket, path=str(tmp_path / "fifo")))
        with pytest.raises(IsADirectoryError):
            Segment.attach(replace(segment.ticket, path=str(tmp_path)))


@needs_root
def test_a_segment_of_somebody_else_is_refused():
    with Segment.create(LAYOUT) as segment:
        os.chown(path_of(segment), NOBODY, -1)
        with pytest.raises(PermissionError, match=f"must belong to user 0 .* to {NOBODY}"):
            Segment.attach(segment.ticket)


@contextmanager
def as_nobody():
    """A child process without any privilege, for the block; the parent waits for its end.

    Yields True in the child and False in the parent. An error ends the child with a code.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            yield True
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - of a fork, nothing may reach pytest
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    try:
        yield False
    finally:
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@forks
@needs_root
def test_another_user_can_neither_open_the_segment_nor_enter_the_folder():
    with Segment.create(LAYOUT, "zmq") as segment, as_nobody() as is_nobody:
        if is_nobody:
            with pytest.raises(PermissionError):
                Segment.attach(segment.ticket)
            with pytest.raises(PermissionError):
                list(Path(segment.ticket.folder).iterdir())
            with pytest.raises(PermissionError):
                PayloadSender(Path(segment.ticket.folder), LAYOUT.request)


SOCKETS = {
    "doorbell": lambda folder: ZmqDoorbell(folder, LAYOUT.request),
    "payload sender": lambda folder: PayloadSender(folder, LAYOUT.request),
    "payload receiver": lambda folder: PayloadReceiver(folder, LAYOUT.request, 0),
}


@pytest.mark.parametrize("make", SOCKETS.values(), ids=list(SOCKETS))
@pytest.mark.parametrize("mode", [0o750, 0o705, 0o710, 0o701, 0o777])
def test_sockets_are_not_put_into_a_folder_that_others_can_enter(tmp_path, make, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"closed to others .mode 0700.* mode {mode:04o}"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o700)


@needs_root
@pytest.mark.parametrize("make", SOCKETS.values(), ids=list(SOCKETS))
def test_sockets_are_not_put_into_a_folder_of_somebody_else(tmp_path, make):
    tmp_path.chmod(0o700)
    os.chown(tmp_path, NOBODY, -1)
    with pytest.raises(PermissionError, match=f"must belong to user 0 .* to {NOBODY}"):
        make(tmp_path)


@pytest.mark.parametrize("make", SOCKETS.values(), ids=list(SOCKETS))
def test_sockets_are_not_put_behind_a_link(tmp_path, make):
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    with pytest.raises(PermissionError):
        make(link).close()


@pytest.mark.parametrize("make", SOCKETS.values(), ids=list(SOCKETS))
def test_a_folder_that_is_gone_is_an_error_when_its_sockets_are_made(tmp_path, make):
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "gone")


def test_a_receiver_looks_at_its_folder_before_it_reads_anything():
    with Segment.create(LAYOUT, with_folder=True) as segment:
        Path(segment.ticket.folder).chmod(0o711)
        with pytest.raises(PermissionError, match="closed to others"):
            Receiver(segment, LAYOUT.request, 0, PARK, COSTS)


@forks
@needs_root
def test_the_kernel_tells_who_connects_and_another_user_is_not_listened_to():
    # The folder keeps others out already; here it is opened after the sockets were made.
    folder = Path(tempfile.mkdtemp())
    receiver = PayloadReceiver(folder, LAYOUT.request, 0)
    context = zmq.Context()
    unfiltered = context.socket(zmq.PULL)
    unfiltered.bind(socket_address(folder, "unfiltered"))
    unfiltered.rcvtimeo = 10_000
    sockets = [context.socket(zmq.PUSH)]
    try:
        folder.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o777)
        with as_nobody() as is_nobody:
            if is_nobody:
                with zmq.Context() as other:
                    for name in ("request-payload-0", "unfiltered"):
                        push = other.socket(zmq.PUSH)
                        push.linger = 300
                        push.connect(socket_address(folder, name))
                        push.send_multipart([(7).to_bytes(8, "little"), b"forged"])
                        push.close()
        try:
            assert unfiltered.recv_multipart()[1] == b"forged"
        except zmq.Again:
            pytest.skip(f"another user cannot enter {folder.parent}, so that nothing can be shown")
        with pytest.raises(TimedOut):
            receiver.receive(7, 6, lambda: False, 300 * MS)
        sockets[0].linger = 0
        sockets[0].connect(socket_address(folder, "request-payload-0"))
        sockets[0].send_multipart([(7).to_bytes(8, "little"), b"proper"])
        assert bytes(receiver.receive(7, 6, lambda: False, 10_000 * MS)) == b"proper"
    finally:
        for socket in (receiver, unfiltered, *sockets):
            socket.close()
        context.term()
        shutil.rmtree(folder)
