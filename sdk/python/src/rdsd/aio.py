"""The front for asyncio: Client and Socket with the surface of the synchronous ones.

A cancelled ``await`` takes back what has not left; what the daemon has already
accepted stays accepted. Everything belongs to the event loop the socket was
bound in. Its sockets: ``_aio_socket`` says what they do, ``_aio_stream`` does it
over a stream of messages (gRPC or the control socket), ``_aio_rings`` over rings.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from . import _process
from ._aio_admin import Admin, NoticeWatch, TraceWatch
from ._aio_socket import CongestionWatch, Socket
from ._aio_stream import StreamSocket
from ._aio_volumes import Volumes, VolumeWatch
from ._core import BindOptions
from ._errors import Closed, RdsError, TimedOut, make
from ._front_end import FrontEnd, choose
from ._grpc import CHANNEL_OPTIONS
from ._requests import AioRequests, port_options
from ._surface import BIND_TIMEOUT, CLOSED, DEFAULT_WINDOW, ForkGuard, Window, bind_options
from ._target import Timeout, resolve_target, seconds
from ._types import AddressLike
from .v1 import rdsd_pb2_grpc as rpc

if TYPE_CHECKING:
    from ._aio_rings import RingSocket

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
    """A way to one daemon. Opening it does no I/O; sockets are bound on it.

    As ``rdsd.Client``, inside one event loop, or in one after the other: what was got
    from it, as a socket or ``admin``, belongs to the loop in which it was.
    """

    def __init__(self, target: str | None = None, *, front_end: FrontEnd | None = None) -> None:
        """The arguments are those of rdsd.Client."""
        self._target = resolve_target(target)
        self._ways = choose(front_end, self._target)
        self._guard = ForkGuard()
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()
        self._opening: set[RingSocket] = set()
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._channel: grpc.aio.Channel | None = None  # made in the loop that uses it, and its
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def target(self) -> str:
        return self._target

    @property
    def admin(self) -> Admin:
        """The daemon's datagrams for administrators: peers, sockets, queues, congestion."""
        return Admin(self._open_channel(), self._target, self._guard)

    @property
    def admin_service(self) -> rpc.AdminAsyncStub:
        """The raw service of the API that admin calls; from_grpc makes its errors typed."""
        return rpc.AdminStub(self._open_channel())

    @property
    def volumes(self) -> Volumes:
        """The volumes of the daemon: exports, mappings, sessions."""
        return Volumes(self._open_channel(), self._target, self._guard)

    async def bind(
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
        """Opens a socket on a local address; the arguments are those of rdsd.Client.bind."""
        self._check()
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
        sock = await self._bind(options, seconds(timeout))
        sock._requests = AioRequests(self._bind, port_options(options, sock.local_address))
        if self._closed:
            await sock.close()
            raise make(Closed, CLOSED)
        self._sockets.add(sock)
        return sock

    async def _bind(self, options: BindOptions, limit: float | None) -> Socket:
        """A socket, or a port for the replies to one's requests."""
        try:
            return await self._bound(options, limit)
        except RdsError:
            self._check()  # close is why
            raise

    async def _bound(self, options: BindOptions, limit: float | None) -> Socket:
        until = None if limit is None else time.monotonic() + limit
        while "rings" in self._ways:
            from ._aio_rings import RingSocket
            from ._ring import WITHOUT_RINGS

            ring = RingSocket(self._target, options)
            left = BIND_TIMEOUT if until is None else until - time.monotonic()
            try:
                self._opening.add(ring)  # for close
                await ring.open(max(0.0, min(left, BIND_TIMEOUT)))
                return ring
            except TimedOut:
                if self._closed or (until is not None and time.monotonic() >= until):
                    raise
            except RdsError as error:
                if len(self._ways) == 1 or error.errno not in WITHOUT_RINGS:
                    raise
                break
            finally:
                self._opening.discard(ring)
        sock = StreamSocket(self._open_channel(), self._ways, options, self._target)
        try:
            self._sockets.add(sock)  # for close
            await sock._await_bound(None if until is None else max(0.0, until - time.monotonic()))
        except BaseException:
            await sock.close()
            raise
        finally:
            self._sockets.discard(sock)
        return sock

    async def close(self) -> None:
        """Closes every socket and the channel, also when it is cancelled. Again: waits for that."""
        if self._guard.forked:
            return
        if self._ending is None:
            self._closed = True
            for ring in self._opening:
                ring.give_up()
            self._ending = asyncio.create_task(self._end(), name="rdsd-close")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await asyncio.gather(*[sock.close() for sock in list(self._sockets)])
        if self._channel is not None and self._loop is asyncio.get_running_loop():
            await self._channel.close()  # that of a loop that has ended has nothing under way

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _check(self) -> None:
        self._guard.check()
        if self._closed:
            raise make(Closed, CLOSED)

    def _open_channel(self) -> grpc.aio.Channel:
        self._check()
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
            raise RuntimeError("the client belongs to another event loop: the one it is used in")
        if self._channel is None or self._loop is not loop:
            self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
            self._loop = loop
        return self._channel
