"""A socket of the front for asyncio over a stream of messages: gRPC or the control socket."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import grpc.aio

from ._aio_grpc import GrpcStream
from ._aio_packets import PacketStream
from ._aio_socket import CongestionWatch, Socket
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
from ._slots import AsyncSlot, Borrowed, Lease
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
from ._target import Timeout, seconds
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

T = TypeVar("T")

_CLOSE_WAIT = 1.0  # seconds for the daemon to end a stream we closed


class Stream(Protocol):
    """One connection of a socket to the daemon."""

    front_end: str

    async def run(self) -> RdsError | None:
        """Carries messages until the stream ends; why, None when without error."""

    def kick(self) -> None:
        """The core has something to write, or was closed."""


class StreamSocket(Socket):
    """Has one task, which opens the stream and opens it again after a loss."""

    def __init__(
        self, channel: grpc.aio.Channel, ways: Sequence[str], options: BindOptions, target: str
    ) -> None:
        self._channel = channel
        self._ways = ways
        self._target = target
        self._guard = ForkGuard()
        self._core = SocketCore(options)  # owned by the event loop's thread
        self._stream: Stream | None = None
        self._front_end = ""  # of the stream last opened
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="rdsd-socket")

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

    async def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        return await self._send_one(dst, payload, mode=Mode.FIRST_TRY, limit=seconds(timeout))

    async def try_send(self, dst: AddressLike, payload: Payload) -> int:
        return await self._send_one(dst, payload, mode=Mode.TRY, limit=TRY_TIMEOUT)

    async def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> range:
        return await self._send(outgoing(datagrams), mode=Mode.WAIT, limit=seconds(timeout))

    async def try_send_batch(self, datagrams: Iterable[tuple[AddressLike, Payload]]) -> range:
        return await self._send(outgoing(datagrams), mode=Mode.TRY, limit=TRY_TIMEOUT)

    async def send_run(
        self,
        dst: AddressLike,
        data: Payload | Sequence[Payload],
        lengths: int | Sequence[int] | None = None,
        timeout: Timeout = None,
    ) -> range:
        return await self._send(run(dst, data, lengths), mode=Mode.WAIT, limit=seconds(timeout))

    async def reserve(self, dst: AddressLike, size: int, timeout: Timeout = None) -> AsyncSlot:
        self._guard.check()
        return _Room(self, destination(dst), bytearray(check_slot(size)), timeout)

    async def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        result: CancelResult = await self._query(
            self._open().cancel_sent_to(to_address(dst)), seconds(timeout)
        )
        return result

    async def flush(self, timeout: Timeout = None) -> None:
        limit = seconds(timeout)
        await self._query(self._open().flush(limit), limit, grace=ANSWER_GRACE)

    def outcomes(self, timeout: Timeout = None) -> AsyncIterator[Outcome]:
        if not self._core.options.outcomes:
            raise make(InvalidArgument, "bind with outcomes=True to be told outcomes")
        ledger = self._core.sender.ledger
        return self._each(ledger.queue.ready, ledger.ahead, ledger.take_next, seconds(timeout))

    # -- receiving ---------------------------------------------------------------

    async def recv(self, timeout: Timeout = None) -> Datagram:
        return (await self.recv_batch(1, timeout))[0]

    async def recv_into(
        self, buffer: RoomForPayload, timeout: Timeout = None
    ) -> tuple[int, Address]:
        inbox, view = self._core.inbox, writable(buffer)
        taken = await self._take(
            inbox.ready, lambda: inbox.take_into(view), _deadline(seconds(timeout))
        )
        return taken[0]

    async def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        limit = check_limit(limit)
        inbox = self._core.inbox
        return await self._take(inbox.ready, lambda: inbox.take(limit), _deadline(seconds(timeout)))

    def __aiter__(self) -> AsyncIterator[Datagram]:
        inbox = self._core.inbox
        return self._each(inbox.ready, inbox.ahead, inbox.take_next, None)

    async def borrow(self, limit: int = 256, timeout: Timeout = None) -> Lease:
        batch = await self.recv_batch(limit, timeout)
        return Lease([Borrowed(addr, memoryview(payload)) for addr, payload in batch])

    async def _exchange(self, dst: Address, payload: Payload, timeout: float | None) -> Datagram:
        where = dst
        deadline = _deadline(timeout)
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
            if sent and isinstance(error, AddressInUse):
                raise make(DaemonUnavailable, PORT_LOST) from None
            if sent or undecided(error):
                core.take_back(where)
                self._kick()
            raise
        finally:
            core.inbox.withdraw_reply(where, reply)

    async def peek_size(self, timeout: Timeout = None) -> int | None:
        inbox = self._open().inbox
        if (size := inbox.next_size()) is not None:
            return size
        answer: int | None = await self._query(self._core.peek(), seconds(timeout))
        here = inbox.next_size()  # what was on its way arrived before the answer
        return here if here is not None else answer

    # -- congestion ---------------------------------------------------------------

    async def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        query = self._open().congested(to_address(dst))
        answer: bool = await self._query(query, seconds(timeout))
        return answer

    def watch_congestion(self, timeout: Timeout = None) -> StreamWatch:
        self._guard.check()
        queue = self._core.watch()
        self._kick()
        return StreamWatch(self, queue, seconds(timeout))

    def _check_usable(self) -> None:
        self._guard.check()
        if self._core.error is not None:
            raise fresh(self._core.error)

    # -- the end ---------------------------------------------------------------

    async def close(self) -> None:
        if self._guard.forked:
            return
        self._core.close()
        self._closing.set()
        self._kick()
        await self._end_requests()
        # A loop that has ended, and is closed perhaps, has ended its tasks.
        if self._task.done() or asyncio.current_task() is self._task:
            return
        done, _ = await asyncio.wait([self._task], timeout=_CLOSE_WAIT)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_WAIT)

    # -- waiting ---------------------------------------------------------------

    def _open(self) -> SocketCore:
        self._check_owner()
        return self._core

    def _check_owner(self) -> None:
        """Raises in a forked child, and in a loop that nothing here would ever wake."""
        self._guard.check()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the socket belongs to another event loop: the one it was bound in")

    async def _await_bound(self, limit: float | None) -> None:
        try:
            await self._wait(self._core.bound, _deadline(limit))
        except TimedOut:
            raise make(TimedOut, f"the daemon at {self._target} did not answer") from None

    async def _wait(self, call: Call[T], deadline: float | None) -> T:
        """The value of a call; TimedOut past the deadline, the call left as it is."""
        if not call.done:
            loop = asyncio.get_running_loop()
            finished = loop.create_future()

            def wake() -> None:
                if not finished.done():
                    finished.set_result(None)

            call.wake = wake
            alarm = None if deadline is None else loop.call_later(_left(deadline) or 0.0, wake)
            try:
                await finished
            finally:
                if alarm is not None:
                    alarm.cancel()
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
        self, items: list[tuple[Address, bytes]], *, mode: Mode, limit: float | None
    ) -> range:
        if limit == 0.0:
            try:
                return await self._send(items, mode=Mode.NOW, limit=TRY_TIMEOUT)
            except RdsError as error:
                raise too_late(error) from None
        deadline = _deadline(limit)
        job = self._open().send(items, mode, deadline)
        self._kick()
        try:
            if job.posted:
                await asyncio.sleep(0)  # whoever posts and posts lets the writer write
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
        self._kick()
        if limit == 0.0 and self._core.state is State.OPEN:  # asks once, and waits for the answer
            limit = TRY_TIMEOUT
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
            self._check_owner()
            if taken := take():
                if self._core.has_output:  # credit
                    self._kick()
                return taken
            call = ready.wait()
            try:
                await self._wait(call, deadline)
            finally:
                if not call.done:
                    ready.withdraw(call)

    async def _each(
        self, ready: Readiness, ahead: Ahead[T], take: Callable[[], list[T]], limit: float | None
    ) -> AsyncIterator[T]:
        while True:
            self._guard.check()
            try:
                item = ahead.pop()
            except IndexError:
                try:
                    item = (await self._take(ready, take, _deadline(limit)))[0]
                except Closed:
                    return
            yield item

    # -- the socket's task -------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._core.error is None:
                self._core.stream_opened()
                delay = self._core.stream_lost(await self._run_stream())
                if delay is not None:
                    await self._pause(delay)
        except Exception as error:  # a fault of this package: nobody may wait for ever
            self._core.fail(make(TransportFailed, f"internal error: {error!r}"))
            raise
        finally:  # the loop is ending, or close gave up waiting
            self._core.close()

    async def _pause(self, delay: float) -> None:
        """Sleeps, unless the socket is closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), delay)

    async def _run_stream(self) -> RdsError | None:
        """One stream from its opening to its end; why it ended, None when without error."""
        try:
            stream = await self._connect()
        except OSError as error:
            return unopened(error)
        self._stream = stream
        self._front_end = stream.front_end
        try:
            return await stream.run()
        finally:
            self._stream = None

    async def _connect(self) -> Stream:
        """By the first way there is."""
        if "seqpacket" in self._ways:
            packets = PacketStream(control_path(self._target), self._core)
            try:
                await packets.connect()
                return packets
            except Absent as absent:
                if "grpc" not in self._ways:
                    raise make(DaemonUnavailable, absent.strerror) from None
        return GrpcStream(self._channel, self._target, self._core)

    def _kick(self) -> None:
        """The core has something to write."""
        if self._stream is not None:
            self._stream.kick()


class StreamWatch(CongestionWatch):
    def __init__(
        self, sock: StreamSocket, queue: EventQueue[CongestionEvent], limit: float | None
    ) -> None:
        self._sock = sock
        self._queue = queue
        self._limit = limit

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
        self._queue.items.clear()  # nobody reads them any more
        self._queue.ready.close(make(Closed, "the watch is closed"))
        self._sock._kick()


class _Room(AsyncSlot):
    """A slot in this process; its commit sends as send does."""

    def __init__(self, sock: StreamSocket, dst: Address, room: bytearray, timeout: Timeout) -> None:
        super().__init__(memoryview(room))
        self._sock = sock
        self._dst = dst
        self._room = room
        self._timeout = timeout

    async def _send(self, count: int) -> int:
        return await self._sock.send(self._dst, self._room[:count], self._timeout)

    def _give_up(self) -> None:
        return


def _deadline(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
