"""A socket of the front for asyncio over rings.

A call tries at once; what cannot be done now waits until the library's
descriptor, which the event loop watches, says that something happened. The socket
is armed only while somebody waits: the daemon makes a system call to wake the
loop, and makes none otherwise. What asks the daemon and waits for its answer runs
in a thread of its own: a cancel, a flush, the first datagram to a destination.

What a reply port receives goes through an Inbox, which knows whose reply a datagram is. That of
another socket holds only what an iterator has taken ahead: the rest stays in the ring, which
``recv_buffer`` bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

from . import _rings
from ._aio_socket import CongestionWatch, Socket
from ._calls import Call, EventQueue
from ._core import BindOptions
from ._errors import (
    AddressInUse,
    BatchError,
    Closed,
    Congested,
    DaemonUnavailable,
    InvalidArgument,
    RdsError,
    TimedOut,
    WouldBlock,
    fresh,
    make,
)
from ._receiving import Inbox, writable
from ._ring import Ring, RingRoom, lease
from ._slots import AsyncSlot, Lease
from ._surface import PORT_LOST, TRY_TIMEOUT, check_limit, check_slot, outgoing, run
from ._target import Timeout, seconds
from ._threads import in_thread
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

#: Datagrams given to the library at once: what is refused is looked at one by one.
_CHUNK = 1024

_CANCEL_GRACE = 0.1  # seconds a request that timed out waits for its cancel
_MOMENT = 0.001  # seconds, where nothing tells when there is room again


class RingSocket(Socket):
    def __init__(self, target: str, options: BindOptions) -> None:
        self._target = target
        self._options = options
        self._ring = Ring()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()  # close is through
        self._given_up: list[None] = []  # open is, when it is not empty
        self._fd = -1
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._inbox = Inbox(0, 0, replies=options.replies)
        self._introducing: dict[Address, asyncio.Future[None]] = {}

    async def open(self, timeout: float | None) -> None:
        ring = self._ring
        try:
            await self._ask(lambda: ring.open(self._target, self._options, timeout), self._given_up)
        except asyncio.CancelledError:
            self._closed = True  # the thread that binds sees to the rest
            raise
        self._fd = ring._fd()
        self._loop.add_reader(self._fd, self._something)

    def give_up(self) -> None:
        """Ends open soon."""
        self._given_up.append(None)

    # -- what it is ----------------------------------------------------------

    @property
    def local_address(self) -> Address:
        return self._ring.local

    @property
    def front_end(self) -> str:
        return "rings"

    @property
    def connected(self) -> bool:
        return not self._closed and self._ring._info()[2]

    @property
    def daemon_instance(self) -> int:
        return self._ring.instance

    @property
    def closed(self) -> bool:
        return self._closed or self._ring._info()[3] != 0

    # -- sending ---------------------------------------------------------------

    async def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        limit = seconds(timeout)
        return await self._with_room(dst, lambda: self._ring.try_send(dst, payload), limit)

    async def try_send(self, dst: AddressLike, payload: Payload) -> int:
        await self._introduce(dst, _deadline(TRY_TIMEOUT))
        return self._ring.try_send(dst, payload)

    async def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> Sequence[int]:
        return await self._send_all(outgoing(datagrams), seconds(timeout))

    async def try_send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]]
    ) -> Sequence[int]:
        tags, refused = await self._attempt(outgoing(datagrams), _deadline(TRY_TIMEOUT))
        if refused:
            raise BatchError(sorted(refused.items()), tags)
        return tags

    async def send_run(
        self,
        dst: AddressLike,
        data: Payload | Sequence[Payload],
        lengths: int | Sequence[int] | None = None,
        timeout: Timeout = None,
    ) -> Sequence[int]:
        return await self._send_all(run(dst, data, lengths), seconds(timeout))

    async def reserve(self, dst: AddressLike, size: int, timeout: Timeout = None) -> AsyncSlot:
        size = check_slot(size)
        limit = seconds(timeout)
        return _Slot(
            await self._with_room(dst, lambda: self._ring._reserve(dst, size, None, False), limit)
        )

    async def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        limit = seconds(timeout)
        return CancelResult(*await self._ask(lambda: self._ring._cancel(dst, limit)))

    async def flush(self, timeout: Timeout = None) -> None:
        limit = seconds(timeout)
        await self._ask(lambda: self._ring._flush(limit))

    def outcomes(self, timeout: Timeout = None) -> AsyncIterator[Outcome]:
        if not self._options.outcomes:
            raise make(InvalidArgument, "bind with outcomes=True to be told outcomes")
        return self._each_outcome(seconds(timeout))

    async def _each_outcome(self, limit: float | None) -> AsyncIterator[Outcome]:
        while True:
            deadline = _deadline(limit)
            try:
                while (outcome := self._ring.next_outcome()) is None:
                    if not self._closed:
                        await self._wait(_rings.OUTCOME, deadline)
                    elif self._end.done():
                        return
                    else:  # closing decides what is left
                        await asyncio.wait([self._end], timeout=_left(deadline))
                        if not self._end.done():
                            raise make(TimedOut)
            except Closed:
                return
            yield outcome

    # -- receiving ---------------------------------------------------------------

    async def recv(self, timeout: Timeout = None) -> Datagram:
        return (await self.recv_batch(1, timeout))[0]

    async def recv_into(
        self, buffer: RoomForPayload, timeout: Timeout = None
    ) -> tuple[int, Address]:
        view = writable(buffer)

        def take() -> list[tuple[int, Address]]:
            if len(self._inbox):
                return self._inbox.take_into(view)
            got = self._ring._recv_into_now(view)
            return [] if got is None else [got]

        return (await self._received(take, _deadline(seconds(timeout))))[0]

    async def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        limit = check_limit(limit)
        return await self._received(lambda: self._take(limit), _deadline(seconds(timeout)))

    async def __aiter__(self) -> AsyncIterator[Datagram]:
        inbox = self._inbox
        while True:
            self._ring.check()
            try:
                datagram = inbox.ahead.pop()
            except IndexError:
                try:
                    datagram = (await self._received(self._take_next, None))[0]
                except Closed:
                    return
            yield datagram

    async def borrow(self, limit: int = 256, timeout: Timeout = None) -> Lease:
        limit = check_limit(limit)

        def take() -> list[tuple[Address, memoryview]]:
            if len(self._inbox):  # copied already
                return [(d.addr, memoryview(d.payload)) for d in self._inbox.take(limit)]
            return self._ring._borrow_now(limit)

        what = _rings.READABLE | _rings.BORROWED
        return lease(await self._received(take, _deadline(seconds(timeout)), what))

    def _check_usable(self) -> None:
        if self._closed and not self._ring.forked:
            raise make(Closed)
        with contextlib.suppress(Congested):  # too much is borrowed, which is in nobody's way here
            self._ring._peek()  # raises why it is over

    async def _exchange(self, dst: Address, payload: Payload, timeout: float | None) -> Datagram:
        where = dst
        deadline = _deadline(timeout)
        inbox = self._inbox
        self._pull()  # what has come before is no answer to this
        reply = inbox.await_reply(where)
        sent = False
        try:
            await self.send(where, payload, _left(deadline))
            sent = True
            self._pull()
            while not reply.done:
                await self._wait(_rings.READABLE, deadline, reply)
                self._pull()
            return reply.result()
        except BaseException as error:
            if isinstance(error, TimedOut) and reply.done and reply.error is None:
                return reply.result()  # it came at the last moment
            if sent and isinstance(error, AddressInUse):
                raise make(DaemonUnavailable, PORT_LOST) from None
            if sent:
                await self._take_back(where, wait=isinstance(error, RdsError))
            raise
        finally:
            inbox.withdraw_reply(where, reply)

    async def peek_size(self, timeout: Timeout = None) -> int | None:
        self._ring.check()
        here = self._inbox.next_size()
        return here if here is not None else self._ring._peek()

    # -- congestion ---------------------------------------------------------------

    async def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        where, limit = to_address(dst), seconds(timeout)
        return await self._ask(lambda: self._ring._congested(where, limit))

    def watch_congestion(self, timeout: Timeout = None) -> CongestionWatch:
        limit = seconds(timeout)
        ring = self._ring
        ring.check()
        with ring.watching:
            ring.take_changes()
            return RingWatch(self, ring.watchers.add(), limit)

    # -- the end ---------------------------------------------------------------

    async def close(self) -> None:
        if self._ring.forked:
            return
        if not self._closed:
            self._end = in_thread(self._ring.end)  # goes on, whoever cancels what follows
            self._end.add_done_callback(lambda _: self._wake(-1))
            self._closed = True
            if self._fd >= 0:
                self._loop.remove_reader(self._fd)
            self._inbox.clear()
        await self._end_requests()
        await asyncio.shield(self._end)

    # -- sending, inside -------------------------------------------------------

    async def _with_room(
        self, dst: AddressLike, attempt: Callable[[], T], limit: float | None
    ) -> T:
        """What attempt returns once it finds room."""
        deadline, introduced = _deadline(limit), _introduced_by(limit)
        looked = False
        while True:
            try:
                await self._introduce(dst, introduced)  # each time: another daemon knows none
                return attempt()
            except (WouldBlock, DaemonUnavailable) as error:
                if self.closed:
                    raise
                await self._wait_for_room([error], deadline)
            except Congested as error:
                if not looked:  # so that only what comes now ends the wait
                    looked = True
                    self.take_changes()
                else:
                    looked = False
                    await self._wait_for_room([error], deadline)

    async def _wait_for_room(self, errors: Iterable[RdsError], deadline: float | None) -> None:
        """Until there may be room after these refusals."""
        what = 0
        for error in errors:
            what |= _rings.CONGESTION if isinstance(error, Congested) else _rings.WRITABLE
        if not await self._wait(what, deadline):
            await asyncio.sleep(_MOMENT)  # there is room, and not enough

    async def _introduce(self, dst: AddressLike, deadline: float | None) -> None:
        """Has the daemon look at a destination nothing was sent to before.

        An attempt would wait for it in the loop, so none is made before it has.
        """
        ring = self._ring
        while not ring._known(dst):
            if not (self.connected or self.closed):
                raise make(DaemonUnavailable, "not connected to the daemon; reconnecting")
            asked = self._asked_about(to_address(dst))
            await asyncio.wait([asked], timeout=_left(deadline))
            if not asked.done():
                raise make(TimedOut)
            error = asked.exception()
            if error is None or ring._known(dst):
                continue
            if isinstance(error, TimedOut) and _left(deadline) != 0.0:
                continue  # the library's own limit, and not the caller's
            raise fresh(error) if isinstance(error, RdsError) else error

    def _asked_about(self, dst: Address) -> asyncio.Future[None]:
        """Once for all who send there, who go on in the order they came."""
        asked = self._introducing.get(dst)
        if asked is None:
            asked = asyncio.ensure_future(self._ask(lambda: self._ring.introduce(dst)))
            self._introducing[dst] = asked
            asked.add_done_callback(lambda done: self._introduced(dst, done))
        return asked

    def _introduced(self, dst: Address, asked: asyncio.Future[None]) -> None:
        del self._introducing[dst]
        if not asked.cancelled():
            asked.exception()  # whoever waits for it raises it

    async def _attempt(
        self, items: list[tuple[Address, bytes]], deadline: float | None
    ) -> tuple[Sequence[int], dict[int, RdsError]]:
        """Tags, and what was refused now, of datagrams that do not wait for room."""
        unknown: dict[Address, RdsError] = {}
        for dst in dict.fromkeys(addr for addr, _ in items):
            try:
                await self._introduce(dst, deadline)
            except RdsError as error:
                unknown[dst] = error
        some = [i for i, (dst, _) in enumerate(items) if dst not in unknown]
        errors = {i: fresh(unknown[d]) for i, (d, _) in enumerate(items) if d in unknown}
        try:
            tags = self._ring.try_send_batch([items[i] for i in some] if errors else items)
        except BatchError as error:
            tags = error.tags
            errors.update((some[i], why) for i, why in error.errors)
        if len(some) < len(items):
            of = dict(zip(some, tags, strict=True))
            tags = [of.get(i, 0) for i in range(len(items))]
        return tags, errors

    async def _send_all(
        self, items: list[tuple[Address, bytes]], limit: float | None
    ) -> Sequence[int]:
        deadline, introduced = _deadline(limit), _introduced_by(limit)
        tags: list[Sequence[int]] = []
        errors: list[tuple[int, RdsError]] = []
        late: dict[Address, RdsError] = {}  # had no room in time: nothing behind overtakes it
        for start in range(0, len(items), _CHUNK):
            part = items[start : start + _CHUNK]
            chunk, refused = await self._send_chunk(part, deadline, introduced, late)
            tags.append(chunk)
            errors.extend((start + i, error) for i, error in refused)
            for i, error in refused:
                if isinstance(error, WouldBlock | Congested | DaemonUnavailable | TimedOut):
                    late.setdefault(part[i][0], error)
        every = _joined(tags)
        if errors:
            raise BatchError(errors, every)
        return every

    async def _send_chunk(
        self,
        items: list[tuple[Address, bytes]],
        deadline: float | None,
        introduced: float | None,
        late: dict[Address, RdsError],
    ) -> tuple[Sequence[int], list[tuple[int, RdsError]]]:
        """Tags, and what was refused for good."""
        if late:
            return await self._send_rest(items, deadline, introduced, late)
        got, waiting = await self._attempt(items, introduced)
        if not waiting:
            return got, []
        tags, refused = list(got), {}
        looked = False
        while waiting:
            for i, why in list(waiting.items()):
                if not isinstance(why, WouldBlock | Congested | DaemonUnavailable) or self.closed:
                    refused[i] = waiting.pop(i)
            if not waiting:
                break
            try:
                if looked:
                    await self._wait_for_room(waiting.values(), deadline)
                else:
                    self.take_changes()
                looked = not looked
            except TimedOut as error:
                refused.update((i, error) for i in waiting)
                break
            order = sorted(waiting)
            got, again = await self._attempt([items[i] for i in order], introduced)
            waiting = {order[i]: why for i, why in again.items()}
            for i, tag in zip(order, got, strict=True):
                tags[i] = tag
        return tags, sorted(refused.items())

    async def _send_rest(
        self,
        items: list[tuple[Address, bytes]],
        deadline: float | None,
        introduced: float | None,
        late: dict[Address, RdsError],
    ) -> tuple[Sequence[int], list[tuple[int, RdsError]]]:
        """As _send_chunk, of what goes to other destinations than these, which are refused."""
        some = [i for i, (dst, _) in enumerate(items) if dst not in late]
        refused = [(i, late[dst]) for i, (dst, _) in enumerate(items) if dst in late]
        tags = [0] * len(items)
        if some:
            got, more = await self._send_chunk([items[i] for i in some], deadline, introduced, {})
            for i, tag in zip(some, got, strict=True):
                tags[i] = tag
            refused += [(some[i], error) for i, error in more]
        return tags, sorted(refused, key=lambda entry: entry[0])

    async def _take_back(self, dst: Address, *, wait: bool) -> None:
        """Cancels what a request has sent; nobody minds whether that can be done."""
        with contextlib.suppress(RdsError):
            asked = asyncio.ensure_future(self._ask(lambda: self._ring._cancel(dst, TRY_TIMEOUT)))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
            if wait:
                await asyncio.wait([asked], timeout=_CANCEL_GRACE)

    # -- receiving, inside -----------------------------------------------------

    def _take(self, limit: int) -> list[Datagram]:
        # What has been taken ahead, and nothing behind it: who pulls more whenever something is
        # here empties the ring, and nobody who sends meets congestion.
        return self._inbox.take(limit) if len(self._inbox) else self._ring._recv_now(limit)

    def _take_next(self) -> list[Datagram]:
        """One datagram, for an iterator: further ones are put ahead."""
        ahead = self._inbox.ahead
        taken = ahead.refill(lambda: self._take(256))
        if ahead.items:
            self._wake(_rings.READABLE)  # the iterator may be left
        return taken

    def _pull(self) -> None:
        """Of a reply port: replies go to their requests, and what else has come is dropped."""
        while batch := self._ring._recv_now(256):
            self._inbox.arrived(batch)

    async def _received(
        self, take: Callable[[], list[T]], deadline: float | None, what: int = _rings.READABLE
    ) -> list[T]:
        self._ring.check()
        looked = False
        while not (taken := take()):
            if await self._wait(what, deadline):
                looked = False
            elif looked:
                await asyncio.sleep(_MOMENT)  # what is there cannot be taken yet
            else:
                looked = True
        return taken

    # -- waiting ---------------------------------------------------------------

    async def _ask(self, question: Callable[[], T], unwanted: list[None] | None = None) -> T:
        """Runs what waits for the daemon in a thread, which ends soon after this is cancelled, or
        this list is not empty any more."""
        flag: list[None] = [] if unwanted is None else unwanted

        def ask() -> T:
            _rings.set_unwanted(flag)
            try:
                return question()
            finally:
                _rings.set_unwanted(None)

        try:
            return await in_thread(ask)
        except asyncio.CancelledError:
            flag.append(None)
            raise

    async def _wait(
        self, what: int, deadline: float | None, reply: Call[Datagram] | None = None
    ) -> bool:
        """Until something of what happened, or the reply is here; False: it had already."""
        if self._closed:
            raise make(Closed)
        left = _left(deadline)
        if left == 0.0:
            raise make(TimedOut)
        finished = self._loop.create_future()

        def wake() -> None:
            if not finished.done():
                finished.set_result(None)

        if reply is not None:
            reply.wake = wake
        waiter = (what, finished)
        self._waiters.append(waiter)
        alarm = None
        try:
            self._arm(finished)
            if finished.done():
                return False
            alarm = None if left is None else self._loop.call_later(left, wake)
            await finished
            return True
        finally:
            if alarm is not None:
                alarm.cancel()
            self._waiters.remove(waiter)
            if not self._waiters:
                self._ring._disarm()

    def _arm(self, mine: asyncio.Future[None]) -> None:
        """Asks to be woken for all that is waited for, and wakes whom it is there for.

        The library says what is there and is armed for nobody then: it is asked again
        for the others.
        """
        while True:
            wanted = 0
            for what, finished in self._waiters:
                wanted |= 0 if finished.done() else what
            if not wanted:
                return
            try:
                ready = self._ring._arm(wanted)
            except RdsError:  # it is over, for all of them
                there = mine.done()
                self._wake(-1)
                if there:
                    return
                raise
            if not ready:
                return
            self._wake(ready)

    def _wake(self, what: int) -> None:
        """Whoever waits for it looks again."""
        for wanted, finished in self._waiters:
            if wanted & what and not finished.done():
                finished.set_result(None)

    def _something(self) -> None:
        """The library's descriptor is readable."""
        ring = self._ring
        ring._disarm()
        self._wake(-1)
        try:
            ring._arm(0)  # empties it, and binds again when that is due
            ring._disarm()
        except RdsError:  # it is over: whoever calls hears of it
            self._loop.remove_reader(self._fd)

    def take_changes(self) -> None:
        self._ring.check()
        with self._ring.watching:
            self._ring.take_changes()
        self._wake(_rings.CONGESTION)


