"""One socket without its I/O: messages in, messages out, calls finished.

Both fronts (threads in ``_sync``, asyncio in ``aio``) drive a SocketCore the
same way and add nothing to its rules::

    core.stream_opened()            a gRPC stream was started
    core.poll(now)  -> message      take the next message to write, None: nothing now
    core.receive(message)           a message came
    core.stream_lost(error) -> s    the stream ended; seconds until the next try, None: for good

The core does no I/O, has no clock and no lock; the front calls it from one
thread at a time. Messages are taken one by one, so that the core knows exactly
what left (see ``_sending``). Life of a socket:

    CONNECTING --stream_opened--> BINDING --Bound--> OPEN
        ^                            |                 |
        +--------- stream_lost ------+-----------------+---> CLOSED

Reconnection: a stream that ends because the daemon went away is opened anew,
after a delay drawn with full jitter, and binds the same address and port. The
first bind is never retried: a caller who opens a socket hears at once that no
daemon answers.
"""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _codec
from ._calls import Call, EventQueue
from ._errors import (
    AddressInUse,
    AddressNotAvailable,
    Cancelled,
    Closed,
    ConnectionReset,
    DaemonUnavailable,
    OutOfBudget,
    ProtocolError,
    RateLimited,
    RdsError,
    TimedOut,
    TooMany,
    TransportFailed,
    error_from_errno,
    fresh,
    make,
)
from ._jobs import Mode, SendJob
from ._receiving import Inbox
from ._sending import RESTARTED, Sender
from ._types import Address, CancelResult, CongestionEvent, canonical
from ._watching import Watchers
from .v1 import rdsd_pb2 as pb

#: How long a caller whose time is up still waits for the daemon's own answer, seconds.
ANSWER_GRACE = 1.0

BACKOFF_FIRST = 0.05  # seconds
BACKOFF_LIMIT = 2.0

#: A daemon that takes the stream again and does not answer the Bind is tried anew, seconds.
BIND_ANSWER = 10.0

# What ends a stream without meaning that this socket can never come back. A port may look taken
# while the daemon still closes this socket's last life, and one that somebody else has comes free.
TRANSIENT = (
    AddressInUse,
    AddressNotAvailable,
    Cancelled,
    ConnectionReset,
    DaemonUnavailable,
    OutOfBudget,
    RateLimited,
    TimedOut,
    TooMany,
    TransportFailed,
)


@dataclass(frozen=True, slots=True)
class BindOptions:
    """How a socket is opened; see Client.bind."""

    local: Address
    send_buffer: int = 0
    recv_buffer: int = 0
    label: str = ""
    recv_window_datagrams: int = 4096
    recv_window_bytes: int = 4 << 20
    outcomes: bool = False
    reconnect: bool = True
    congestion_mask: int = 0
    spin: float | None = None  # seconds; rings only
    replies: bool = False  # a reply port: what no request waits for is dropped


class State(enum.Enum):
    CONNECTING = "connecting"
    BINDING = "binding"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(eq=False, slots=True)
class Query:
    """A question with an id: cancel, flush, congested or peek."""

    message: pb.ClientMessage
    call: Call[Any]
    repeatable: bool  # asked again on the next stream, for it changes nothing
    after: int = 0  # concerns what was posted with lower tags: a cancel, or a flush
    to: Address | None = None  # of a cancel
    cancelled: int = 0  # posted datagrams that it ended before the daemon accepted them


