"""The receiving half of a stream: unread datagrams, credit, replies waited for.

Credit: the daemon may push what the window allows; outstanding credit plus
what is unread here never passes the window (a last datagram may pass its
bytes, as the API says). Credit goes back once half of the window has been
read, so a busy reader costs few messages and never starves.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

from ._calls import Ahead, Call, Readiness
from ._errors import RdsError, TooLarge, make
from ._types import Address, Datagram, RoomForPayload


def writable(buffer: RoomForPayload) -> memoryview:
    """The bytes of a buffer to receive into."""
    view = memoryview(buffer)
    if view.readonly:
        raise BufferError("the buffer cannot be written to")
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous")
    return view.cast("B")


class Inbox:
    """Unread datagrams in order of arrival."""

    def __init__(self, window_datagrams: int, window_bytes: int, *, replies: bool = False) -> None:
        self._replies_only = replies  # what nobody waits for is dropped
        self._window_datagrams = window_datagrams
        self._window_bytes = window_bytes
        self._unread: deque[Datagram] = deque()
        self._unread_bytes = 0
        self._freed_datagrams = 0  # read since the last credit
        self._freed_bytes = 0
        self._replies: dict[Address, deque[Call[Datagram]]] = {}
        self.ahead = Ahead[Datagram]()  # read, as far as the window is concerned
        self.ready = Readiness()

    def __len__(self) -> int:
        return len(self.ahead.items) + len(self._unread)

    def initial_credit(self) -> tuple[int, int]:
        """Datagrams and bytes for a Bind: the window less what is unread."""
        self._freed_datagrams = self._freed_bytes = 0
        return (
            max(0, self._window_datagrams - len(self._unread)),
            max(0, self._window_bytes - self._unread_bytes),
        )

    def arrived(self, datagrams: Sequence[Datagram]) -> None:
        """New datagrams: the first caller waiting for a reply from their source, else the queue."""
        if not self._replies and not self._replies_only:
            self._unread.extend(datagrams)
            self._unread_bytes += sum([len(payload) for _, payload in datagrams])
            if datagrams:
                self.ready.signal()
            return
        for d in datagrams:
            waiting = self._replies.get(d.addr)
            if waiting:
                call = waiting.popleft()
                if not waiting:
                    del self._replies[d.addr]
                self._free(d)
                call.finish(d)
            elif self._replies_only:
                self._free(d)
            else:
                self._unread.append(d)
                self._unread_bytes += len(d.payload)
        if self._unread:
            self.ready.signal()

    def take(self, limit: int) -> list[Datagram]:
        """Up to limit datagrams, none when none is there."""
        out = self.ahead.take(limit)
        if limit - len(out) >= len(self._unread):
            out += self._unread
            self._freed_datagrams += len(self._unread)
            self._freed_bytes += self._unread_bytes
            self._unread.clear()
            self._unread_bytes = 0
            return out
        while len(out) < limit:
            d = self._unread.popleft()
            self._unread_bytes -= len(d.payload)
            self._free(d)
            out.append(d)
        return out

    def take_next(self) -> list[Datagram]:
        """One datagram, for an iterator: further ones are put ahead."""
        return self.ahead.refill(lambda: self.take(256))

    def take_into(self, view: memoryview) -> list[tuple[int, Address]]:
        """One datagram, copied to view: its size and source; nothing when none is there."""
        if (size := self.next_size()) is None:
            return []
        if size > len(view):
            raise make(
                TooLarge, f"the next datagram has {size} bytes, the buffer {len(view)}: it was left"
            )
        for datagram in self.take(1):
            if (size := len(datagram.payload)) <= len(view):
                view[:size] = datagram.payload
                return [(size, datagram.addr)]
            self.ahead.items.appendleft(datagram)  # an iterator has taken the one before it
        return self.take_into(view)

    def next_size(self) -> int | None:
        for queue in (self.ahead.items, self._unread):
            with contextlib.suppress(IndexError):  # an iterator may take the last one ahead
                return len(queue[0].payload)
        return None

    @property
    def owes_credit(self) -> bool:
        """Half of the window has been read since the last credit."""
        return (
            self._freed_datagrams * 2 >= self._window_datagrams
            or self._freed_bytes * 2 >= self._window_bytes
        )

    def credit_due(self) -> tuple[int, int] | None:
        """Credit to hand back now, or None while too little has been read."""
        if not self.owes_credit:
            return None
        due = (self._freed_datagrams, self._freed_bytes)
        self._freed_datagrams = self._freed_bytes = 0
        return due

    def await_reply(self, source: Address) -> Call[Datagram]:
        """A call finished by the next datagram from source that no earlier caller waits for."""
        call = Call[Datagram]()
        if self.ready.closed is not None:
            call.fail(self.ready.closed)
        else:
            self._replies.setdefault(source, deque()).append(call)
        return call

    def withdraw_reply(self, source: Address, call: Call[Datagram]) -> None:
        waiting = self._replies.get(source)
        if waiting and call in waiting:
            waiting.remove(call)
            if not waiting:
                del self._replies[source]

    def clear(self) -> None:
        """Nothing is unread any more: the application closed the socket."""
        self.ahead.items.clear()
        self._unread.clear()
        self._unread_bytes = 0

    def close(self, error: RdsError) -> None:
        """No more will arrive. What is unread can still be taken."""
        self.ready.close(error)
        for waiting in self._replies.values():
            for call in waiting:
                call.fail(error)
        self._replies.clear()

    def _free(self, d: Datagram) -> None:
        self._freed_datagrams += 1
        self._freed_bytes += len(d.payload)
