"""A socket over a stream of messages: gRPC or the daemon's control socket.

Threads: each socket has one of its own, which opens the stream, reads it and
opens it again after a loss. ``StreamSocket._lock`` guards the core; it is never
held while waiting for anything but a condition of its own. Callers wait on an event
of their own, or read the stream themselves where it allows that (``_sync_packets``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from . import _process
from ._calls import Ahead, Call, EventQueue, Readiness
from ._core import ANSWER_GRACE, BindOptions, Query, SocketCore, State
from ._errors import (
    AddressInUse,
    BatchError,
    Closed,
    DaemonUnavailable,
    InvalidArgument,
    RdsError,
    TimedOut,
    TransportFailed,
    fresh,
    make,
)
from ._front_end import control_path
from ._jobs import Mode, SendJob
from ._packets import Absent, unopened
from ._receiving import writable
from ._slots import Borrowed, Lease, Slot
from ._surface import (
    PORT_LOST,
    TRY_TIMEOUT,
    ForkGuard,
    check_limit,
    check_slot,
    destination,
    only_error,
    outgoing,
    run,
    too_late,
    undecided,
)
from ._sync_grpc import GrpcStream
from ._sync_packets import PacketStream
from ._sync_socket import CongestionWatch, Socket
from ._target import Timeout, seconds
from ._threads import held, later, side_by_side, within_grpc
from ._types import (
    Address,
    AddressLike,
    CancelResult,
    CongestionEvent,
    Datagram,
    Outcome,
    Payload,
    RoomForPayload,
    to_address,
)
from .v1 import rdsd_pb2_grpc as rpc

T = TypeVar("T")


class Stream(Protocol):
    """One connection of a socket to the daemon, from connect to the return of run.

    Where it says so the caller holds the socket's lock.
    """

    front_end: str

    def run(self) -> RdsError | None:
        """Carries messages until the stream ends; why, None when without error."""

    def kick(self) -> None:
        """The core has something to write, or was closed. With the lock."""

    def drive(self, call: Call[Any], deadline: float | None) -> None:
        """May serve the stream in the caller's thread until the call is done."""

    def waiting(self, change: int) -> None:
        """So many more callers wait for events, which run sets. With the lock."""

    def cancel(self) -> None:
        """Breaks the stream off."""

    def stop(self) -> None:
        """Nothing more is to be written. With the lock."""


_CLOSE_WAIT = 1.0  # seconds for the daemon to end a stream we closed


