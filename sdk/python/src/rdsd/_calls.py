"""What a caller waits for, without saying how it waits.

The core finishes a Call; the front that owns the caller set ``wake`` to a
thread's event or an asyncio future beforehand.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ._errors import RdsError, fresh

T = TypeVar("T")


class Call(Generic[T]):
    """One answer to come: ``done`` once, then either ``error`` or ``value``."""

    __slots__ = ("done", "error", "value", "wake")

    def __init__(self) -> None:
        self.done = False
        self.error: RdsError | None = None
        self.value: T | None = None
        self.wake: Callable[[], None] | None = None

    def finish(self, value: T) -> None:
        if not self.done:
            self.value = value
            self._end()

    def fail(self, error: RdsError) -> None:
        if not self.done:
            self.error = error
            self._end()

    def result(self) -> T:
        """The value of a done call, or its error raised."""
        if self.error is not None:
            raise fresh(self.error)
        assert self.done
        return self.value  # type: ignore[return-value]

    def _end(self) -> None:
        self.done = True
        if self.wake is not None:
            self.wake()


class Readiness:
    """Callers that wait until something can be taken, and why nothing more will come."""

    __slots__ = ("_waiters", "closed")

    def __init__(self) -> None:
        self._waiters: list[Call[None]] = []
        self.closed: RdsError | None = None

    def wait(self) -> Call[None]:
        """A call that finishes at the next signal, or fails when closed."""
        call = Call[None]()
        if self.closed is not None:
            call.fail(self.closed)
        else:
            self._waiters.append(call)
        return call

    def signal(self) -> None:
        """Wakes every waiter; each looks again and may wait again."""
        waiters, self._waiters = self._waiters, []
        for call in waiters:
            call.finish(None)

    def withdraw(self, call: Call[None]) -> None:
        if call in self._waiters:
            self._waiters.remove(call)

    def close(self, error: RdsError) -> None:
        self.closed = error
        waiters, self._waiters = self._waiters, []
        for call in waiters:
            call.fail(error)


class EventQueue(Generic[T]):
    """Events for one reader, with a readiness beside them."""

    __slots__ = ("items", "ready")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.ready = Readiness()

    def put(self, item: T) -> None:
        self.items.append(item)
        self.ready.signal()


class Ahead(Generic[T]):
    """What iterators have taken and not handed out. It stays when they are left: whoever
    takes next gets it first.

    refill is for the holder of the socket's lock; the others need none.
    """

    __slots__ = ("items", "pop")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.pop = self.items.popleft  # IndexError: there is none

    def take(self, limit: int) -> list[T]:
        """Up to limit of them."""
        out: list[T] = []
        with contextlib.suppress(IndexError):
            while len(out) < limit:
                out.append(self.pop())
        return out

    def refill(self, take: Callable[[], list[T]]) -> list[T]:
        """One of them, else one of what take returns, the rest of which is kept."""
        if one := self.take(1):
            return one
        taken = take()
        self.items.extend(taken[1:])
        return taken[:1]
