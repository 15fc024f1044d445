"""A socket of the front for threads over rings: most calls are the extension's own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from . import _process
from ._calls import EventQueue
from ._core import BindOptions
from ._errors import Closed, Congested, InvalidArgument, RdsError, TimedOut, fresh, make
from ._ring import Ring, RingRoom, lease
from ._slots import Lease, Slot
from ._sync_socket import CongestionWatch, Socket
from ._target import Timeout, seconds
from ._threads import later, side_by_side
from ._types import (
    Address,
    AddressLike,
    CancelResult,
    CongestionEvent,
    Datagram,
    Outcome,
    Payload,
)

#: A watch is closed by another thread at latest after so long, seconds.
_SLICE = 0.2


class RingSocket(Ring, Socket):
    def __init__(self, target: str, options: BindOptions, timeout: float | None) -> None:
        super().__init__()
        self._options = options
        self._closed = False
        self._changes_read: object = None  # by this call, for all; guarded by watching
        self.open(target, options, timeout)

    # -- what it is ----------------------------------------------------------

    @property
    def local_address(self) -> Address:
        return self.local

    @property
    def front_end(self) -> str:
        return "rings"

    @property
    def connected(self) -> bool:
        return not self._closed and self._info()[2]

    @property
    def daemon_instance(self) -> int:
        return self.instance

    @property
    def closed(self) -> bool:
        return self._closed or self._info()[3] != 0

    # -- sending ---------------------------------------------------------------

    def reserve(self, dst: AddressLike, size: int, timeout: Timeout = None) -> Slot:
        return _Slot(self._reserve(dst, size, timeout, True))

    def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        return CancelResult(*self._cancel(dst, timeout))

    def flush(self, timeout: Timeout = None) -> None:
        self._flush(timeout)

    def outcomes(self, timeout: Timeout = None) -> Iterator[Outcome]:
        if not self._options.outcomes:
            raise make(InvalidArgument, "bind with outcomes=True to be told outcomes")
        return self._each_outcome(seconds(timeout))

    def _each_outcome(self, limit: float | None) -> Iterator[Outcome]:
        while True:
            deadline = _deadline(limit)
            try:
                while (outcome := self.next_outcome()) is None:
                    self.await_outcomes(_left(deadline))
            except Closed:
                return
            yield outcome

    # -- receiving ---------------------------------------------------------------

    def __iter__(self) -> Iterator[Datagram]:
        return iter(self._next, None)

    def borrow(self, limit: int = 256, timeout: Timeout = None) -> Lease:
        return lease(self._borrow(limit, timeout))

    def _exchange(self, dst: Address, payload: Payload, timeout: float | None) -> Datagram:
        return Datagram(dst, self._request(dst, payload, timeout))

    def _check_usable(self) -> None:
        if self._closed and not self.forked:
            raise make(Closed)
        with contextlib.suppress(Congested):  # too much is borrowed, which is in nobody's way here
            self._peek()  # raises why it is over

    def peek_size(self, timeout: Timeout = None) -> int | None:
        return self._peek()

    # -- congestion ---------------------------------------------------------------

    def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        return self._congested(dst, timeout)

    def watch_congestion(self, timeout: Timeout = None) -> CongestionWatch:
        limit = seconds(timeout)
        self.check()
        with self.watching:
            self.take_changes()
            return RingWatch(self, self.watchers.add(), limit)

    def look(self) -> None:
        """As take_changes; an error ends the watches."""
        try:
            self.take_changes()
        except RdsError as error:
            self.watchers.close(error)
            self.watched.notify_all()

    # -- the end ---------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        if _process.ending():
            return
        if self._in_a_call():
            later(self.close)
            return
        # Whoever waits in a call hears of it before the daemon is waited for.
        side_by_side([*([] if self.forked else self._end_requests()), self.end])


class RingWatch(CongestionWatch):
    """One thread at a time asks the library for events, and hands them to all watches."""

    def __init__(
        self, sock: RingSocket, queue: EventQueue[CongestionEvent], limit: float | None
    ) -> None:
        self._sock = sock
        self._queue = queue
        self._limit = limit

    def __next__(self) -> CongestionEvent:
        sock, deadline, me = self._sock, _deadline(self._limit), object()
        sock.check()
        while True:
            try:  # from here on: a KeyboardInterrupt may come between any two steps
                if (event := self._take(deadline, me)) is not None:
                    return event
                self._read(deadline)
            finally:
                if sock._changes_read is me:
                    with sock.watching:
                        sock._changes_read = None
                        sock.watched.notify_all()

    def _take(self, deadline: float | None, me: object) -> CongestionEvent | None:
        """An event; None: this call reads, for all."""
        sock, queue = self._sock, self._queue
        with sock.watching:
            while True:
                if not queue.items and sock._changes_read is None:
                    sock.look()
                if queue.items:
                    return queue.items.popleft()
                if queue.ready.closed is not None:
                    if isinstance(queue.ready.closed, Closed):
                        raise StopIteration
                    raise fresh(queue.ready.closed)
                if deadline is not None and time.monotonic() >= deadline:
                    raise make(TimedOut)
                if sock._changes_read is None:
                    sock._changes_read = me
                    return None
                sock.watched.wait(_left(deadline))

    def _read(self, deadline: float | None) -> None:
        """Waits a moment for an event, for all watches."""
        sock, left = self._sock, _left(deadline)
        event, error = None, None
        try:
            event = sock._next_congestion(_SLICE if left is None else min(_SLICE, left), True)
        except TimedOut:
            pass
        except RdsError as caught:
            error = caught
        finally:
            with sock.watching:
                if event is not None:
                    sock.changed(event)
                if error is not None:
                    sock.watchers.close(error)

    def close(self) -> None:
        sock = self._sock
        if sock.forked or _process.ending():
            return
        with sock.watching:
            sock.watchers.remove(self._queue)
            self._queue.items.clear()  # nobody reads them any more
            self._queue.ready.close(make(Closed, "the watch is closed"))
            sock.watched.notify_all()


class _Slot(RingRoom, Slot):
    def _send(self, count: int) -> int:
        return self._send_now(count)


def _deadline(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