class SocketCore:
    """The state of one socket over any number of streams."""

    def __init__(self, options: BindOptions, rng: random.Random | None = None) -> None:
        self.options = options
        self.state = State.CONNECTING
        self.local = options.local  # with its real port once bound
        self.bound = Call[Address]()
        self.instance = 0  # of the daemon last bound to
        self.inbox = Inbox(
            options.recv_window_datagrams, options.recv_window_bytes, replies=options.replies
        )
        self.sender = Sender(want_outcomes=options.outcomes, cancelled=self._count_cancelled)
        self.watchers = Watchers(options.congestion_mask)
        self.error: RdsError | None = None  # why it is closed
        self._rng = rng or random.Random()
        self._tries = 0  # streams lost since the last Bound
        self._closing: RdsError | None = None
        self._bind_due = False
        self._monitor_sent: tuple[int, bool] | None = None
        self._next_id = 1
        self._asking: deque[Query] = deque()
        self._asked: dict[int, Query] = {}

    def answer_by(self, now: float) -> float | None:
        """When a stream is given up that is not bound by then. Who binds waits himself."""
        return now + BIND_ANSWER if self.bound.done else None

    # -- the stream ----------------------------------------------------------

    def stream_opened(self) -> None:
        if self.state is State.CONNECTING:
            self.state = State.BINDING
            self._bind_due = True

    def stream_void(self) -> None:
        """The stream ended before the daemon answered, and why is not known: open another."""
        if self.state is State.BINDING:
            self.state = State.CONNECTING

    @property
    def has_output(self) -> bool:
        """Whether poll is worth a call: False says for sure that it has nothing."""
        if self.state is not State.OPEN:
            return self._bind_due or self.state is State.CLOSED
        return bool(
            self._asking
            or self.sender.queued
            or self.inbox.owes_credit
            or self._monitor_sent != self._monitor_wanted
        )

    @property
    def look_again(self) -> float | None:
        """When poll is to be called without any news; None: never."""
        return self.sender.look_again if self.state is State.OPEN else None

    @property
    def _monitor_wanted(self) -> tuple[int, bool]:
        return (self.watchers.mask, self.watchers.watched or self.sender.credit.watching)

    def poll(self, now: float) -> pb.ClientMessage | None:
        """The next message to write. Answers and credit go before datagrams."""
        if self._bind_due:
            self._bind_due = False
            return self._bind()
        if self.state is not State.OPEN:
            return None
        monitor = self._monitor_wanted
        if monitor != self._monitor_sent:
            self._monitor_sent = monitor
            return _monitor(*monitor)
        if (credit := self.inbox.credit_due()) is not None:
            return pb.ClientMessage(credit=pb.Credit(datagrams=credit[0], bytes=credit[1]))
        before = 0
        for query in self._asking:
            if self._waits(query):
                if not _is_flush(query):
                    before = min(before or query.after, query.after)
                continue
            self._asking.remove(query)
            self._asked[_id_of(query.message)] = query
            return query.message
        message = self.sender.poll(self._next_id, now, before=before)
        if message is not None:
            self._next_id += 1
        return message

    def receive(self, message: pb.ServerMessage) -> None:
        """One message of the daemon. ProtocolError (raised) means: end the stream."""
        kind = message.WhichOneof("body")
        if kind == "recv":
            self.inbox.arrived(_codec.received(message.recv))
        elif kind == "send_result":
            for addr in self.sender.answered(message.send_result):
                self.watchers.refused(addr)
        elif kind == "outcomes":
            self.sender.ledger.decided(_codec.outcome_ranges(message.outcomes))
        elif kind == "congestion":
            event = _codec.congestion_event(message.congestion)
            self.watchers.reported(event)
            self.sender.congestion(event)
        elif kind == "bound":
            self._on_bound(message.bound)
        elif kind == "closing":
            self._closing = error_from_errno(message.closing.errno, message.closing.message)
        elif kind is not None:
            self._on_answer(kind, message)

    def stream_lost(self, error: RdsError | None) -> float | None:
        """The stream ended (error None: without one). Seconds to the next try, None for good."""
        if self.state is State.CLOSED:
            return None
        was_open, self.state = self.state is State.OPEN, State.CONNECTING
        closing, self._closing = self._closing, None
        cause = closing or error or make(DaemonUnavailable, "the daemon ended the stream")
        self._bind_due = False
        self._monitor_sent = None
        for query in list(self._asking):
            if _is_flush(query) and self.sender.unanswered_before(query.after):
                self._asking.remove(query)
                query.call.fail(make(DaemonUnavailable, f"{RESTARTED} before it answered"))
        self.sender.lost()
        self._requeue_asked()
        if was_open:
            self._tries = 0
        # Before Bound a Closing refuses the bind, as an error of the stream does.
        if not self._may_return(cause, told=closing is not None and was_open):
            self._close(cause)
            return None
        ceiling = min(BACKOFF_LIMIT, BACKOFF_FIRST * 2.0 ** min(self._tries, 16))
        self._tries += 1
        return self._rng.uniform(0.0, ceiling)

    def close(self) -> None:
        """The application closes the socket."""
        self.fail(make(Closed))

    def fail(self, error: RdsError) -> None:
        """Ends the socket for good; every caller gets this error."""
        if self.state is not State.CLOSED:
            self.sender.lost(error)
            self._close(error)

    # -- calls of the application ----------------------------------------------

    def send(
        self, items: Sequence[tuple[Address, bytes]], mode: Mode, deadline: float | None
    ) -> SendJob:
        if self.error is not None:
            raise fresh(self.error)
        if mode in (Mode.TRY, Mode.NOW) and self.state is not State.OPEN:
            raise make(DaemonUnavailable, "not connected to the daemon; reconnecting")
        return self.sender.submit(items, mode, deadline)

    def cancel_sent_to(self, dst: Address) -> Query:
        message = pb.ClientMessage(cancel=pb.Cancel(destination=_codec.endpoint(dst)))
        query = self._ask(message, repeatable=False, after=self.sender.next_tag)
        query.to = canonical(dst)
        return query

    def take_back(self, dst: Address) -> None:
        """A request gave up: cancel_sent_to that nobody waits for.

        It goes before every later message, so later sends are not concerned. A
        daemon that is away has nothing to take back.
        """
        if self.state is State.OPEN:
            self.cancel_sent_to(dst)

    def flush(self, timeout: float | None) -> Query:
        ns = 0 if timeout is None else max(1, int(timeout * 1e9))
        message = pb.ClientMessage(flush=pb.Flush(timeout_ns=ns))
        return self._ask(message, repeatable=False, after=self.sender.next_tag)

    def congested(self, dst: Address) -> Query:
        message = pb.ClientMessage(congested=pb.CongestedQuery(destination=_codec.endpoint(dst)))
        return self._ask(message, repeatable=True)

    def peek(self) -> Query:
        return self._ask(pb.ClientMessage(peek=pb.Peek()), repeatable=True)

    def watch(self) -> EventQueue[CongestionEvent]:
        queue = self.watchers.add()
        if self.error is not None:
            queue.ready.close(self.error)
        return queue

    def withdraw(self, query: Query) -> None:
        """The caller of a query waits no longer."""
        if query in self._asking:
            self._asking.remove(query)
        query.call.fail(make(TimedOut))

    # -- inside ----------------------------------------------------------------

    def _bind(self) -> pb.ClientMessage:
        o = self.options
        datagrams, size = self.inbox.initial_credit()
        return pb.ClientMessage(
            bind=pb.Bind(
                local=_codec.endpoint(self.local),
                send_buffer_bytes=o.send_buffer,
                recv_buffer_bytes=o.recv_buffer,
                label=o.label,
                initial_credit_datagrams=datagrams,
                initial_credit_bytes=size,
            )
        )

    def _on_bound(self, bound: pb.Bound) -> None:
        if self.state is not State.BINDING:
            raise make(ProtocolError, "the daemon bound the socket twice")
        self.state = State.OPEN
        self._tries = 0
        self.instance = bound.daemon_instance
        self.local = _codec.address(bound.local)
        self.sender.opened(bound)
        if self.bound.done:
            self.watchers.reconnected()
        else:
            self.bound.finish(self.local)

    def _on_answer(self, kind: str, message: pb.ServerMessage) -> None:
        answer = getattr(message, kind)
        query = self._asked.pop(answer.id, None)
        if query is None:
            return
        if isinstance(answer, pb.PeekResult):
            query.call.finish(answer.next_bytes if answer.available else None)
        elif answer.errno:
            query.call.fail(_refusal(answer))
        elif isinstance(answer, pb.CancelResult):
            # The daemon does not count what it had not accepted; it has told of that before.
            query.call.finish(CancelResult(answer.cancelled + query.cancelled, answer.in_flight))
        elif isinstance(answer, pb.CongestedResult):
            query.call.finish(answer.congested)
        else:
            query.call.finish(None)

    def _count_cancelled(self, addr: Address) -> None:
        """A posted datagram was cancelled: it counts for one of the cancels that run."""
        where = canonical(addr)
        for query in [*self._asked.values(), *self._asking]:
            to = None if query.call.done else query.to
            if to is not None and (to == where or to == (where.host, 0)):
                query.cancelled += 1
                return

    def _waits(self, query: Query) -> bool:
        """A cancel goes behind what was posted before it, a flush behind its results: the
        daemon's answer is about what the daemon has accepted."""
        if not query.after:
            return False
        if _is_flush(query):
            return self.sender.posted_before(query.after)
        return self.sender.queued_before(query.after)

    def _ask(self, message: pb.ClientMessage, *, repeatable: bool, after: int = 0) -> Query:
        if self.error is not None:
            raise fresh(self.error)
        body = getattr(message, message.WhichOneof("body") or "")
        body.id = self._next_id
        self._next_id += 1
        query = Query(message, Call[Any](), repeatable, after)
        self._asking.append(query)
        return query

    def _requeue_asked(self) -> None:
        """What a flush waited for, and a cancel would have cancelled, is unknown now."""
        asked, self._asked = self._asked, {}
        for query in reversed(asked.values()):
            if query.call.done:
                continue
            if query.repeatable:
                self._asking.appendleft(query)
            else:
                query.call.fail(make(DaemonUnavailable, f"{RESTARTED} before it answered"))

    def _may_return(self, cause: RdsError, *, told: bool) -> bool:
        if not self.bound.done or not self.options.reconnect:
            return False
        if told:
            return isinstance(cause, DaemonUnavailable)
        if self.options.replies and isinstance(cause, AddressInUse):
            return False  # somebody else was given its number: requests leave from another port
        return isinstance(cause, TRANSIENT)

    def _close(self, error: RdsError) -> None:
        self.state = State.CLOSED
        self.error = error
        self.bound.fail(error)
        self.sender.close(error)
        if isinstance(error, Closed):
            self.inbox.clear()
        self.inbox.close(error)
        self.watchers.close(error)
        for query in [*self._asking, *self._asked.values()]:
            query.call.fail(error)
        self._asking.clear()
        self._asked.clear()


def _monitor(mask: int, watched: bool) -> pb.ClientMessage:
    # clear_events stays on: a port that clears before anybody watches is remembered.
    return pb.ClientMessage(monitor=pb.Monitor(mask=mask, clear_events=True, set_events=watched))


def _id_of(message: pb.ClientMessage) -> int:
    body = getattr(message, message.WhichOneof("body") or "")
    return int(body.id)


def _is_flush(query: Query) -> bool:
    return query.message.WhichOneof("body") == "flush"


def _refusal(answer: pb.FlushResult | pb.CancelResult | pb.CongestedResult) -> RdsError:
    if isinstance(answer, pb.FlushResult):
        error = error_from_errno(answer.errno)
        if answer.in_flight:
            return type(error)(error.errno, f"{error}; {answer.in_flight} datagrams undecided")
        return error
    return error_from_errno(answer.errno, getattr(answer, "message", ""))