class StreamSocket(Socket):
    def __init__(
        self, stub: rpc.DatagramsStub, ways: Sequence[str], options: BindOptions, target: str
    ) -> None:
        self._stub = stub
        self._ways = ways
        self._target = target
        self._guard = ForkGuard()
        self._core = SocketCore(options)  # guarded by _lock
        self._lock = threading.RLock()  # never taken twice: see _in_a_call
        self._written = _Written(self)
        self._changed = threading.Condition(self._lock)  # something to write, or closing
        self._stream: Stream | None = None  # guarded by _lock
        self._waiting = 0  # callers that wait for events; guarded by _lock
        self._front_end = ""  # of the stream last opened
        self._thread = threading.Thread(target=self._run, name="rdsd-socket", daemon=True)

    def open(self, limit: float | None) -> None:
        """Binds. The caller closes it where this raises, also when interrupted."""
        self._thread.start()
        try:
            self._wait(self._core.bound, _deadline(limit))
        except TimedOut:
            raise make(TimedOut, f"the daemon at {self._target} did not answer") from None

    # -- what it is ----------------------------------------------------------

    @property
    def local_address(self) -> Address:
        return self._core.local

    @property
    def front_end(self) -> str:
        return self._front_end

    @property
    def connected(self) -> bool:
        return self._core.state is State.OPEN

    @property
    def daemon_instance(self) -> int:
        return self._core.instance

    @property
    def closed(self) -> bool:
        return self._core.error is not None

    # -- sending ---------------------------------------------------------------

    def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        return self._send_one(dst, payload, mode=Mode.FIRST_TRY, limit=seconds(timeout))

    def try_send(self, dst: AddressLike, payload: Payload) -> int:
        return self._send_one(dst, payload, mode=Mode.TRY, limit=TRY_TIMEOUT)

    def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> range:
        return self._send(outgoing(datagrams), mode=Mode.WAIT, limit=seconds(timeout))

    def try_send_batch(self, datagrams: Iterable[tuple[AddressLike, Payload]]) -> range:
        return self._send(outgoing(datagrams), mode=Mode.TRY, limit=TRY_TIMEOUT)

    def send_run(
        self,
        dst: AddressLike,
        data: Payload | Sequence[Payload],
        lengths: int | Sequence[int] | None = None,
        timeout: Timeout = None,
    ) -> range:
        return self._send(run(dst, data, lengths), mode=Mode.WAIT, limit=seconds(timeout))

    def reserve(self, dst: AddressLike, size: int, timeout: Timeout = None) -> Slot:
        self._guard.check()
        return _Room(self, destination(dst), bytearray(check_slot(size)), timeout)

    def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        where = to_address(dst)
        result: CancelResult = self._query(lambda core: core.cancel_sent_to(where), timeout)
        return result

    def flush(self, timeout: Timeout = None) -> None:
        limit = seconds(timeout)
        self._query(lambda core: core.flush(limit), limit, grace=ANSWER_GRACE)

    def outcomes(self, timeout: Timeout = None) -> Iterator[Outcome]:
        if not self._core.options.outcomes:
            raise make(InvalidArgument, "bind with outcomes=True to be told outcomes")
        limit = seconds(timeout)
        ledger = self._core.sender.ledger
        return self._each(ledger.queue.ready, ledger.ahead, ledger.take_next, limit)

    # -- receiving ---------------------------------------------------------------

    def recv(self, timeout: Timeout = None) -> Datagram:
        return self.recv_batch(1, timeout)[0]

    def recv_into(self, buffer: RoomForPayload, timeout: Timeout = None) -> tuple[int, Address]:
        inbox, view = self._core.inbox, writable(buffer)
        deadline = _deadline(seconds(timeout))
        return self._take(inbox.ready, lambda: inbox.take_into(view), deadline)[0]

    def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        limit = check_limit(limit)
        inbox = self._core.inbox
        return self._take(inbox.ready, lambda: inbox.take(limit), _deadline(seconds(timeout)))

    def __iter__(self) -> Iterator[Datagram]:
        inbox = self._core.inbox
        return self._each(inbox.ready, inbox.ahead, inbox.take_next, None)

    def borrow(self, limit: int = 256, timeout: Timeout = None) -> Lease:
        batch = self.recv_batch(limit, timeout)
        return Lease([Borrowed(addr, memoryview(payload)) for addr, payload in batch])

    def _exchange(self, dst: Address, payload: Payload, timeout: float | None) -> Datagram:
        where = dst
        deadline = _deadline(timeout)
        with self._locked(), self._written as core:
            reply = core.inbox.await_reply(where)
        sent = False
        try:
            self._send_one(where, payload, mode=Mode.FIRST_TRY, limit=_left(deadline))
            sent = True
            return self._wait(reply, deadline)
        except BaseException as error:
            with self._locked(), self._written as core:
                core.inbox.withdraw_reply(where, reply)
                if isinstance(error, TimedOut) and reply.done and reply.error is None:
                    return reply.result()  # it came at the last moment
                if sent or undecided(error):
                    core.take_back(where)
            if sent and isinstance(error, AddressInUse):
                raise make(DaemonUnavailable, PORT_LOST) from None
            raise
        finally:
            with self._lock:
                self._core.inbox.withdraw_reply(where, reply)

    def peek_size(self, timeout: Timeout = None) -> int | None:
        inbox = self._core.inbox
        with self._locked(), self._written:
            if (size := inbox.next_size()) is not None:
                return size
        answer: int | None = self._query(lambda core: core.peek(), timeout)
        with self._locked(), self._written:  # what was on its way arrived before the answer
            here = inbox.next_size()
        return here if here is not None else answer

    # -- congestion ---------------------------------------------------------------

    def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        where = to_address(dst)
        answer: bool = self._query(lambda core: core.congested(where), timeout)
        return answer

    def watch_congestion(self, timeout: Timeout = None) -> StreamWatch:
        with self._locked(), self._written as core:
            queue = core.watch()
        return StreamWatch(self, queue, seconds(timeout))

    def _check_usable(self) -> None:
        self._guard.check()
        if self._core.error is not None:
            raise fresh(self._core.error)

    # -- the end ---------------------------------------------------------------

    def close(self) -> None:
        if self._guard.forked or _process.ending():
            return
        if self._in_a_call():
            later(self.close)
            return
        with self._lock:  # whoever waits in a call hears of it before the daemon is waited for
            self._core.close()
            stream = self._stream
            self._kick()
        side_by_side([*self._end_requests(), lambda: self._end_thread(stream)])

    def _in_a_call(self) -> bool:
        return held(self._lock) or within_grpc() or super()._in_a_call()

    def _end_thread(self, stream: Stream | None) -> None:
        """Waits until the stream has ended, which the daemon does."""
        if threading.current_thread() is self._thread:
            return
        with contextlib.suppress(RuntimeError):  # interrupted before it began: it has nothing to do
            self._thread.join(_CLOSE_WAIT)
        if stream is not None and self._thread.is_alive():
            stream.cancel()
            self._thread.join(_CLOSE_WAIT)

    # -- waiting ---------------------------------------------------------------

    def _locked(self) -> threading.RLock:
        """The lock, for with: what a Python function acquires, a KeyboardInterrupt at its
        end would leave locked. What the core has to say then is for _written."""
        self._guard.check()
        if _process.ending():
            raise make(Closed, _process.ENDING)
        return self._lock

    def _wait(self, call: Call[T], deadline: float | None) -> T:
        """The value of a call; TimedOut past the deadline, the call left as it is."""
        if not call.done:
            stream = self._stream
            if stream is not None:
                stream.drive(call, deadline)
            if not call.done and not self._await_event(call, deadline):
                raise make(TimedOut)
        return call.result()

    def _await_event(self, call: Call[Any], deadline: float | None) -> bool:
        """Whether the call is done by then, by whoever reads the stream."""
        # A plain lock: an Event has one inside that an interrupt may find let go of.
        asleep = threading.Lock()
        asleep.acquire()
        with self._lock:
            if call.done:
                return True
            call.wake = asleep.release
            self._add_waiting(1)
        try:
            asleep.acquire(
                timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())
            )
        finally:
            with self._lock:
                self._add_waiting(-1)
        return call.done

    def _send_one(
        self, dst: AddressLike, payload: Payload, *, mode: Mode, limit: float | None
    ) -> int:
        try:
            return self._send(outgoing([(dst, payload)]), mode=mode, limit=limit)[0]
        except BatchError as error:
            raise only_error(error) from None

    def _send(
        self, items: list[tuple[Address, bytes]], *, mode: Mode, limit: float | None
    ) -> range:
        if limit == 0.0:
            try:
                return self._send(items, mode=Mode.NOW, limit=TRY_TIMEOUT)
            except RdsError as error:
                raise too_late(error) from None
        deadline = _deadline(limit)
        with self._locked(), self._written as core:
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
        with self._locked(), self._written as core:
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
        limit = seconds(timeout)
        with self._locked(), self._written as core:
            query = ask(core)
            if limit == 0.0 and core.state is State.OPEN:  # asks once, and waits for the answer
                limit = TRY_TIMEOUT
        deadline = _deadline(limit)
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
            with self._locked(), self._written:
                if taken := take():
                    return taken
                call = ready.wait()
            try:
                self._wait(call, deadline)
            finally:
                if not call.done:
                    with self._lock:
                        ready.withdraw(call)

    def _each(
        self, ready: Readiness, ahead: Ahead[T], take: Callable[[], list[T]], limit: float | None
    ) -> Iterator[T]:
        while True:
            self._guard.check()
            try:
                item = ahead.pop()  # without the lock, which would cost as much as all the rest
            except IndexError:
                try:
                    item = self._take(ready, take, _deadline(limit))[0]
                except Closed:
                    return
            yield item

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
            with self._lock:
                if self._core.error is not None:
                    return
                self._core.stream_opened()
            error = self._run_stream()
            with self._lock:
                delay = self._core.stream_lost(error)
                if delay is None:
                    return
                until = time.monotonic() + delay
                while self._core.error is None and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)

    def _run_stream(self) -> RdsError | None:
        """One stream from its opening to its end; why it ended, None when without error."""
        try:
            stream = self._connect()
        except OSError as error:
            return unopened(error)
        with self._lock:
            self._stream = stream
            self._front_end = stream.front_end
            stream.waiting(self._waiting)
        try:
            return stream.run()
        finally:
            with self._lock:
                stream.stop()
                self._stream = None

    def _connect(self) -> Stream:
        """By the first way there is."""
        if "seqpacket" in self._ways:
            packets = PacketStream(
                control_path(self._target), self._core, self._lock, self._changed
            )
            try:
                packets.connect()
                return packets
            except Absent as absent:
                if "grpc" not in self._ways:
                    raise make(DaemonUnavailable, absent.strerror) from None
        return GrpcStream(self._stub, self._target, self._core, self._changed)

    def _kick(self) -> None:
        """Whoever writes, or waits, looks again. The caller holds the lock."""
        if self._stream is not None:
            self._stream.kick()
        self._changed.notify_all()

    def _add_waiting(self, change: int) -> None:
        self._waiting += change
        if self._stream is not None:
            self._stream.waiting(change)


