"""The front for threads: Client, which opens sockets.

Its sockets: ``_sync_socket`` says what they do, ``_sync_stream`` does it over a
stream of messages (gRPC or the control socket), ``_sync_rings`` over rings.
"""

from __future__ import annotations

import threading
import time
import weakref
from types import TracebackType

import grpc

from . import _process
from ._core import BindOptions
from ._errors import Closed, RdsError, TimedOut, make
from ._front_end import FrontEnd, choose
from ._grpc import CHANNEL_OPTIONS
from ._requests import Requests, port_options
from ._surface import BIND_TIMEOUT, CLOSED, DEFAULT_WINDOW, ForkGuard, Window, bind_options
from ._sync_admin import Admin, NoticeWatch, TraceWatch
from ._sync_socket import CongestionWatch, Socket
from ._sync_stream import StreamSocket
from ._sync_volumes import Volumes, VolumeWatch
from ._target import Timeout, resolve_target, seconds
from ._threads import later, side_by_side, within_grpc
from ._types import AddressLike
from .v1 import rdsd_pb2_grpc as rpc

__all__ = [
    "Admin",
    "Client",
    "CongestionWatch",
    "NoticeWatch",
    "Socket",
    "TraceWatch",
    "VolumeWatch",
    "Volumes",
]


class Client(_process.OfOneProcess):
    """A way to one daemon. Opening it does no I/O; sockets are bound on it."""

    def __init__(self, target: str | None = None, *, front_end: FrontEnd | None = None) -> None:
        """target: a gRPC target or the path of a Unix socket; by default
        $RDSD_SOCKET, else unix:///run/rdsd/rdsd.sock. front_end: "auto", "rings",
        "seqpacket" or "grpc"; by default $RDSD_FRONT_END, else "auto", the
        fastest that is there."""
        self._target = resolve_target(target)
        self._ways = choose(front_end, self._target)
        self._guard = ForkGuard()
        # A finalizer or a signal handler that closes may come where it is held.
        self._lock = threading.RLock()
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()  # guarded by _lock
        self._closed = False  # set with _lock
        self._over: list[None] = []  # not empty: closed, for binds of the extension
        self._channel = grpc.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        # All of them now: to make one while another thread closes the channel crashes in gRPC.
        self._datagrams = rpc.DatagramsStub(self._channel)
        self._admin = Admin(self._channel, self._target, self._guard)
        self._volumes = Volumes(self._channel, self._target, self._guard)

    @property
    def target(self) -> str:
        return self._target

    @property
    def admin(self) -> Admin:
        """The daemon's datagrams for administrators: peers, sockets, queues, congestion."""
        self._check()
        return self._admin

    @property
    def admin_service(self) -> rpc.AdminStub:
        """The raw service of the API that admin calls; from_grpc makes its errors typed."""
        self._check()
        stub: rpc.AdminStub = self._admin._stub
        return stub

    @property
    def volumes(self) -> Volumes:
        """The volumes of the daemon: exports, mappings, sessions."""
        self._check()
        return self._volumes

    def bind(
        self,
        local: AddressLike,
        *,
        send_buffer: int = 0,
        recv_buffer: int = 0,
        label: str = "",
        recv_window: Window = DEFAULT_WINDOW,
        outcomes: bool = False,
        reconnect: bool = True,
        congestion_mask: int = 0,
        spin: Timeout = None,
        timeout: Timeout = BIND_TIMEOUT,
    ) -> Socket:
        """Opens a socket on a local address; port 0 takes any free port.

        send_buffer, recv_buffer: bytes, 0 for the daemon's default. recv_window:
        datagrams and bytes the daemon may push ahead of recv (over rings the receive
        buffer is what is ahead, and nothing is pushed). outcomes: report
        what became of each accepted datagram. reconnect: bind again by itself
        when the daemon restarts. congestion_mask: bit (port mod 64) set watches
        that group of ports. spin: how long a call over rings that waits keeps looking,
        offering its core to others, before it sleeps (default 50 microseconds, at
        most 10 ms). Raises DaemonUnavailable at once when no daemon answers.
        """
        self._check()
        if _process.ending():
            raise make(Closed, _process.ENDING)
        options = bind_options(
            local,
            send_buffer=send_buffer,
            recv_buffer=recv_buffer,
            label=label,
            recv_window=recv_window,
            outcomes=outcomes,
            reconnect=reconnect,
            congestion_mask=congestion_mask,
            spin=spin,
        )
        sock = self._bind(options, seconds(timeout))
        try:
            sock._requests = Requests(self._bind, port_options(options, sock.local_address))
            with self._lock:
                if self._closed:
                    raise make(Closed, CLOSED)
                self._sockets.add(sock)
        except BaseException:  # a KeyboardInterrupt, too: nobody else would close it
            sock.close()
            raise
        return sock

    def _bind(self, options: BindOptions, limit: float | None) -> Socket:
        """A socket, or a port for the replies to one's requests."""
        try:
            return self._bound(options, limit)
        except RdsError:
            self._check()  # close is why
            raise

    def _bound(self, options: BindOptions, limit: float | None) -> Socket:
        until = None if limit is None else time.monotonic() + limit
        while "rings" in self._ways:
            from . import _rings
            from ._ring import WITHOUT_RINGS
            from ._sync_rings import RingSocket

            left = BIND_TIMEOUT if until is None else until - time.monotonic()
            try:
                _rings.set_unwanted(self._over)
                return RingSocket(self._target, options, max(0.0, min(left, BIND_TIMEOUT)))
            except TimedOut:
                if self._closed or (until is not None and time.monotonic() >= until):
                    raise
            except RdsError as error:
                if len(self._ways) == 1 or error.errno not in WITHOUT_RINGS:
                    raise
                break
            finally:
                _rings.set_unwanted(None)
        sock = StreamSocket(self._datagrams, self._ways, options, self._target)
        try:
            with self._lock:  # for close
                self._check()
                self._sockets.add(sock)
            sock.open(None if until is None else max(0.0, until - time.monotonic()))
            with self._lock:
                self._sockets.discard(sock)
        except BaseException:
            sock.close()
            with self._lock:
                self._sockets.discard(sock)
            raise
        return sock

    def close(self) -> None:
        """Closes every socket and the channel; a bind under way raises Closed. Again: nothing."""
        if self._guard.forked or _process.ending():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._over.append(None)
            sockets = list(self._sockets)
        if within_grpc() or any(sock._in_a_call() for sock in sockets):
            later(lambda: self._end(sockets))
        else:
            self._end(sockets)

    def _end(self, sockets: list[Socket]) -> None:
        side_by_side([sock.close for sock in sockets])
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self) -> None:
        self._guard.check()
        if self._closed:
            raise make(Closed, CLOSED)
