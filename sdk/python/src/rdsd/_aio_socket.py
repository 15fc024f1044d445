"""What a socket of the front for asyncio does, whichever way it reaches the daemon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from . import _process
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
    canonical,
)

if TYPE_CHECKING:
    from ._requests import AioRequests
    from ._slots import AsyncSlot, Lease


class Socket(_process.OfOneProcess, ABC):
    """An RDS socket: ordered, reliable datagrams from one local address. Made by Client.bind.

    Any number of tasks of its loop may use it. Every timeout is in seconds, a
    timedelta, or None to wait for ever; past it TimedOut is raised, and 0 tries once. A payload is
    anything with a buffer: bytes, bytearray, memoryview, array, ...
    """

    _requests: AioRequests  # set by Client.bind

    # -- what it is ----------------------------------------------------------

    @property
    @abstractmethod
    def local_address(self) -> Address:
        """The bound address, with its real port."""

    @property
    @abstractmethod
    def front_end(self) -> str:
        """How it reaches the daemon: "rings", "seqpacket" or "grpc"."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether a daemon serves it now; False while it binds itself again."""

    @property
    @abstractmethod
    def daemon_instance(self) -> int:
        """Changes with every start of the daemon this socket is bound to."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it has ended for good."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self.connected else "connecting"
        return f"<rdsd.aio.Socket {self.local_address} {self.front_end or 'no daemon'} {state}>"

    # -- sending ---------------------------------------------------------------

    @abstractmethod
    async def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        """Sends one datagram, waiting for room. Returns its tag once it is accepted."""

    @abstractmethod
    async def try_send(self, dst: AddressLike, payload: Payload) -> int:
        """Sends without waiting for room: WouldBlock or Congested at once instead."""

    @abstractmethod
    async def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> Sequence[int]:
        """Sends many in order; far cheaper than one by one. Returns their tags.

        Raises BatchError, which lists each datagram that was not accepted.
        """

    @abstractmethod
    async def try_send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]]
    ) -> Sequence[int]:
        """As send_batch, without waiting for room."""

    @abstractmethod
    async def send_run(
        self,
        dst: AddressLike,
        data: Payload | Sequence[Payload],
        lengths: int | Sequence[int] | None = None,
        timeout: Timeout = None,
    ) -> Sequence[int]:
        """Sends many to one destination, as send_batch does: the fastest way.

        data: the payloads; or, with lengths, one buffer in which they stand one
        behind the other: lengths is the size of each, or that of all of them.
        """

    @abstractmethod
    async def reserve(self, dst: AddressLike, size: int, timeout: Timeout = None) -> AsyncSlot:
        """Room for one datagram, to be filled in place and sent by its commit.

        Over rings it lies in memory that the daemon sends from: nothing is copied.
        It counts against the send buffer; waits for room as send does.
        """

    @abstractmethod
    async def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        """Drops what is queued to dst and has not begun to leave (port 0: to every port)."""

    @abstractmethod
    async def flush(self, timeout: Timeout = None) -> None:
        """Waits until every datagram accepted so far has its outcome."""

    @abstractmethod
    def outcomes(self, timeout: Timeout = None) -> AsyncIterator[Outcome]:
        """Yields the outcome of each accepted datagram; timeout is for each wait.

        The socket must be bound with outcomes=True. Outcomes are kept until
        read; when very many are unread, sending waits.
        """

    # -- receiving ---------------------------------------------------------------

    @abstractmethod
    async def recv(self, timeout: Timeout = None) -> Datagram:
        """The next datagram."""

    @abstractmethod
    async def recv_into(
        self, buffer: RoomForPayload, timeout: Timeout = None
    ) -> tuple[int, Address]:
        """Copies the next datagram to buffer; how many bytes it has, and its source.

        Nothing is made for the payload. A datagram that does not fit stays where it
        is, and TooLarge is raised: peek_size tells its size.
        """

    @abstractmethod
    async def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        """At least one datagram, and up to limit of those that are there."""

    @abstractmethod
    async def borrow(self, limit: int = 256, timeout: Timeout = None) -> Lease:
        """As recv_batch, in place: pairs of an address and a read-only memoryview.

        Over rings nothing is copied. What is not released counts against the
        receive buffer; leaving the with-block of what this returns releases it.
        """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Datagram]:
        """Datagrams until the socket is closed. Whoever leaves it loses none: recv has the next."""

    async def request(self, dst: AddressLike, payload: Payload, timeout: Timeout) -> Datagram:
        """Sends, then waits for the answer of dst to it; see rdsd.Socket.request."""
        where = canonical(dst)
        self._check_usable()
        return await self._requests.request(where, payload, seconds(timeout))

    async def reply(self, to: Datagram, payload: Payload, timeout: Timeout = None) -> int:
        """Answers a received datagram: send to where it came from."""
        return await self.send(to.addr, payload, timeout)

    @abstractmethod
    async def _exchange(self, dst: Address, payload: Payload, timeout: float | None) -> Datagram:
        """Of a reply port: sends, and waits for the answer; at its end takes back what it can."""

    @abstractmethod
    def _check_usable(self) -> None:
        """Raises why no call can be made any more."""

    @abstractmethod
    async def peek_size(self, timeout: Timeout = None) -> int | None:
        """Bytes of the next datagram, None when none is there."""

    async def _end_requests(self) -> None:
        if hasattr(self, "_requests"):  # a reply port has none
            await self._requests.close()

    # -- congestion ---------------------------------------------------------------

    @abstractmethod
    async def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        """Whether dst is marked congested, as far as this node knows."""

    @abstractmethod
    def watch_congestion(self, timeout: Timeout = None) -> CongestionWatch:
        """Events from now on, and what cleared while nobody watched; timeout is for each wait."""

    # -- the end ---------------------------------------------------------------

    @abstractmethod
    async def close(self) -> None:
        """Closes the socket: what is queued is dropped (flush first to keep it).

        It is closed also when this is cancelled. Again: waits until that is through.
        """

    async def __aenter__(self) -> Socket:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class CongestionWatch(ABC):
    """An async iterator of CongestionEvent, from Socket.watch_congestion; close it when done.

    ``async with`` closes it. It may be left and iterated again: the events of
    meanwhile are kept for it.
    """

    def __aiter__(self) -> CongestionWatch:
        return self

    @abstractmethod
    async def __anext__(self) -> CongestionEvent:
        """Waits for the next event; StopAsyncIteration once the watch or its socket is closed."""

    @abstractmethod
    def close(self) -> None:
        """Ends the watch; whoever waits in it is told. Again: nothing."""

    async def __aenter__(self) -> CongestionWatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Closing awaits nothing, so a plain with does as well.

    def __enter__(self) -> CongestionWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