class StreamWatch(CongestionWatch):
    """An iterator of CongestionEvent, from Socket.watch_congestion; close it when done."""

    def __init__(
        self, sock: StreamSocket, queue: EventQueue[CongestionEvent], limit: float | None
    ) -> None:
        self._sock = sock
        self._queue = queue
        self._limit = limit

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
        if self._sock._guard.forked or _process.ending():
            return
        with self._sock._locked(), self._sock._written as core:
            core.watchers.remove(self._queue)
            self._queue.items.clear()  # nobody reads them any more
            self._queue.ready.close(make(Closed, "the watch is closed"))


class _Room(Slot):
    """A slot in this process; its commit sends as send does."""

    def __init__(self, sock: StreamSocket, dst: Address, room: bytearray, timeout: Timeout) -> None:
        super().__init__(memoryview(room))
        self._sock = sock
        self._dst = dst
        self._room = room
        self._timeout = timeout

    def _send(self, count: int) -> int:
        return self._sock.send(self._dst, self._room[:count], self._timeout)

    def _give_up(self) -> None:
        return


class _Written:
    """The core, whose lock is held; on leaving, the writer looks for work."""

    __slots__ = ("_sock",)

    def __init__(self, sock: StreamSocket) -> None:
        self._sock = sock

    def __enter__(self) -> SocketCore:
        return self._sock._core

    def __exit__(self, *_: object) -> None:
        sock = self._sock
        if sock._core.has_output and sock._stream is not None:
            sock._stream.kick()


def _deadline(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
