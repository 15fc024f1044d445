"""The front for threads: Client and Socket over grpcio's synchronous API.

Threads: each socket has one of its own, which opens the stream, reads it and
opens it again after a loss; gRPC runs another that takes what is to be written.
``Socket._lock`` guards the core; it is never held while waiting for anything
but the writer's own condition. Callers wait on an event of their own.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import grpc

from ._calls import Call, EventQueue, Readiness
from ._core import ANSWER_GRACE, BIND_ANSWER, BindOptions, Query, SocketCore
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

T = TypeVar("T")

_CLOSE_WAIT = 1.0  # seconds for the daemon to end a stream we closed


class Client:
    """A way to one daemon. Opening it does no I/O; sockets are bound on it."""

    def __init__(self, target: str | None = None) -> None:
        """target: a gRPC target or the path of a Unix socket; by default
        $RDSD_SOCKET, else unix:///run/rdsd/rdsd.sock."""
        self._target = resolve_target(target)
        self._guard = ForkGuard()
        self._sockets: weakref.WeakSet[Socket] = weakref.WeakSet()
        self._closed = False
        self._channel = grpc.insecure_channel(self._target, options=CHANNEL_OPTIONS)

    @property
    def target(self) -> str:
        return self._target

    @property
    def admin(self) -> rpc.AdminStub:
        """The raw administration service; from_grpc makes its errors typed."""
        self._check()
        return rpc.AdminStub(self._channel)

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
        timeout: Timeout = BIND_TIMEOUT,
    ) -> Socket:
        """Opens a socket on a local address; port 0 takes any free port.

        send_buffer, recv_buffer: bytes, 0 for the daemon's default. recv_window:
        datagrams and bytes the daemon may push ahead of recv. outcomes: report
        what became of each accepted datagram. reconnect: bind again by itself
        when the daemon restarts. congestion_mask: bit (port mod 64) set watches
        that group of ports. Raises DaemonUnavailable at once when no daemon answers.
        """
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
        )
        sock = Socket(rpc.DatagramsStub(self._channel), options, self._target)
        try:
            sock._await_bound(seconds(timeout))
        except BaseException:
            sock.close()
            raise
        self._sockets.add(sock)
        return sock

    def close(self) -> None:
        """Closes every socket and the channel. Again: nothing."""
        if self._closed or self._guard.forked:
            return
        self._closed = True
        for sock in list(self._sockets):
            sock.close()
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
            raise make(Closed, "the client is closed")


