"""What a socket of the front for threads does, whichever way it reaches the daemon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    from ._requests import Requests
    from ._slots import Lease, Slot


class Socket(_process.OfOneProcess, ABC):
    """An RDS socket: ordered, reliable datagrams from one local address. Made by Client.bind.

    Any number of threads may use it at once. Every timeout is in seconds, a
    timedelta, or None to wait for ever; past it TimedOut is raised, and 0 tries once. A payload is
    anything with a buffer: bytes, bytearray, memoryview, array, ...
    """

    _requests: Requests  # set by Client.bind

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
        return f"<rdsd.Socket {self.local_address} {self.front_end or 'no daemon'} {state}>"

    # -- sending ---------------------------------------------------------------

    @abstractmethod
    def send(self, dst: AddressLike, payload: Payload, timeout: Timeout = None) -> int:
        """Sends one datagram, waiting for room. Returns its tag once it is accepted."""

    @abstractmethod
    def try_send(self, dst: AddressLike, payload: Payload) -> int:
        """Sends without waiting for room: WouldBlock or Congested at once instead."""

    @abstractmethod
    def send_batch(
        self, datagrams: Iterable[tuple[AddressLike, Payload]], timeout: Timeout = None
    ) -> Sequence[int]:
        """Sends many in order; far cheaper than one by one. Returns their tags.

        Raises BatchError, which lists each datagram that was not accepted.
        """

    @abstractmethod
    def try_send_batch(self, datagrams: Iterable[tuple[AddressLike, Payload]]) -> Sequence[int]:
        """As send_batch, without waiting for room."""

    @abstractmethod
    def send_run(
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
    def reserve(self, dst: AddressLike, size: int, timeout: Timeout = None) -> Slot:
        """Room for one datagram, to be filled in place and sent by its commit.

        Over rings it lies in memory that the daemon sends from: nothing is copied.
        It counts against the send buffer; waits for room as send does.
        """

    @abstractmethod
    def cancel_sent_to(self, dst: AddressLike, timeout: Timeout = None) -> CancelResult:
        """Drops what is queued to dst and has not begun to leave (port 0: to every port)."""

    @abstractmethod
    def flush(self, timeout: Timeout = None) -> None:
        """Waits until every datagram accepted so far has its outcome."""

    @abstractmethod
    def outcomes(self, timeout: Timeout = None) -> Iterator[Outcome]:
        """Yields the outcome of each accepted datagram; timeout is for each wait.

        The socket must be bound with outcomes=True. Outcomes are kept until
        read; when very many are unread, sending waits.
        """

    # -- receiving ---------------------------------------------------------------

    @abstractmethod
    def recv(self, timeout: Timeout = None) -> Datagram:
        """The next datagram."""

    @abstractmethod
    def recv_into(self, buffer: RoomForPayload, timeout: Timeout = None) -> tuple[int, Address]:
        """Copies the next datagram to buffer; how many bytes it has, and its source.

        Nothing is made for the payload. A datagram that does not fit stays where it
        is, and TooLarge is raised: peek_size tells its size.
        """

    @abstractmethod
    def recv_batch(self, limit: int = 256, timeout: Timeout = None) -> list[Datagram]:
        """At least one datagram, and up to limit of those that are there."""

    @abstractmethod
    def borrow(self, limit: int = 256, timeout: Timeout = None) -> Lease:
        """As recv_batch, in place: pairs of an address and a read-only memoryview.

        Over rings nothing is copied. What is not released counts against the
        receive buffer; leaving the with-block of what this returns releases it.
        """

    @abstractmethod
    def __iter__(self) -> Iterator[Datagram]:
        """Datagrams until the socket is closed. Whoever leaves it loses none: recv has the next."""

    def request(self, dst: AddressLike, payload: Payload, timeout: Timeout) -> Datagram:
        """Sends, then waits for the answer of dst to it.

        A request leaves from a reply port, a port of its own beside the socket's,
        and its answer is what dst sends to that port: none is ever given the answer
        to another one, whether that has given up or is still waiting, and recv sees
        none of them. The responder sees the socket's address with another port and
        answers to where the datagram came from, as reply does. Requests are not
        ordered with what send has sent, and flush, outcomes and cancel_sent_to do
        not concern them. To one destination 32 at a time are under way; others wait.

        Past the timeout what is queued of it is cancelled and TimedOut raised.
        """
        where = canonical(dst)
        self._check_usable()
        return self._requests.request(where, payload, seconds(timeout))

    def reply(self, to: Datagram, payload: Payload, timeout: Timeout = None) -> int:
        """Answers a received datagram: send to where it came from."""
        return self.send(to.addr, payload, timeout)

    @abstractmethod
    def _exchange(self, dst: Address, payload: Payload, timeout: float | None) -> Datagram:
        """Of a reply port: sends, and waits for the answer; at its end takes back what it can."""

    @abstractmethod
    def _check_usable(self) -> None:
        """Raises why no call can be made any more."""

    @abstractmethod
    def peek_size(self, timeout: Timeout = None) -> int | None:
        """Bytes of the next datagram, None when none is there."""

    def _in_a_call(self) -> bool:
        """Whether this thread has a lock of the socket: close is called by a finalizer or a
        signal handler, and closes it in another thread."""
        return hasattr(self, "_requests") and self._requests.held()

    def _end_requests(self) -> list[Callable[[], None]]:
        """What closes the ports of the requests, which are to be closed beside the socket."""
        if not hasattr(self, "_requests"):  # a reply port has none
            return []
        return [port.close for port in self._requests.end()]

    # -- congestion ---------------------------------------------------------------

    @abstractmethod
    def congested(self, dst: AddressLike, timeout: Timeout = None) -> bool:
        """Whether dst is marked congested, as far as this node knows."""

    @abstractmethod
    def watch_congestion(self, timeout: Timeout = None) -> CongestionWatch:
        """Events from now on, and what cleared while nobody watched; timeout is for each wait."""

    # -- the end ---------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Closes the socket: what is queued is dropped (flush first to keep it). Again: nothing."""

    def __enter__(self) -> Socket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class CongestionWatch(ABC):
    """An iterator of CongestionEvent, from Socket.watch_congestion; close it when done.

    ``with`` closes it. It may be left and iterated again: the events of
    meanwhile are kept for it.
    """

    def __iter__(self) -> CongestionWatch:
        return self

    @abstractmethod
    def __next__(self) -> CongestionEvent:
        """Waits for the next event; StopIteration once the watch or its socket is closed."""

    @abstractmethod
    def close(self) -> None:
        """Ends the watch; whoever waits in it is told. Again: nothing."""

    def __enter__(self) -> CongestionWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
