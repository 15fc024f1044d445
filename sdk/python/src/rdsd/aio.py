"""The front for asyncio: Client and Socket with the surface of the synchronous ones.

Each socket has one task, which opens the stream, reads it and opens it again
after a loss, and beside it, for the life of a stream, one that writes. A
cancelled ``await`` takes back what has not left; what the daemon has already
accepted stays accepted. Everything belongs to the event loop the socket was
bound in.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from ._calls import Call, EventQueue, Readiness
from ._core import ANSWER_GRACE, BIND_ANSWER, BindOptions, Query, SocketCore, State
from ._errors import (
    BatchError,
    Closed,
    DaemonUnavailable,
    InvalidArgument,
    ProtocolError,
    RdsError,
    TimedOut,
    TransportFailed,
    make,
)
from ._grpc import CHANNEL_OPTIONS, from_grpc
from ._jobs import Mode, SendJob
from ._surface import (
    BIND_TIMEOUT,
    DEFAULT_WINDOW,
    TRY_TIMEOUT,
    ForkGuard,
    Window,
    bind_options,
    check_limit,
    only_error,
    outgoing,
    undecided,
)
from ._target import Timeout, resolve_target, seconds
from ._types import (
    Address,
    AddressLike,
    CancelResult,
    CongestionEvent,
    Datagram,
    Outcome,
    Payload,
    to_address,
)
from .v1 import rdsd_pb2 as pb
from .v1 import rdsd_pb2_grpc as rpc

__all__ = ["Client", "CongestionWatch", "Socket"]

T = TypeVar("T")

_CLOSE_WAIT = 1.0  # seconds for the daemon to end a stream we closed


class _WriteRace(TransportFailed):
    """grpc.aio replaces the status of a stream by its own INTERNAL when the daemon
    refuses the stream while the Bind is being written. Asking again brings the
    daemon's reason out."""


_RACES = 10


class Client:
    """A way to one daemon. Opening it does no I/O; sockets are bound on it.

    As ``rdsd.Client``, inside one event loop.
    """

    def __init__(self, target: str | None = None) -> None:
        """target: a gRPC target or the path of a Unix socket; by default
        $RDSD_SOCKET, else unix:///run/rdsd/rdsd.sock."""
        self._target = resolve_target(target)
        self._guard = ForkGuard()
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()
        self._closed = False
        self._channel: grpc.aio.Channel | None = None  # made in the loop that uses it

    @property
    def target(self) -> str:
        return self._target

    @property
    def admin(self) -> rpc.AdminAsyncStub:
        """The raw administration service; from_grpc makes its errors typed."""
        return rpc.AdminStub(self._open_channel())

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
        timeout: Timeout = BIND_TIMEOUT,
    ) -> Socket:
        """Opens a socket on a local address; the arguments are those of rdsd.Client.bind."""
        options = bind_options(
            local,
            send_buffer=send_buffer,
            recv_buffer=recv_buffer,
            label=label,
            recv_window=recv_window,
            outcomes=outcomes,
            reconnect=reconnect,
            congestion_mask=congestion_mask,
        )
        sock = Socket(rpc.DatagramsStub(self._open_channel()), options, self._target)
        try:
            await sock._await_bound(seconds(timeout))
        except BaseException:
            await sock.close()
            raise
        self._sockets.add(sock)
        return sock

    async def close(self) -> None:
        """Closes every socket and the channel. Again: nothing."""
        if self._closed or self._guard.forked:
            return
        self._closed = True
        for sock in list(self._sockets):
            await sock.close()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _open_channel(self) -> grpc.aio.Channel:
        self._guard.check()
        if self._closed:
            raise make(Closed, "the client is closed")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        return self._channel


