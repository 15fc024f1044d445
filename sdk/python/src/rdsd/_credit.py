"""Sending by credit: what a stream may accept by itself (docs/adr/0025-grpc-accepts-by-credit.md).

A send to a destination whose way is clear is *posted*: accepted here, and the call
returns without an answer of the daemon, which has promised (Bound.send_credit_bytes)
to take so much. A posted batch waits at the daemon for room, and an error in its
result is what became of the datagram, so that each has one outcome.

A way is clear after a send that waited for its answer was accepted, once the daemon
tells of congestion (Monitor.set_events), until it tells that the port is congested.

Few posted batches are without a result at a time, so that many datagrams gather in
one. A batch that the daemon keeps because something of it waits is slow: it leaves its
place to others, so that one congested port holds up no other.
"""

from __future__ import annotations

from collections.abc import Iterable

from ._types import Address, CongestionEvent
from ._watching import ALL_PORTS
from .v1 import rdsd_pb2 as pb

#: Posted batches without a result, beside those that are slow.
TRIES = 2

#: Gathering gains nothing for a batch of so many bytes: it goes beyond TRIES.
SMALL = 32 << 10

#: The part of the window's batches that may be posted ones.
SHARE = 8

#: Seconds after which a batch without a result is slow, if nothing says so before.
SLOW_AFTER = 0.01

#: Destinations whose ways are known. The daemon watches their ports while the socket is
#: open; a socket with more of them has no credit.
MAX_WAYS = 256


class Credit:
    """What may be posted, what is posted and has no result, and which ways are clear."""

    def __init__(self) -> None:
        self.most_bytes = 0  # granted by the stream in use; 0: every send is answered
        self.most_datagrams = 0
        self.bytes = 0  # posted and without a result
        self.datagrams = 0
        self.watching = False  # the daemon is asked to tell what becomes congested
        self._sent_before = False
        self._ways: dict[Address, bool] = {}  # clear, or congested

    def opened(self, bound: pb.Bound) -> None:
        """What is posted leaves most of the window to those that wait."""
        window = bound.send_window_bytes or (1 << 62)
        self.most_bytes = min(bound.send_credit_bytes, window // 4)
        self.most_datagrams = bound.send_credit_datagrams

    def lost(self) -> None:
        """The next daemon grants its own, and knows other ports."""
        self.most_bytes = self.most_datagrams = 0
        self.watching = self._sent_before = False
        self._ways.clear()

    def begins(self) -> bool:
        """Whether news of congestion are asked for: a socket that sends once needs none."""
        if not self.watching:
            self.watching = self._sent_before
            self._sent_before = True
            return False
        return True

    def has_room(self, count: int, size: int) -> bool:
        return (
            self.datagrams + count <= self.most_datagrams and self.bytes + size <= self.most_bytes
        )

    def add(self, count: int, size: int) -> None:
        self.datagrams += count
        self.bytes += size

    def clear(self, addr: Address) -> bool:
        return self._ways.get(addr, False)

    def learn(self, addrs: Iterable[Address]) -> None:
        """A send there was answered and accepted. News may be younger than the answer."""
        for addr in addrs:
            if addr not in self._ways:
                self._set(addr, clear=True)

    def forget(self, addrs: Iterable[Address]) -> None:
        """The next send there is answered."""
        for addr in addrs:
            if self._ways.get(addr):
                del self._ways[addr]

    def reported(self, event: CongestionEvent) -> list[Address]:
        """The daemon's news. Returns what is congested now."""
        if not self.watching:
            return []
        if event.freed == ALL_PORTS:  # more than the daemon could keep
            self._ways.clear()
        congested = []
        for change in event.changes:
            if change.congested:
                self._set(change.addr, clear=False)
                congested.append(change.addr)
            elif change.addr in self._ways:
                self._ways[change.addr] = True
        return congested

    def _set(self, addr: Address, *, clear: bool) -> None:
        if addr not in self._ways and len(self._ways) >= MAX_WAYS:
            self.lost()
        elif self.watching:
            self._ways[addr] = clear
