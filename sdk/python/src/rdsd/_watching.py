"""Congestion events: what the daemon reports, and who listens.

No wake-up may be lost: a destination that refused a datagram (ENOBUFS) is
remembered here until a watcher has heard that it cleared, and after a
reconnection everything known as congested is reported clear, since the new
daemon cannot say what happened in between. A watcher that reads slowly costs
bounded memory: beyond a few events they are merged, the last state of each
destination winning.
"""

from __future__ import annotations

from ._calls import EventQueue
from ._errors import RdsError
from ._types import Address, CongestionChange, CongestionEvent

ALL_PORTS = (1 << 64) - 1

_MERGE_BEYOND = 64  # events a slow watcher may have before they are merged
_REMEMBERED = 65536  # destinations remembered as congested


class Watchers:
    """The watchers of one socket and the congestion it has met."""

    def __init__(self, mask: int) -> None:
        self.mask = mask
        self._queues: list[EventQueue[CongestionEvent]] = []
        self._congested: dict[Address, None] = {}  # refused or reported, not cleared since
        self._cleared: dict[Address, None] = {}  # cleared while nobody watched

    @property
    def watched(self) -> bool:
        return bool(self._queues)

    def add(self) -> EventQueue[CongestionEvent]:
        """A new watcher; it first hears what cleared while nobody watched."""
        queue = EventQueue[CongestionEvent]()
        if self._cleared and not self._queues:
            changes = tuple(CongestionChange(a, False) for a in self._cleared)
            self._cleared.clear()
            queue.put(CongestionEvent(0, changes))
        self._queues.append(queue)
        return queue

    def remove(self, queue: EventQueue[CongestionEvent]) -> None:
        if queue in self._queues:
            self._queues.remove(queue)

    def refused(self, addr: Address) -> None:
        """A datagram to addr met ENOBUFS."""
        self._cleared.pop(addr, None)
        if len(self._congested) < _REMEMBERED:
            self._congested[addr] = None

    def reported(self, event: CongestionEvent) -> None:
        for change in event.changes:
            if change.congested:
                if self._queues:  # else the daemon told it to the sending half
                    self.refused(change.addr)
            elif change.addr in self._congested:
                del self._congested[change.addr]
                if not self._queues:
                    self._cleared[change.addr] = None
        self._tell(event)

    def reconnected(self) -> None:
        """The daemon's memory is gone: whoever waits must try again."""
        changes = tuple(CongestionChange(a, False) for a in self._congested)
        if not self._queues:
            self._cleared.update(self._congested)
        self._congested.clear()
        self._tell(CongestionEvent(ALL_PORTS, changes))

    def close(self, error: RdsError) -> None:
        for queue in self._queues:
            queue.ready.close(error)

    def _tell(self, event: CongestionEvent) -> None:
        for queue in self._queues:
            if len(queue.items) >= _MERGE_BEYOND:
                merged = _merge([*queue.items, event])
                queue.items.clear()
                queue.put(merged)
            else:
                queue.put(event)


def _merge(events: list[CongestionEvent]) -> CongestionEvent:
    freed = 0
    last: dict[Address, bool] = {}
    for event in events:
        freed |= event.freed
        for change in event.changes:
            last[change.addr] = change.congested
    return CongestionEvent(freed, tuple(CongestionChange(a, c) for a, c in last.items()))
