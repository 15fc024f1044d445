"""Congestion watchers alone: nothing is missed, nothing grows."""

from __future__ import annotations

from rdsd import Closed, CongestionChange, CongestionEvent
from rdsd._errors import make
from rdsd._types import Address
from rdsd._watching import ALL_PORTS, Watchers

A = Address("10.0.0.1", 1)
B = Address("10.0.0.2", 2)


def event(addr: Address, congested: bool, freed: int = 0) -> CongestionEvent:
    return CongestionEvent(freed, (CongestionChange(addr, congested),))


def test_every_watcher_hears() -> None:
    w = Watchers(0)
    one, two = w.add(), w.add()
    w.reported(event(A, True))
    assert list(one.items) == list(two.items) == [event(A, True)]
    w.remove(one)
    w.reported(event(A, False))
    assert len(one.items) == 1
    assert len(two.items) == 2


def test_what_cleared_while_nobody_watched_is_told_first() -> None:
    w = Watchers(0)
    w.refused(A)
    w.refused(B)
    w.reported(event(A, False))
    queue = w.add()
    assert list(queue.items) == [event(A, False)]
    assert not w.add().items, "only once"


def test_refused_again_is_congested_again() -> None:
    w = Watchers(0)
    w.refused(A)
    w.reported(event(A, False))
    w.refused(A)
    assert not w.add().items


def test_reconnection_wakes_everybody() -> None:
    w = Watchers(0)
    w.refused(A)
    queue = w.add()
    w.reconnected()
    assert list(queue.items) == [CongestionEvent(ALL_PORTS, (CongestionChange(A, False),))]


def test_reconnection_while_nobody_watches_is_told_later() -> None:
    w = Watchers(0)
    w.refused(A)
    w.reconnected()
    assert list(w.add().items) == [event(A, False)]


def test_a_slow_watcher_gets_merged_events() -> None:
    w = Watchers(1)
    queue = w.add()
    for i in range(1000):
        w.reported(event(A, i % 2 == 0, freed=1 << (i % 64)))
    w.reported(event(B, True))
    assert len(queue.items) <= 64
    last: dict[Address, bool] = {}
    freed = 0
    for e in queue.items:
        freed |= e.freed
        last.update(dict(e.changes))
    assert last == {A: False, B: True}
    assert freed == ALL_PORTS


def test_close_ends_watchers() -> None:
    w = Watchers(0)
    queue = w.add()
    call = queue.ready.wait()
    w.close(make(Closed))
    assert isinstance(call.error, Closed)
