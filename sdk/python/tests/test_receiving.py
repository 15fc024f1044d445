"""The receiving half alone: credit and replies waited for."""

from __future__ import annotations

import pytest

from rdsd import Closed, Datagram, TooLarge
from rdsd._errors import make
from rdsd._receiving import Inbox
from rdsd._types import Address

A = Address("10.0.0.1", 1)
B = Address("10.0.0.2", 2)


def some(n: int, source: Address = A, size: int = 1) -> list[Datagram]:
    return [Datagram(source, bytes(size)) for _ in range(n)]


def test_credit_goes_back_at_half_the_window() -> None:
    box = Inbox(8, 1000)
    assert box.initial_credit() == (8, 1000)
    box.arrived(some(8))
    assert len(box.take(3)) == 3
    assert box.credit_due() is None
    box.take(1)
    assert box.credit_due() == (4, 4)
    assert box.credit_due() is None


def test_credit_by_bytes() -> None:
    box = Inbox(1000, 100)
    box.arrived(some(1, size=50))
    box.take(1)
    assert box.credit_due() == (1, 50)


def test_window_of_one_never_starves() -> None:
    box = Inbox(1, 1)
    for _ in range(5):
        box.arrived(some(1, size=1000))
        box.take(1)
        assert box.credit_due() == (1, 1000)


def test_credit_of_a_new_stream_counts_what_is_unread() -> None:
    box = Inbox(8, 1000)
    box.arrived(some(5, size=100))
    box.take(2)
    assert box.initial_credit() == (5, 700)
    assert box.credit_due() is None, "the new stream's credit has it already"


def test_reply_goes_to_the_first_who_waits_for_its_source() -> None:
    box = Inbox(8, 1000)
    first, second, other = box.await_reply(A), box.await_reply(A), box.await_reply(B)
    box.arrived([Datagram(A, b"1"), Datagram(A, b"2"), Datagram(A, b"3")])
    assert first.result().payload == b"1"
    assert second.result().payload == b"2"
    assert not other.done
    assert [d.payload for d in box.take(9)] == [b"3"]


def test_withdrawn_reply_leaves_the_datagram_for_recv() -> None:
    box = Inbox(8, 1000)
    call = box.await_reply(A)
    box.withdraw_reply(A, call)
    box.withdraw_reply(A, call)
    box.arrived(some(1))
    assert not call.done
    assert box.next_size() == 1


def test_close_fails_who_waits_and_keeps_what_is_unread() -> None:
    box = Inbox(8, 1000)
    reply, ready = box.await_reply(A), box.ready.wait()
    box.arrived(some(1, source=B))
    assert ready.done
    waiting = box.ready.wait()
    box.close(make(Closed))
    assert isinstance(reply.error, Closed)
    assert isinstance(waiting.error, Closed)
    assert isinstance(box.await_reply(A).error, Closed)
    assert len(box.take(9)) == 1


def test_what_an_iterator_has_read_ahead_is_next_for_all() -> None:
    box = Inbox(1000, 1000)
    sent = [Datagram(A, b"%d" % i) for i in range(6)]
    box.arrived(sent)
    assert box.take_next() == sent[:1]
    assert len(box) == 5
    assert box.take(2) == sent[1:3]
    assert box.next_size() == 1
    view = memoryview(bytearray(1))
    assert box.take_into(view) == [(1, A)]
    assert bytes(view) == b"3"
    assert box.take_next() == sent[4:5]
    box.arrived(some(1))
    assert box.take(10) == [sent[5], *some(1)]
    assert box.take_next() == []
    assert box.next_size() is None


def test_a_datagram_that_another_thread_leaves_too_large_stays() -> None:
    box = Inbox(1000, 1000)
    box.arrived([*some(3), *some(1, size=2)])
    assert box.take_next() == some(1)
    sizes = box.next_size

    def next_size() -> int | None:
        size = sizes()
        box.next_size = sizes  # type: ignore[method-assign]
        assert box.ahead.take(2) == some(2)  # as another thread, between size and datagram
        return size

    box.next_size = next_size  # type: ignore[method-assign]
    with pytest.raises(TooLarge, match="has 2 bytes, the buffer 1"):
        box.take_into(memoryview(bytearray(1)))
    assert box.take(2) == some(1, size=2)


def test_closing_clears_what_was_read_ahead() -> None:
    box = Inbox(1000, 1000)
    box.arrived(some(2))
    box.take_next()
    box.clear()
    assert len(box) == 0
    assert box.take(1) == []