class RingWatch(CongestionWatch):
    def __init__(
        self, sock: RingSocket, queue: EventQueue[CongestionEvent], limit: float | None
    ) -> None:
        self._sock = sock
        self._queue = queue
        self._limit = limit

    async def __anext__(self) -> CongestionEvent:
        queue, deadline = self._queue, _deadline(self._limit)
        self._sock._ring.check()
        while True:
            if queue.items:
                return queue.items.popleft()
            if queue.ready.closed is not None:
                if isinstance(queue.ready.closed, Closed):
                    raise StopAsyncIteration
                raise fresh(queue.ready.closed)
            try:
                self._sock.take_changes()
                if not queue.items:
                    await self._sock._wait(_rings.CONGESTION, deadline)
            except Closed:
                raise StopAsyncIteration from None

    def close(self) -> None:
        self._sock._ring.watchers.remove(self._queue)
        self._queue.items.clear()  # nobody reads them any more
        self._queue.ready.close(make(Closed, "the watch is closed"))
        self._sock._wake(_rings.CONGESTION)


class _Slot(RingRoom, AsyncSlot):
    async def _send(self, count: int) -> int:
        return self._send_now(count)


def _joined(parts: list[Sequence[int]]) -> Sequence[int]:
    """Tags of several chunks; a range where they follow each other."""
    follow = all(a[-1] + 1 == b[0] for a, b in itertools.pairwise(parts))
    if follow and all(isinstance(part, range) for part in parts):
        return range(parts[0][0], parts[-1][-1] + 1) if parts else range(0)
    return [tag for part in parts for tag in part]


def _deadline(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _introduced_by(limit: float | None) -> float | None:
    """Until when a call waits for the daemon to look at a destination: also one that tries once."""
    return _deadline(TRY_TIMEOUT if limit == 0.0 else limit)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