class Socket:
    """An RDS socket: ordered, reliable datagrams from one local address. Made by Client.bind.

    Any number of threads may use it at once. Every timeout is in seconds, a
    timedelta, or None to wait for ever; past it TimedOut is raised.
    """

    def __init__(self, stub: rpc.DatagramsStub, options: BindOptions, target: str) -> None:
        self._stub = stub
        self._target = target
        self._guard = ForkGuard()
        self._core = SocketCore(options)  # guarded by _lock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # something to write, or closing
        self._stream: _Stream | None = None  # guarded by _lock
        self._thread = threading.Thread(target=self._run, name="rdsd-socket", daemon=True)
        self._thread.start()

    # -- what it is ----------------------------------------------------------

    @property
    def local_address(self) -> Address:
        return self._core.local

    @property
    def closed(self) -> bool:
        return self._core.error is not None

    def __repr__(self) -> str:
        return f"<rdsd.Socket {self._core.local} {self._core.state.value}>"

    # -- sending ---------------------------------------------------------------

    def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        """Sends one datagram, waiting for room. Returns its tag once it is accepted."""
        return self._send_one(dst, payload, mode=Mode.FIRST_TRY, limit=seconds(timeout))

    def try_send(self, dst: AddressLike, payload: Payload) -> int:
        """Sends without waiting for room: WouldBlock or Congested at once instead."""
        return self._send_one(dst, payload, mode=Mode.TRY, limit=TRY_TIMEOUT)

    def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> range:
        """Sends many in order; far cheaper than one by one. Returns their tags.

        Raises BatchError, which lists each datagram that was not accepted.
        """
        return self._send(outgoing(datagrams), mode=Mode.WAIT, limit=seconds(timeout))

    def try_send_batch(self, datagrams: Iterable[tuple[AddressLike, Payload]]) -> range:
        """As send_batch, without waiting for room."""
        return self._send(outgoing(datagrams), mode=Mode.TRY, limit=TRY_TIMEOUT)

    def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        """Drops what is queued to dst and has not begun to leave (port 0: to every port)."""
        where = to_address(dst)
        result: CancelResult = self._query(lambda core: core.cancel_sent_to(where), timeout)
        return result

    def flush(self, timeout: Timeout = None) -> None:
        """Waits until every datagram accepted so far has its outcome."""
        limit = seconds(timeout)
        self._query(lambda core: core.flush(limit), limit, grace=ANSWER_GRACE)

    def outcomes(self, timeout: Timeout = None) -> Iterator[Outcome]:
        """Yields the outcome of each accepted datagram; timeout is for each wait.

        The socket must be bound with outcomes=True. Outcomes are kept until
        read; when very many are unread, sending waits.
        """
        if not self._core.options.outcomes:
            raise make(InvalidArgument, "bind with outcomes=True to be told outcomes")
        limit = seconds(timeout)
        ledger = self._core.sender.ledger
        return self._events(ledger.queue.ready, lambda: ledger.take(256), limit)

    # -- receiving ---------------------------------------------------------------

    def recv(self, timeout: Timeout = None) -> Datagram:
        """The next datagram."""
        return self.recv_batch(1, timeout)[0]

    def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        """At least one datagram, and up to limit of those that are there."""
        check_limit(limit)
        inbox = self._core.inbox
        return self._take(inbox.ready, lambda: inbox.take(limit), _deadline(seconds(timeout)))

    def __iter__(self) -> Iterator[Datagram]:
        """Datagrams until the socket is closed."""
        while True:
            try:
                batch = self.recv_batch()
            except Closed:
                return
            yield from batch

    def request(self, dst: AddressLike, payload: Payload, timeout: Timeout) -> Datagram:
        """Sends, then waits for the next datagram from dst; others stay for recv.

        Past the timeout everything this socket has queued to dst is cancelled
        and TimedOut raised. A reply that comes later is received as any datagram.
        """
        where = to_address(dst)
        deadline = _deadline(seconds(timeout))
        with self._locked() as core:
            reply = core.inbox.await_reply(where)
        sent = False
        try:
            self._send_one(where, payload, mode=Mode.FIRST_TRY, limit=_left(deadline))
            sent = True
            return self._wait(reply, deadline)
        except BaseException as error:
            with self._locked() as core:
                core.inbox.withdraw_reply(where, reply)
                if isinstance(error, TimedOut) and reply.done and reply.error is None:
                    return reply.result()  # it came at the last moment
                if sent or undecided(error):
                    core.take_back(where)
            raise
        finally:
            with self._lock:
                self._core.inbox.withdraw_reply(where, reply)

    def peek_size(self, timeout: Timeout = None) -> int | None:
        """Bytes of the next datagram, None when none is there."""
        inbox = self._core.inbox
        with self._locked():
            if (size := inbox.next_size()) is not None:
                return size
        answer: int | None = self._query(lambda core: core.peek(), timeout)
        with self._locked():  # what was on its way arrived before the answer
            here = inbox.next_size()
        return here if here is not None else answer

    # -- congestion ---------------------------------------------------------------

    def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        """Whether dst is marked congested, as far as this node knows."""
        where = to_address(dst)
        answer: bool = self._query(lambda core: core.congested(where), timeout)
        return answer

    def watch_congestion(self, timeout: Timeout = None) -> CongestionWatch:
        """Events from now on, and what cleared while nobody watched; timeout is for each wait."""
        with self._locked() as core:
            queue = core.watch()
        return CongestionWatch(self, queue, seconds(timeout))

    # -- the end ---------------------------------------------------------------

    def close(self) -> None:
        """Closes the socket: what is queued is dropped (flush first to keep it). Again: nothing."""
        if self._guard.forked:
            return
        with self._lock:
            self._core.close()
            stream = self._stream
            self._changed.notify_all()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(_CLOSE_WAIT)
        if stream is not None and self._thread.is_alive():
            stream.cancel()
            self._thread.join(_CLOSE_WAIT)

    def __enter__(self) -> Socket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- waiting ---------------------------------------------------------------

    def _locked(self) -> _Locked:
        self._guard.check()
        return _Locked(self)

    def _await_bound(self, limit: float | None) -> None:
        try:
            self._wait(self._core.bound, _deadline(limit))
        except TimedOut:
            raise make(TimedOut, f"the daemon at {self._target} did not answer") from None

    def _wait(self, call: Call[T], deadline: float | None) -> T:
        """The value of a call; TimedOut past the deadline, the call left as it is."""
        if not call.done:
            event = threading.Event()
            with self._lock:
                if not call.done:
                    call.wake = event.set
            if not call.done and not event.wait(_left(deadline)):
                with self._lock:
                    if not call.done:
                        raise make(TimedOut)
        return call.result()

    def _send_one(
        self, dst: AddressLike, payload: Payload, *, mode: Mode, limit: float | None
    ) -> int:
        try:
            return self._send(outgoing([(dst, payload)]), mode=mode, limit=limit)[0]
        except BatchError as error:
            raise only_error(error) from None

    def _send(
        self, items: list[tuple[Address, Payload]], *, mode: Mode, limit: float | None
    ) -> range:
        deadline = _deadline(limit)
        with self._locked() as core:
            job = core.send(items, mode, deadline)
        try:
            return self._await_sent(job, deadline)
        except BatchError:
            raise
        except BaseException as error:
            # Nobody will read the answer: what has not left stays here.
            self._abandon(job, error if isinstance(error, RdsError) else make(Closed))
            raise

    def _await_sent(self, job: SendJob, deadline: float | None) -> range:
        try:
            return self._wait(job.call, deadline)
        except TimedOut:
            if job.call.done:
                raise
        with self._locked() as core:
            core.sender.expire(job)
        try:
            return self._wait(job.call, time.monotonic() + ANSWER_GRACE)
        except TimedOut:
            late = make(TimedOut, "the daemon did not answer")
            late.undecided = True
            raise late from None

    def _abandon(self, job: SendJob, error: RdsError) -> None:
        with self._lock:
            self._core.sender.abandon(job, error)

    def _query(
        self, ask: Callable[[SocketCore], Query], timeout: Timeout, grace: float = 0.0
    ) -> Any:
        deadline = _deadline(seconds(timeout))
        with self._locked() as core:
            query = ask(core)
        try:
            return self._wait(query.call, None if deadline is None else deadline + grace)
        finally:
            if not query.call.done:
                with self._lock:
                    self._core.withdraw(query)

    def _take(
        self, ready: Readiness, take: Callable[[], list[T]], deadline: float | None
    ) -> list[T]:
        """What take returns once it is not empty."""
        while True:
            with self._locked():
                if taken := take():
                    return taken
                call = ready.wait()
            try:
                self._wait(call, deadline)
            finally:
                if not call.done:
                    with self._lock:
                        ready.withdraw(call)

    def _events(
        self, ready: Readiness, take: Callable[[], list[T]], limit: float | None
    ) -> Iterator[T]:
        while True:
            try:
                batch = self._take(ready, take, _deadline(limit))
            except Closed:
                return
            yield from batch

    # -- the socket's thread -----------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_stream()
        except Exception as error:  # a fault of this package: nobody may wait for ever
            with self._lock:
                self._core.fail(make(TransportFailed, f"internal error: {error!r}"))
                self._changed.notify_all()
            raise

    def _keep_stream(self) -> None:
        while True:
            stream = _Stream(self._core, self._changed)
            with self._lock:
                if self._core.error is not None:
                    return
                self._core.stream_opened()
                self._stream = stream
            error = self._read(stream)
            with self._lock:
                stream.stop()
                self._stream = None
                delay = self._core.stream_lost(error)
                if delay is None:
                    return
                until = time.monotonic() + delay
                while self._core.error is None and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)

    def _read(self, stream: _Stream) -> RdsError | None:
        """Reads until the stream ends; returns why, None when without error."""
        watchdog = threading.Timer(BIND_ANSWER, stream.cancel)
        watchdog.daemon = True
        try:
            messages = stream.start(self._stub)
            watchdog.start()
            for message in messages:
                watchdog.cancel()
                with self._lock:
                    self._core.receive(message)
                    if self._core.has_output:
                        self._changed.notify_all()
        except grpc.RpcError as error:
            return from_grpc(error, self._target)
        except ProtocolError as error:
            stream.cancel()
            return error
        except ValueError as error:  # the channel is closed
            return make(DaemonUnavailable, str(error))
        finally:
            watchdog.cancel()
        return None


