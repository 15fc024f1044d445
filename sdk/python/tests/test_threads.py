"""What blocks, in threads: _threads.py."""

from __future__ import annotations

import threading
import time

from rdsd import _threads
from rdsd._threads import side_by_side


def test_side_by_side_is_bounded() -> None:
    """All calls are made, once each, side by side and by no more threads than there may be."""
    done: list[int] = []
    who: set[int] = set()

    def call(i: int) -> None:
        time.sleep(0.01)
        who.add(threading.get_ident())
        done.append(i)

    side_by_side([lambda i=i: call(i) for i in range(1000)])  # type: ignore[misc]
    assert sorted(done) == list(range(1000))
    assert 1 < len(who) <= _threads._MOST


def test_side_by_side_waits_for_all() -> None:
    """Calls that wait for one another are all begun, and it returns when the last is through."""
    together = threading.Barrier(8)
    side_by_side([lambda: together.wait(10) for _ in range(8)])
    assert not together.broken
    side_by_side([])


def test_side_by_side_without_threads(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Where no thread can be started the calls are made here."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    side_by_side([lambda i=i: done.append(i) for i in range(3)])  # type: ignore[misc]
    assert done == [0, 1, 2]