class Socket:
    """An RDS socket: ordered, reliable datagrams from one local address. Made by Client.bind.

    Any number of tasks of its loop may use it. Every timeout is in seconds, a
    timedelta, or None to wait for ever; past it TimedOut is raised.
    """

    def __init__(self, stub: rpc.DatagramsAsyncStub, options: BindOptions, target: str) -> None:
        self._stub = stub
        self._target = target
        self._guard = ForkGuard()
        self._core = SocketCore(options)  # owned by the event loop's thread
        self._writable = asyncio.Event()  # something to write, or closing
        self._task = asyncio.create_task(self._run(), name="rdsd-socket")

    # -- what it is ----------------------------------------------------------

    @property
    def local_address(self) -> Address:
        return self._core.local

    @property
    def closed(self) -> bool:
        return self._core.error is not None

    def __repr__(self) -> str:
        return f"<rdsd.aio.Socket {self._core.local} {self._core.state.value}>"

    # -- sending ---------------------------------------------------------------

    async def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        """Sends one datagram, waiting for room. Returns its tag once it is accepted."""
        return await self._send_one(dst, payload, mode=Mode.FIRST_TRY, limit=seconds(timeout))

    async def try_send(self, dst: AddressLike, payload: Payload) -> int:
        """Sends without waiting for room: WouldBlock or Congested at once instead."""
        return await self._send_one(dst, payload, mode=Mode.TRY, limit=TRY_TIMEOUT)

    async def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> range:
        """Sends many in order; far cheaper than one by one. Returns their tags.

        Raises BatchError, which lists each datagram that was not accepted.
        """
        return await self._send(outgoing(datagrams), mode=Mode.WAIT, limit=seconds(timeout))

    async def try_send_batch(self, datagrams: Iterable[tuple[AddressLike, Payload]]) -> range:
        """As send_batch, without waiting for room."""
        return await self._send(outgoing(datagrams), mode=Mode.TRY, limit=TRY_TIMEOUT)

    async def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        """Drops what is queued to dst and has not begun to leave (port 0: to every port)."""
        result: CancelResult = await self._query(
            self._open().cancel_sent_to(to_address(dst)), seconds(timeout)
        )
        return result

    async def flush(self, timeout: Timeout = None) -> None:
        """Waits until every datagram accepted so far has its outcome."""
        limit = seconds(timeout)
        await self._query(self._open().flush(limit), limit, grace=ANSWER_GRACE)

    def outcomes(self, timeout: Timeout = None) -> AsyncIterator[Outcome]:
        """Yields the outcome of each accepted datagram; timeout is for each wait.

        The socket must be bound with outcomes=True. Outcomes are kept until
        read; when very many are unread, sending waits.
        """
        if not self._core.options.outcomes:
            raise make(InvalidArgument, "bind with outcomes=True to be told outcomes")
        ledger = self._core.sender.ledger
        return self._events(ledger.queue.ready, lambda: ledger.take(256), seconds(timeout))

    # -- receiving ---------------------------------------------------------------

    async def recv(self, timeout: Timeout = None) -> Datagram:
        """The next datagram."""
        return (await self.recv_batch(1, timeout))[0]

    async def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        """At least one datagram, and up to limit of those that are there."""
        check_limit(limit)
        inbox = self._core.inbox
        return await self._take(inbox.ready, lambda: inbox.take(limit), _deadline(seconds(timeout)))

    async def __aiter__(self) -> AsyncIterator[Datagram]:
        """Datagrams until the socket is closed."""
        while True:
            try:
                batch = await self.recv_batch()
            except Closed:
                return
            for datagram in batch:
                yield datagram

    async def request(self, dst: AddressLike, payload: Payload, timeout: Timeout) -> Datagram:
        """Sends, then waits for the next datagram from dst; others stay for recv.

        Past the timeout everything this socket has queued to dst is cancelled
        and TimedOut raised. A reply that comes later is received as any datagram.
        """
        where = to_address(dst)
        deadline = _deadline(seconds(timeout))
        core = self._open()
        reply = core.inbox.await_reply(where)
        sent = False
        try:
            await self._send_one(where, payload, mode=Mode.FIRST_TRY, limit=_left(deadline))
            sent = True
            return await self._wait(reply, deadline)
        except BaseException as error:
            if isinstance(error, TimedOut) and reply.done and reply.error is None:
                return reply.result()  # it came at the last moment
            if sent or undecided(error):
                core.take_back(where)
                self._writable.set()
            raise
        finally:
            core.inbox.withdraw_reply(where, reply)

    async def peek_size(self, timeout: Timeout = None) -> int | None:
        """Bytes of the next datagram, None when none is there."""
        inbox = self._core.inbox
        if (size := inbox.next_size()) is not None:
            return size
        answer: int | None = await self._query(self._open().peek(), seconds(timeout))
        here = inbox.next_size()  # what was on its way arrived before the answer
        return here if here is not None else answer

    # -- congestion ---------------------------------------------------------------

    async def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        """Whether dst is marked congested, as far as this node knows."""
        query = self._open().congested(to_address(dst))
        answer: bool = await self._query(query, seconds(timeout))
        return answer

    def watch_congestion(self, timeout: Timeout = None) -> CongestionWatch:
        """Events from now on, and what cleared while nobody watched; timeout is for each wait."""
        queue = self._open().watch()
        self._writable.set()
        return CongestionWatch(self, queue, seconds(timeout))

    # -- the end ---------------------------------------------------------------

    async def close(self) -> None:
        """Closes the socket: what is queued is dropped (flush first to keep it). Again: nothing."""
        if self._guard.forked:
            return
        self._core.close()
        self._writable.set()
        if asyncio.current_task() is self._task:
            return
        done, _ = await asyncio.wait([self._task], timeout=_CLOSE_WAIT)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_WAIT)

    async def __aenter__(self) -> Socket:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- waiting ---------------------------------------------------------------

    def _open(self) -> SocketCore:
        self._guard.check()
        return self._core

    async def _await_bound(self, limit: float | None) -> None:
        try:
            await self._wait(self._core.bound, _deadline(limit))
        except TimedOut:
            raise make(TimedOut, f"the daemon at {self._target} did not answer") from None

    async def _wait(self, call: Call[T], deadline: float | None) -> T:
        """The value of a call; TimedOut past the deadline, the call left as it is."""
        if not call.done:
            finished = asyncio.get_running_loop().create_future()

            def wake() -> None:
                if not finished.done():
                    finished.set_result(None)

            call.wake = wake
            await asyncio.wait([finished], timeout=_left(deadline))
            if not call.done:
                raise make(TimedOut)
        return call.result()

    async def _send_one(
        self, dst: AddressLike, payload: Payload, *, mode: Mode, limit: float | None
    ) -> int:
        try:
            return (await self._send(outgoing([(dst, payload)]), mode=mode, limit=limit))[0]
        except BatchError as error:
            raise only_error(error) from None

    async def _send(
        self, items: list[tuple[Address, Payload]], *, mode: Mode, limit: float | None
    ) -> range:
        deadline = _deadline(limit)
        job = self._open().send(items, mode, deadline)
        self._writable.set()
        try:
            return await self._await_sent(job, deadline)
        except BatchError:
            raise
        except BaseException as error:
            # Nobody will read the answer: what has not left stays here.
            own = error if isinstance(error, RdsError) else make(Closed)
            self._core.sender.abandon(job, own)
            raise

    async def _await_sent(self, job: SendJob, deadline: float | None) -> range:
        try:
            return await self._wait(job.call, deadline)
        except TimedOut:
            if job.call.done:
                raise
        self._core.sender.expire(job)
        try:
            return await self._wait(job.call, time.monotonic() + ANSWER_GRACE)
        except TimedOut:
            late = make(TimedOut, "the daemon did not answer")
            late.undecided = True
            raise late from None

    async def _query(self, query: Query, limit: float | None, grace: float = 0.0) -> Any:
        self._writable.set()
        try:
            return await self._wait(query.call, _deadline(None if limit is None else limit + grace))
        finally:
            if not query.call.done:
                self._core.withdraw(query)

    async def _take(
        self, ready: Readiness, take: Callable[[], list[T]], deadline: float | None
    ) -> list[T]:
        """What take returns once it is not empty."""
        while True:
            self._guard.check()
            if taken := take():
                if self._core.has_output:  # credit
                    self._writable.set()
                return taken
            call = ready.wait()
            try:
                await self._wait(call, deadline)
            finally:
                if not call.done:
                    ready.withdraw(call)

    async def _events(
        self, ready: Readiness, take: Callable[[], list[T]], limit: float | None
    ) -> AsyncIterator[T]:
        while True:
            try:
                batch = await self._take(ready, take, _deadline(limit))
            except Closed:
                return
            for item in batch:
                yield item

    # -- the socket's task -------------------------------------------------------

    async def _run(self) -> None:
        try:
            raced = 0
            while self._core.error is None:
                self._core.stream_opened()
                error = await self._stream()
                if isinstance(error, _WriteRace) and raced < _RACES:
                    raced += 1
                    self._core.stream_void()
                    continue
                raced = 0
                delay = self._core.stream_lost(error)
                if delay is not None:
                    await self._pause(delay)
        except Exception as error:  # a fault of this package: nobody may wait for ever
            self._core.fail(make(TransportFailed, f"internal error: {error!r}"))
            raise
        finally:  # the loop is ending, or close gave up waiting
            self._core.close()

    async def _pause(self, delay: float) -> None:
        """Sleeps, unless the socket is closed meanwhile."""
        until = time.monotonic() + delay
        while self._core.error is None and (left := until - time.monotonic()) > 0:
            self._writable.clear()
            try:
                await asyncio.wait_for(self._writable.wait(), left)
            except TimeoutError:
                return

    async def _stream(self) -> RdsError | None:
        """One stream from start to end; returns why it ended, None when without error."""
        call = None
        writer = None
        try:
            call = self._stub.Open()
            writer = asyncio.create_task(self._write(call), name="rdsd-write")
            message = await asyncio.wait_for(call.read(), BIND_ANSWER)
            while isinstance(message, pb.ServerMessage):  # else EOF
                self._core.receive(message)
                if self._core.has_output:
                    self._writable.set()
                message = await call.read()
            if (code := await call.code()) is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code,
                    await call.initial_metadata(),
                    await call.trailing_metadata(),
                    await call.details(),
                )
        except grpc.aio.AioRpcError as error:
            lost = from_grpc(error, self._target)
            if self._core.state is State.BINDING and error.code() is grpc.StatusCode.INTERNAL:
                return _WriteRace(lost.errno, lost.strerror)
            return lost
        except ProtocolError as error:
            return error
        except TimeoutError:
            return make(TimedOut, f"the daemon at {self._target} did not answer")
        except (ValueError, grpc.aio.UsageError) as error:  # the channel is closed
            return make(DaemonUnavailable, str(error))
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            if call is not None:
                call.cancel()
        return None

    async def _write(self, call: Any) -> None:
        """Writes what the core has until the socket closes; the reader sees a lost stream."""
        try:
            while self._core.error is None:
                self._writable.clear()
                while (message := self._core.poll(time.monotonic())) is not None:
                    await call.write(message)
                await self._writable.wait()
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return


class CongestionWatch:
    """An async iterator of CongestionEvent, from Socket.watch_congestion; close it when done."""

    def __init__(
        self, sock: Socket, queue: EventQueue[CongestionEvent], limit: float | None
    ) -> None:
        self._sock = sock
        self._queue = queue
        self._limit = limit

    def __aiter__(self) -> CongestionWatch:
        return self

    async def __anext__(self) -> CongestionEvent:
        items = self._queue.items

        def take() -> list[CongestionEvent]:
            return [items.popleft()] if items else []

        try:
            taken = await self._sock._take(self._queue.ready, take, _deadline(self._limit))
        except Closed:
            raise StopAsyncIteration from None
        return taken[0]

    def close(self) -> None:
        self._sock._core.watchers.remove(self._queue)
        self._queue.ready.close(make(Closed, "the watch is closed"))
        self._sock._writable.set()

    def __enter__(self) -> CongestionWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _deadline(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
