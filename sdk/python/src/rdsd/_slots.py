"""Payloads in place: received ones to look at, one to send to be filled in.

Over rings a view is memory shared with the daemon; over a stream it is memory of
this process, and the same code runs. Giving memory back while somebody still
looks at it (a slice, an array over it) is safe: the daemon gets it when the last
one lets go.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from ._errors import Closed, TooLarge, make
from ._types import Address


class Borrowed(NamedTuple):
    """One received datagram in place."""

    addr: Address
    payload: memoryview


class Lease:
    """Datagrams in place, from borrow. Leaving its with-block, or release, gives them back."""

    def __init__(self, views: list[Borrowed]) -> None:
        self._slots = views

    def release(self) -> None:
        """Gives every datagram back; their memoryviews can be used no longer. Again: nothing.

        BufferError when something still looks at one, an array over it for instance.
        """
        while self._slots:
            self._slots[-1].payload.release()
            self._slots.pop()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: int) -> Borrowed:
        return self._slots[index]

    def __iter__(self) -> Iterator[Borrowed]:
        return iter(self._slots)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Room(ABC):
    """What every slot has: memory for one datagram, given up once."""

    def __init__(self, data: memoryview) -> None:
        self._data: memoryview | None = data

    @property
    def data(self) -> memoryview:
        """The room, to be written; of the size that was asked for."""
        if self._data is None:
            raise make(Closed, "this slot was committed or aborted")
        return self._data

    def abort(self) -> None:
        """Gives the room back unsent. Committed or aborted before: nothing."""
        if self._data is not None:
            self._data.release()
            self._data = None
            self._give_up()

    @abstractmethod
    def _give_up(self) -> None:
        """The room goes back unsent."""

    def _finish(self, size: int | None) -> int:
        """Ends the writing; how many bytes are to be sent."""
        room = len(self.data)
        count = room if size is None else operator.index(size)
        if not 0 <= count <= room:
            raise make(TooLarge, f"{count} bytes in a slot of {room}")
        self.data.release()
        self._data = None
        return count


class Slot(Room):
    """Room for one datagram, from Socket.reserve. Leaving its with-block uncommitted aborts it."""

    def commit(self, size: int | None = None) -> int:
        """Sends the first size bytes (all when None) and returns the datagram's tag.

        The datagram takes its place in the order now, not when it was reserved.
        """
        return self._send(self._finish(size))

    @abstractmethod
    def _send(self, count: int) -> int:
        """Sends so many bytes of the room."""

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


class AsyncSlot(Room):
    """As Slot, from rdsd.aio: commit is awaited."""

    async def commit(self, size: int | None = None) -> int:
        """Sends the first size bytes (all when None) and returns the datagram's tag."""
        return await self._send(self._finish(size))

    @abstractmethod
    async def _send(self, count: int) -> int:
        """Sends so many bytes of the room."""

    def __enter__(self) -> AsyncSlot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()
