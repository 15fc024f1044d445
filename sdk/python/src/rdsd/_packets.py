"""The daemon's control socket: messages as SEQPACKET packets (docs/shm.md, Control socket).

A plain socket of it carries exactly the messages of the gRPC stream, without
gRPC's cost. This module knows the packets and how to connect; the two fronts
wait in ``_sync_packets`` and ``_aio_packets``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import weakref
from collections import deque

from ._errors import (
    DaemonUnavailable,
    InvalidArgument,
    PermissionDenied,
    ProtocolError,
    RdsError,
    error_from_errno,
    make,
)
from ._target import ENDED, NO_SOCKET, NOT_ALLOWED
from .v1 import rdsd_pb2 as pb

HEADER = 4
PIECE = 1 << 16  # bytes of a message in one packet, at most
MESSAGE_LIMIT = 16 << 20

_LAST = b"\x01\x00\x00\x00"
_MORE = b"\x01\x01\x00\x00"
_SEND_BUFFER = 1 << 20  # bytes asked for; the kernel gives what it allows

#: Packets read in one go, so that a fast daemon does not keep callers from the lock.
BURST = 16

#: Pause before a full listen queue is tried again, seconds.
BUSY_PAUSE = 0.01


class Absent(DaemonUnavailable):
    """No daemon listens on the control socket."""


def unopened(error: OSError) -> RdsError:
    """Why there is no connection: an error of the daemon, or one of this process, which may have
    too much open."""
    if isinstance(error, RdsError):
        return error
    number = errno.EMFILE if error.errno == errno.ENFILE else error.errno or errno.EIO
    return error_from_errno(number, f"a socket to the daemon: {error.strerror}")


#: What is open here. Also open in a forked child it would keep the port of a parent that is gone.
_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _open.add(sock)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    return sock


def _leave_parent() -> None:
    for sock in list(_open):
        sock.close()  # and no shutdown: the parent goes on


os.register_at_fork(after_in_child=_leave_parent)


def try_connect(sock: socket.socket, path: str) -> bool:
    """Connects; False: the daemon's listen queue is full, try again. Absent: nobody is there."""
    try:
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
    except BlockingIOError:
        return False
    except (FileNotFoundError, NotADirectoryError):
        raise Absent(errno.ESHUTDOWN, f"no daemon answers at {path}: {NO_SOCKET}") from None
    except ConnectionRefusedError:
        raise Absent(errno.ESHUTDOWN, f"no daemon answers at {path}: {ENDED}") from None
    except PermissionError:
        raise make(PermissionDenied, f"control socket {path}: {NOT_ALLOWED}") from None
    except OSError as error:
        if error.errno is None:  # longer than a socket address holds
            raise make(InvalidArgument, f"control socket {path}: {error}") from None
        raise error_from_errno(error.errno, f"control socket {path}: {error.strerror}") from None
    return True


def cut(message: bytes) -> list[bytes]:
    """The packets of a message."""
    if len(message) <= PIECE:
        return [_LAST + message]
    last = (len(message) - 1) // PIECE * PIECE
    pieces = [_MORE + message[at : at + PIECE] for at in range(0, last, PIECE)]
    return [*pieces, _LAST + message[last:]]


class PacketPipe:
    """A connected control socket: whole messages in and out, never waiting."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent: deque[bytes] = deque()  # packets of messages that were taken
        self._pieces: list[bytes] = []  # of the message that is arriving
        self._size = 0
        self._finished = False  # nothing more is written

    @property
    def blocked(self) -> bool:
        """Something waits for the kernel to take more."""
        return bool(self._unsent)

    @property
    def takes(self) -> bool:
        """Whether write is worth a call."""
        return not (self._unsent or self._finished)

    def write(self, message: pb.ClientMessage) -> None:
        """Sends what the kernel takes now and keeps the rest.

        Where the daemon reads no more this is the end of writing alone: what it has
        written before, and why it closed, is still to be read.
        """
        self._unsent.extend(cut(message.SerializeToString()))
        self.resume()

    def resume(self) -> None:
        """Sends what was kept, as far as it goes."""
        unsent = self._unsent
        try:
            while unsent:
                self._sock.send(unsent[0])
                unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.finish()

    def read(self) -> pb.ServerMessage | None:
        """The next message, None when none is complete. EOFError: the daemon ended."""
        while True:
            try:
                packet = self._sock.recv(HEADER + PIECE + 1)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                continue  # it closed with something unread: comes once, before its last packets
            if not packet:
                raise EOFError
            message = self._take(packet)
            if message is not None:
                return message

    def finish(self) -> None:
        """No more will be written: the daemon closes the socket, and then the connection."""
        self._unsent.clear()
        self._finished = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def shutdown(self) -> None:
        """Ends the connection, also where a forked child still has it open."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _take(self, packet: bytes) -> pb.ServerMessage | None:
        size = len(packet) - HEADER
        more = size >= 0 and packet[:HEADER] == _MORE
        fits = size == PIECE if more else 0 < size <= PIECE and packet[:HEADER] == _LAST
        if not fits:
            text = f"the daemon sent a packet that is none: {packet[:4].hex()}, {size} bytes"
            raise make(ProtocolError, text)
        if more or self._pieces:
            self._pieces.append(packet[HEADER:])
            self._size += size
            if self._size > MESSAGE_LIMIT:
                raise make(ProtocolError, "the daemon sent a message of more than 16 MiB")
            if more:
                return None
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
        else:
            data = packet[HEADER:]
        try:
            return pb.ServerMessage.FromString(data)
        except Exception as error:  # protobuf's own error class differs between its back ends
            raise make(ProtocolError, f"the daemon sent a malformed message: {error}") from None


def lost(error: OSError) -> RdsError:
    """Why a connection that broke is gone."""
    if isinstance(error, RdsError):
        return error
    return make(DaemonUnavailable, f"the daemon is gone: {error.strerror}")