class CongestionWatch:
    """An iterator of CongestionEvent, from Socket.watch_congestion; close it when done."""

    def __init__(
        self, sock: Socket, queue: EventQueue[CongestionEvent], limit: float | None
    ) -> None:
        self._sock = sock
        self._queue = queue
        self._limit = limit

    def __iter__(self) -> CongestionWatch:
        return self

    def __next__(self) -> CongestionEvent:
        items = self._queue.items

        def take() -> list[CongestionEvent]:
            return [items.popleft()] if items else []

        try:
            taken = self._sock._take(self._queue.ready, take, _deadline(self._limit))
        except Closed:
            raise StopIteration from None
        return taken[0]

    def close(self) -> None:
        with self._sock._locked() as core:
            core.watchers.remove(self._queue)
            self._queue.ready.close(make(Closed, "the watch is closed"))

    def __enter__(self) -> CongestionWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Locked:
    """The core, under its lock; on leaving, the writer looks for work."""

    __slots__ = ("_sock",)

    def __init__(self, sock: Socket) -> None:
        self._sock = sock

    def __enter__(self) -> SocketCore:
        self._sock._lock.acquire()
        return self._sock._core

    def __exit__(self, *_: object) -> None:
        if self._sock._core.has_output:
            self._sock._changed.notify_all()
        self._sock._lock.release()


class _Stream:
    """One gRPC stream; as an iterator it is what gRPC's writing thread takes from."""

    def __init__(self, core: SocketCore, changed: threading.Condition) -> None:
        self._core = core
        self._changed = changed
        self._stopped = False
        self.call: Any = None

    def start(self, stub: rpc.DatagramsStub) -> Iterator[pb.ServerMessage]:
        self.call = stub.Open(self)
        return iter(self.call)

    def cancel(self) -> None:
        """Breaks the stream off; its reader ends."""
        if self.call is not None:
            self.call.cancel()

    def stop(self) -> None:
        """Ends the writing side. The caller holds the lock."""
        self._stopped = True
        self._changed.notify_all()

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> pb.ClientMessage:
        with self._changed:
            while not self._stopped and self._core.error is None:
                message = self._core.poll(time.monotonic())
                if message is not None:
                    return message
                self._changed.wait()
        raise StopIteration


def _deadline(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
