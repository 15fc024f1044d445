"""The packets of the control socket (docs/shm.md), and the choice of a front end."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from conftest import REPO, Front
from fake_daemon import FakeDaemon

import rdsd
import rdsd.aio
from rdsd import _packets, _sync_packets
from rdsd._front_end import choose, control_path, why_no_rings
from rdsd._packets import HEADER, MESSAGE_LIMIT, PIECE, PacketPipe, new_socket, try_connect
from rdsd._sync_stream import StreamSocket
from rdsd._threads import held
from rdsd.v1 import rdsd_pb2 as pb

HOST = "127.0.0.1"

Ends = tuple[PacketPipe, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A pipe and the daemon's end of it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    with near, far:
        yield PacketPipe(near), far


def message_of(size: int) -> pb.ServerMessage:
    """A message that serializes to exactly this size."""
    message = pb.ServerMessage(recv=pb.RecvBatch(payload=bytes(size)))
    message.recv.payload = bytes(size - (message.ByteSize() - size))
    assert message.ByteSize() == size
    return message


@pytest.mark.parametrize("size", [100, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7])
def test_messages_are_cut_and_put_together(ends: Ends, size: int) -> None:
    pipe, far = ends
    data = message_of(size).SerializeToString()
    pieces = [data[at : at + PIECE] for at in range(0, size, PIECE)]
    got = None
    for i, piece in enumerate(pieces):
        assert pipe.read() is None
        far.send(bytes([1, i < len(pieces) - 1, 0, 0]) + piece)
        got = pipe.read()
    assert got == pb.ServerMessage.FromString(data)
    assert pipe.read() is None


@pytest.mark.parametrize("size", [3, PIECE, PIECE + 1, 2 * PIECE])
def test_what_is_written_is_cut_as_the_contract_says(ends: Ends, size: int) -> None:
    pipe, far = ends
    message = pb.ClientMessage(send=pb.SendBatch(payload=bytes(range(256)) * (size // 256 + 1)))
    data = message.SerializeToString()
    pipe.write(message)
    assert not pipe.blocked
    got, more = b"", True
    while more:
        packet = far.recv(HEADER + PIECE + 1)
        assert packet[0] == 1
        assert packet[2:4] == b"\0\0"
        more = packet[1] == 1
        assert len(packet) == HEADER + PIECE if more else len(packet) > HEADER
        got += packet[HEADER:]
    assert got == data


def test_what_the_kernel_does_not_take_waits(ends: Ends) -> None:
    pipe, far = ends
    message = pb.ClientMessage(send=pb.SendBatch(payload=bytes(3 * PIECE)))
    sent = 0
    while not pipe.blocked:
        pipe.write(message)
        sent += 1
    left = sent * 4  # packets
    while left:
        far.recv(HEADER + PIECE)
        left -= 1
        pipe.resume()
    assert not pipe.blocked


@pytest.mark.parametrize(
    "packet",
    [
        b"\1",
        b"\2\0\0\0x",
        b"\1\2\0\0x",
        b"\1\0\1\0x",
        b"\1\0\0\0",
        b"\1\1\0\0" + b"x" * 10,
        b"\1\0\0\0" + b"x" * (PIECE + 1),
        b"\1\0\0\0\xff\xff\xff",
    ],
    ids=lambda packet: packet[:5].hex(),
)
def test_a_packet_that_is_none_ends_the_stream(ends: Ends, packet: bytes) -> None:
    pipe, far = ends
    far.send(packet)
    with pytest.raises(rdsd.ProtocolError):
        pipe.read()


def test_a_message_without_end_is_refused(ends: Ends) -> None:
    pipe, far = ends
    for _ in range(MESSAGE_LIMIT // PIECE):
        far.send(b"\1\1\0\0" + bytes(PIECE))
        assert pipe.read() is None
    far.send(b"\1\0\0\0x")
    with pytest.raises(rdsd.ProtocolError, match="16 MiB"):
        pipe.read()


def test_the_end_of_the_daemon(ends: Ends) -> None:
    pipe, far = ends
    far.close()
    with pytest.raises(EOFError):
        pipe.read()


@pytest.mark.parametrize("unread", [False, True])
def test_a_daemon_that_closed_is_read_to_the_end(ends: Ends, unread: bool) -> None:
    pipe, far = ends
    if unread:
        pipe.write(pb.ClientMessage(peek=pb.Peek(id=1)))
    messages = [message_of(size) for size in (100, 101, 102)]
    for message in messages:
        far.send(b"\1\0\0\0" + message.SerializeToString())
    far.close()
    if not unread:
        assert pipe.takes
        pipe.write(pb.ClientMessage(peek=pb.Peek(id=1)))
    assert [pipe.read() for _ in messages] == messages
    with pytest.raises(EOFError):
        pipe.read()
    pipe.write(pb.ClientMessage(peek=pb.Peek(id=2)))
    assert not pipe.takes
    assert not pipe.blocked


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("name", ["sync", "aio"])
async def test_what_a_daemon_wrote_before_it_closed(
    tmp_path: Path, name: str, unread: bool
) -> None:
    front = Front(name, "seqpacket")
    where = pb.Endpoint(address=bytes((127, 0, 0, 1)), port=4000)
    bound = pb.ServerMessage(bound=pb.Bound(local=where, daemon_instance=1))
    last = [
        pb.ServerMessage(recv=pb.RecvBatch(payload=bytes([i]), length=[1], source=[where]))
        for i in range(3)
    ]
    last.append(pb.ServerMessage(closing=pb.Closing(errno=errno.ECANCELED, message="dismissed")))

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 17)  # Bind
            connection.send(b"\1\0\0\0" + bound.SerializeToString())
            if unread:
                connection.recv(1, socket.MSG_PEEK)  # Monitor
            for message in last:
                connection.send(b"\1\0\0\0" + message.SerializeToString())

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "d.sock.rings"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        client = front.client(f"unix://{tmp_path}/d.sock")
        sock = await front.do(client.bind, (HOST, 0), timeout=30)
        await asyncio.to_thread(thread.join, 30)
        got = [(await front.do(sock.recv, timeout=30)).payload for _ in range(3)]
        assert got == [b"\0", b"\1", b"\2"]
        with pytest.raises(rdsd.Cancelled, match="dismissed"):
            await front.do(sock.recv, timeout=30)
        assert sock.closed
        await front.close()


def test_a_path_too_long_for_a_socket_is_named() -> None:
    with new_socket() as sock, pytest.raises(rdsd.InvalidArgument, match="too long"):
        try_connect(sock, "/" + "x" * 200)


VECTORS = REPO / "shm" / "testdata" / "vectors.txt"


def vectors(kind: str) -> Iterator[tuple[dict[str, str], bytes]]:
    """The golden vectors of one kind: fields and bytes."""
    for block in VECTORS.read_text().split("\n\n"):
        lines = [line.split(" ", 2) for line in block.splitlines() if not line.startswith("#")]
        if not lines or lines[0][:2] != ["vector", kind]:
            continue
        fields = {line[1]: line[2] for line in lines if line[0] == "field"}
        data = bytearray(int(next(line[1] for line in lines if line[0] == "size")))
        for line in lines:
            if line[0] == "at":
                piece = bytes.fromhex(line[2])
                data[int(line[1]) : int(line[1]) + len(piece)] = piece
        yield fields, bytes(data)


def test_golden_packets(ends: Ends) -> None:
    pipe, far = ends
    wholes = list(vectors("packet"))
    heads = list(vectors("packet_head"))
    assert wholes
    assert heads
    for fields, data in wholes:
        message = bytes.fromhex(fields["message"])
        assert (_packets.cut(message), fields["goes_on"]) == ([data], "0")
        far.send(data)
        with pytest.raises(rdsd.ProtocolError, match="malformed message"):
            pipe.read()  # the packet is right, and what is in it no message of protobuf
    for fields, data in heads:
        assert fields["goes_on"] == "1"
        assert _packets.cut(bytes(PIECE + 1))[0] == data + bytes(PIECE)


# -- the choice ------------------------------------------------------------------


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDSD_FRONT_END", raising=False)


def test_choices() -> None:
    rings = () if why_no_rings() else ("rings",)
    assert choose(None, "unix:///x.sock") == (*rings, "seqpacket", "grpc")
    assert choose("auto", "unix:x.sock") == (*rings, "seqpacket", "grpc")
    assert choose("auto", "10.0.0.1:4000") == ("grpc",)
    assert choose("auto", "unix-abstract:x") == (*rings, "seqpacket", "grpc")
    assert choose("seqpacket", "unix:///x.sock") == ("seqpacket",)
    assert choose("grpc", "unix:///x.sock") == ("grpc",)
    assert control_path("unix:///x.sock") == "/x.sock.rings"
    assert control_path("unix-abstract:x") == "@x.rings"


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDSD_FRONT_END", "grpc")
    assert choose(None, "unix:///x.sock") == ("grpc",)
    assert choose("seqpacket", "unix:///x.sock") == ("seqpacket",)
    monkeypatch.setenv("RDSD_FRONT_END", "tin cans")
    with pytest.raises(rdsd.InvalidArgument, match="tin cans"):
        rdsd.Client("/x.sock")


def test_a_choice_that_cannot_be() -> None:
    for front_end in ("rings", "seqpacket"):
        with pytest.raises(rdsd.RdsError, match=r"10\.0\.0\.1"):
            choose(front_end, "10.0.0.1:4000")
    with pytest.raises(rdsd.InvalidArgument, match="want"):
        rdsd.aio.Client("/x.sock", front_end="carrier")  # type: ignore[arg-type]


def test_the_fastest_that_is_there_is_taken(fake: FakeDaemon) -> None:
    with rdsd.Client(fake.target) as client, client.bind((HOST, 0)) as sock:
        assert sock.front_end == "seqpacket"
        assert "seqpacket open" in repr(sock)


def test_without_a_control_socket_it_is_grpc(fake: FakeDaemon) -> None:
    fake.serve_control = False
    fake.restart()
    with rdsd.Client(fake.target) as client, client.bind((HOST, 0)) as sock:
        assert sock.front_end == "grpc"
    with (
        rdsd.Client(fake.target, front_end="seqpacket") as client,
        pytest.raises(rdsd.DaemonUnavailable, match="no daemon answers"),
    ):
        client.bind((HOST, 0))


def test_a_control_socket_nobody_listens_on(fake: FakeDaemon) -> None:
    fake.serve_control = False
    fake.restart()
    path = Path(f"{fake.path}.rings")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    with rdsd.Client(fake.target) as client, client.bind((HOST, 0)) as sock:
        assert sock.front_end == "grpc"


async def test_a_daemon_without_control_socket_takes_over(fake: FakeDaemon) -> None:
    async with rdsd.aio.Client(fake.target) as client, await client.bind((HOST, 0)) as sock:
        assert sock.front_end == "seqpacket"
        fake.serve_control = False
        await asyncio.to_thread(fake.restart)
        await until(lambda: sock.daemon_instance == fake.instance)
        await sock.send(sock.local_address, b"still here", timeout=10)
        assert sock.front_end == "grpc"


async def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        await asyncio.sleep(0.005)


def test_an_interrupt_where_a_caller_begins_to_read(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        @staticmethod
        def monotonic() -> float:
            if threading.current_thread() is threading.main_thread():
                patched.undo()
                raise KeyboardInterrupt
            return time.monotonic()

    with rdsd.Client(fake.target, front_end="seqpacket") as client:
        sock = client.bind(("127.0.0.1", 0))
        with monkeypatch.context() as patched:
            patched.setattr("rdsd._sync_packets.time", Clock)
            with pytest.raises(KeyboardInterrupt):
                sock.recv(timeout=10)
        stream = cast(StreamSocket, sock)._stream
        assert isinstance(stream, _sync_packets.PacketStream)
        assert stream._driver == 0
        sock.send(sock.local_address, b"x", timeout=10)
        assert sock.recv(timeout=10).payload == b"x"


@pytest.mark.parametrize("front_end", ["seqpacket", "grpc"])
def test_an_interrupt_where_a_caller_takes_the_lock(
    fake: FakeDaemon, front_end: rdsd.FrontEnd
) -> None:
    with rdsd.Client(fake.target, front_end=front_end) as client:
        sock = client.bind(("127.0.0.1", 0))
        lock = cast(StreamSocket, sock)._lock

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if (
                frame.f_code.co_name != "__enter__"
                or "_sync_stream" not in frame.f_code.co_filename
            ):
                return None
            if event == "line" and held(lock):
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                sock.recv(timeout=10)
        finally:
            sys.settrace(before)
        assert lock.acquire(timeout=10)
        lock.release()
