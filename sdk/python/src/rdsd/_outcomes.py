"""What became of accepted datagrams: tags without an outcome, outcomes unread.

Outcomes may come before the SendResult of their batch (a batch that waits for
room is answered at its end), so tags are noted as undecided when they leave and
struck out when they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from ._calls import Ahead, EventQueue
from ._intervals import IntervalSet
from ._types import Outcome, OutcomeKind

#: Unread outcome ranges beyond which nothing more is sent: the reader is the brake.
UNREAD_RANGES = 1 << 16

Range = tuple[int, int, OutcomeKind, str]  # first tag, one after the last, kind, reason


class Ledger:
    """The undecided tags of a socket and its unread outcomes; counts nothing unless asked to."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self.queue = EventQueue[Range]()
        self.ahead = Ahead[Outcome]()
        self._undecided = IntervalSet()

    @property
    def full(self) -> bool:
        return len(self.queue.items) >= UNREAD_RANGES

    def left(self, first: int, end: int) -> None:
        """Tags on their way to the daemon."""
        if self.wanted:
            self._undecided.add(first, end)

    def strike(self, first: int, end: int) -> list[tuple[int, int]]:
        """Tags that were not accepted, or that nobody will answer for.

        Returns those that had no outcome: a tag that has one was accepted.
        """
        return self._undecided.remove(first, end) if self.wanted else [(first, end)]

    def decided(self, ranges: Iterable[Range]) -> None:
        """Outcomes from the daemon; a tag already decided is not reported twice."""
        for start, end, kind, reason in ranges:
            for s, e in self._undecided.remove(start, end):
                self._report(s, e, kind, reason)
        if self.queue.items:
            self.queue.ready.signal()

    def never_left(self, first: int, end: int, reason: str) -> None:
        """Accepted here, and not handed to the daemon before the socket was closed."""
        if self.wanted:
            self._report(first, end, OutcomeKind.CANCELLED, reason)
            self.queue.ready.signal()

    def lost(self, reason: str) -> None:
        """The daemon is gone, and what it knew."""
        self.decided([(s, e, OutcomeKind.UNKNOWN, reason) for s, e in self._undecided.ranges()])

    def take(self, limit: int) -> list[Outcome]:
        """Up to limit outcomes, one for each datagram."""
        out: list[Outcome] = []
        items = self.queue.items
        while items and len(out) < limit:
            start, end, kind, reason = items[0]
            stop = min(end, start + limit - len(out))
            out.extend(Outcome(tag, kind, reason) for tag in range(start, stop))
            if stop == end:
                items.popleft()
            else:
                items[0] = (stop, end, kind, reason)
        return out

    def take_next(self) -> list[Outcome]:
        """One outcome, for an iterator: further ones are put ahead."""
        return self.ahead.refill(lambda: self.take(256))

    def _report(self, start: int, end: int, kind: OutcomeKind, reason: str) -> None:
        items = self.queue.items
        if items:
            s, e, last_kind, last_reason = items[-1]
            if e == start and (last_kind, last_reason) == (kind, reason):
                items[-1] = (s, end, kind, reason)
                return
        items.append((start, end, kind, reason))
