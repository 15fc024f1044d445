"""What is special to rings: memory in place, batches, waiting, threads, signals."""

from __future__ import annotations

import array
import errno
import gc
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import Daemon, require

import rdsd
import rdsd.aio

Pair = tuple[Daemon, Daemon]

NOBODY = ("127.0.0.250", 7)  # no node answers there


@pytest.fixture
def client(daemons: Pair) -> Iterator[rdsd.Client]:
    require("rings", daemons[0])
    with rdsd.Client(daemons[0].target, front_end="rings") as client:
        yield client


@pytest.fixture
def bind(client: rdsd.Client, daemons: Pair) -> Callable[..., rdsd.Socket]:
    def bind(**options: Any) -> rdsd.Socket:
        return client.bind((daemons[0].address, 0), **options)

    return bind


Bind = Callable[..., rdsd.Socket]


def test_it_is_what_a_local_daemon_gives(daemons: Pair) -> None:
    require("rings", daemons[0])
    with (
        rdsd.Client(daemons[0].target) as client,
        client.bind((daemons[0].address, 0), spin=0, label="here") as sock,
    ):
        assert sock.front_end == "rings"
        assert "rings open" in repr(sock)
        assert sock.connected
    assert sock.closed
    assert not sock.connected


# -- payloads --------------------------------------------------------------------


def test_anything_with_a_buffer_is_a_payload(bind: Bind) -> None:
    a, b = bind(), bind()
    mapped = mmap.mmap(-1, 4096)
    mapped[:6] = b"mapped"
    payloads: list[Any] = [
        b"bytes",
        bytearray(b"array"),
        memoryview(b"view"),
        memoryview(b"r-e-v-e-r-s-e")[::-2],
        array.array("I", [1, 2, 3]),
        mapped,
        b"",
        b"x" * (1 << 20),
    ]
    for payload in payloads:
        a.send(b.local_address, payload, timeout=5)
        got = b.recv(timeout=5)
        assert got == rdsd.Datagram(a.local_address, memoryview(payload).tobytes())
        assert type(got) is rdsd.Datagram
        assert type(got.addr) is rdsd.Address
    assert hash(got) == hash(tuple(got))


@pytest.mark.parametrize("payload", ["text", None, 7, ["list"]])
def test_a_payload_without_one_is_named(bind: Bind, payload: Any) -> None:
    a = bind()
    for call in (a.send, a.try_send):
        with pytest.raises(rdsd.InvalidArgument, match=type(payload).__name__):
            call(NOBODY, payload)
    with pytest.raises(rdsd.InvalidArgument):
        a.send_batch([(NOBODY, b"good"), (NOBODY, payload)])


@pytest.mark.parametrize(
    ("dst", "error"),
    [
        ("nowhere", rdsd.InvalidArgument),
        (("127.0.0.1", 70000), rdsd.InvalidArgument),
        (["127.0.0.1"], rdsd.InvalidArgument),
        ("0.0.0.0:5", rdsd.DestinationRequired),
        ("[2001:db8::1]:5", rdsd.FamilyMismatch),
    ],
)
def test_a_bad_destination(bind: Bind, dst: Any, error: type[rdsd.RdsError]) -> None:
    a = bind()
    for call in (a.send, a.try_send):
        for _ in range(2):  # the second time from the cache
            with pytest.raises(error):
                call(dst, b"x")


def test_every_form_of_an_address(bind: Bind) -> None:
    a, b = bind(), bind()
    host, port = b.local_address
    forms: list[Any] = [b.local_address, (host, port), [host, port], f"{host}:{port}"]
    for dst in forms:
        a.send(dst, b"x", timeout=5)
    assert len(receive(b, 4)) == 4


def test_arguments_are_checked(bind: Bind) -> None:
    a = bind()
    calls: list[Callable[[], Any]] = [
        lambda: a.send(NOBODY),  # type: ignore[call-arg]
        lambda: a.send(NOBODY, b"", 1, 2),  # type: ignore[call-arg]
        lambda: a.send(NOBODY, b"", dst=NOBODY),  # type: ignore[misc]
        lambda: a.recv(patience=1),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    for limit in (0, -1, 1 << 31, 1 << 70):
        with pytest.raises(rdsd.InvalidArgument, match="limit"):
            a.recv_batch(limit)
    with pytest.raises(rdsd.InvalidArgument, match="not a number"):
        a.recv(timeout=float("nan"))
    for timeout in (0, -1, 1e-9):
        with pytest.raises(rdsd.TimedOut):
            a.recv(timeout=timeout)


# -- batches -----------------------------------------------------------------------


def receive(sock: rdsd.Socket, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        got += [payload for _, payload in sock.recv_batch(1000, timeout=10)]
    return got


def test_sizes_beyond_all(bind: Bind) -> None:
    """Numbers that no register holds are refused as others that are too large."""
    sock = bind()
    to = sock.local_address
    with pytest.raises(rdsd.TooLarge):
        sock.reserve(to, 2**70)
    with pytest.raises(rdsd.InvalidArgument, match=str(2**70)):
        sock.reserve(to, -(2**70))
    for lengths in (2**70, -(2**70), [2**70], [-(2**70)]):
        with pytest.raises(rdsd.InvalidArgument):
            sock.send_run(to, b"xx", lengths)


def test_batches_of_every_kind(bind: Bind) -> None:
    a, b, c = bind(send_buffer=4 << 20), bind(), bind()
    to = b.local_address
    assert len(a.send_batch([])) == 0
    tags = list(a.send_batch([(to, b"%d" % i) for i in range(500)], timeout=5))
    tags += a.send_batch(((to, b"%d" % i) for i in range(500, 600)), timeout=5)
    tags += a.send_batch([[to, b"600"]], timeout=5)  # type: ignore[list-item]
    tags += a.try_send_batch([(to, bytearray(b"%d" % i)) for i in range(601, 700)])
    assert receive(b, 700) == [b"%d" % i for i in range(700)]
    assert len(set(tags)) == 700
    a.send_batch([((to, c.local_address)[i % 2], b"%d" % i) for i in range(100)], timeout=5)
    assert receive(b, 50) == [b"%d" % i for i in range(0, 100, 2)]
    assert receive(c, 50) == [b"%d" % i for i in range(1, 100, 2)]


def test_runs_of_every_kind(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20), bind()
    to = b.local_address
    whole = b"".join(b"%04d" % i for i in range(300))
    assert len(a.send_run(to, whole, 4, timeout=5)) == 300
    assert receive(b, 300) == [b"%04d" % i for i in range(300)]
    assert len(a.send_run(to, bytearray(b"onetwothree"), [3, 3, 0, 5], timeout=5)) == 4
    assert receive(b, 4) == [b"one", b"two", b"", b"three"]
    assert len(a.send_run(to, [b"a", memoryview(b"bc"), b""], timeout=5)) == 3
    assert receive(b, 3) == [b"a", b"bc", b""]
    for data, lengths in ((b"12345", 2), (b"12345", 0), (b"12345", [2, 2]), (b"1", [-1, 2])):
        with pytest.raises(rdsd.InvalidArgument):
            a.send_run(to, data, lengths)
    with pytest.raises(rdsd.InvalidArgument, match="lengths"):
        a.send_run(to, b"12345")
    assert b.peek_size() is None


def test_receive_into_a_buffer(bind: Bind) -> None:
    a, b = bind(), bind()
    to = b.local_address
    sizes = [64, 64, 3000, 0, 70_000, 1]
    a.send_batch([(to, bytes([i]) * n) for i, n in enumerate(sizes)], timeout=5)
    buffer = bytearray(b"-" * 4000)
    for i, n in enumerate(sizes):
        if n > len(buffer):
            for _ in range(2):  # it stays, also for the other calls
                with pytest.raises(rdsd.TooLarge, match="buffer"):
                    b.recv_into(buffer, timeout=5)
            assert b.peek_size() == n
            assert b.recv(timeout=5).payload == bytes([i]) * n
            continue
        assert b.recv_into(buffer, timeout=5) == (n, a.local_address)
        assert buffer[:n] == bytes([i]) * n
    assert buffer[:2] == b"\5\2"  # not more than the datagram is written
    assert b.peek_size() is None

    # Into a part of something larger, and while waiting.
    large = bytearray(10)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(b.recv_into, memoryview(large)[2:6], 5)
        a.send(to, b"abcd", timeout=5)
        assert waits.result() == (4, a.local_address)
    assert large == b"\0\0abcd\0\0\0\0"
    for wrong, error in ((b"constant", BufferError), ("text", TypeError), (None, TypeError)):
        with pytest.raises(error):
            b.recv_into(wrong)  # type: ignore[arg-type]
    with pytest.raises(rdsd.TimedOut):
        b.recv_into(buffer, timeout=0.01)


def test_a_destination_that_cannot_be_is_refused_in_words(bind: Bind) -> None:
    sock = bind()
    for to, why in (
        ((sock.local_address.host, 1), "port 1 is reserved"),
        (("224.0.0.1", 5), "multicast or broadcast"),
        (("255.255.255.255", 5), "multicast or broadcast"),
    ):
        with pytest.raises(rdsd.InvalidArgument, match=why):
            sock.send(to, b"", timeout=5)


def test_what_the_daemon_says_of_a_destination_is_said(bind: Bind) -> None:
    """The flow table has an errno alone: the daemon is asked for the words."""
    sock, to = bind(), ("10.9.9.9", 5)
    calls: list[Callable[[], Any]] = [
        lambda: sock.send(to, b"", timeout=5),
        lambda: sock.try_send(to, b""),
        lambda: sock.congested(to, timeout=5),
        lambda: sock.reserve(to, 5, timeout=5),
        lambda: sock.request(to, b"", 5),
        lambda: sock.send_batch([(to, b"")], timeout=5),
        lambda: sock.try_send_batch([(to, b"")]),
        lambda: sock.send_run(to, [b"", b""], timeout=5),
        lambda: sock.send_run(to, b"abcd", 2, timeout=5),
    ]
    for call in calls:
        with pytest.raises(rdsd.RdsError, match=r"10\.9\.9\.9 is not an allowed peer") as caught:
            call()
        assert caught.value.errno == errno.EHOSTUNREACH


def test_what_a_batch_refuses_is_listed(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20, outcomes=True), bind()
    to = b.local_address
    six = rdsd.Address("2001:db8::1", 5)
    batch = [(to, b"1"), (to, bytes(2 << 20)), (six, b""), (to, b"2")]
    for call in (a.send_batch, a.try_send_batch):
        with pytest.raises(rdsd.BatchError) as caught:
            call(batch)
        error = caught.value
        kinds = [(1, rdsd.TooLarge), (2, rdsd.FamilyMismatch)]
        assert [(i, type(e)) for i, e in error.errors] == kinds
        assert (error.accepted, error.errno) == (2, 90)
        assert error.tags[1] == error.tags[2] == 0
        assert receive(b, 2) == [b"1", b"2"]
    outcomes = a.outcomes(timeout=5)
    assert {next(outcomes).tag for _ in range(4)} >= {error.tags[0], error.tags[3]}


def test_a_full_send_buffer_holds_up_batches_and_runs(bind: Bind) -> None:
    a = bind(send_buffer=65536)
    start = time.monotonic()
    calls: list[Callable[[], Any]] = [
        lambda: a.send_batch([(NOBODY, bytes(1000))] * 100, timeout=0.1),
        lambda: a.send_run(NOBODY, bytes(100_000), 1000, 0.1),
        lambda: a.send_run(NOBODY, [bytes(1000)] * 100, timeout=0.1),
    ]
    for sends in calls:
        with pytest.raises(rdsd.BatchError) as caught:
            sends()
        assert caught.value.errno == 110
        assert 0 < caught.value.accepted < 100
        assert [i for i, _ in caught.value.errors] == list(range(caught.value.accepted, 100))
        assert a.cancel_sent_to(NOBODY, timeout=5).cancelled == caught.value.accepted
    assert time.monotonic() - start < 5
    with pytest.raises(rdsd.BatchError) as caught:
        a.try_send_batch([(NOBODY, bytes(1000))] * 100)
    assert caught.value.errno == 11
    with pytest.raises(rdsd.WouldBlock):
        a.try_send(NOBODY, b"x")


def test_a_batch_larger_than_the_buffers_arrives_whole(bind: Bind) -> None:
    a, b = bind(send_buffer=65536), bind(recv_buffer=65536)
    count = 20_000
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.extend(receive(b, 2 * count)))
    reader.start()
    a.send_batch([(b.local_address, b"%06d" % i) for i in range(count)], timeout=30)
    a.send_run(b.local_address, b"".join(b"%06d" % i for i in range(count)), 6, timeout=30)
    reader.join(30)
    assert got == 2 * [b"%06d" % i for i in range(count)]


def test_outcomes_are_kept_for_whoever_asks_next(bind: Bind) -> None:
    a, b = bind(outcomes=True), bind()
    tags = list(a.send_batch([(b.local_address, b"x")] * 50, timeout=5))
    seen = []
    for _ in range(50):
        for outcome in a.outcomes(timeout=5):
            seen.append(outcome.tag)
            break
    assert seen == tags
    with pytest.raises(rdsd.TimedOut):
        next(a.outcomes(timeout=0.05))


@pytest.mark.parametrize("call", ["next_outcome", "await_outcomes"])
def test_an_interrupt_where_outcomes_were_taken(bind: Bind, call: str) -> None:
    a = bind(outcomes=True)
    tags = [a.send(a.local_address, b"x", timeout=30) for _ in range(3)]
    a.flush(timeout=30)

    def interrupt(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and arg.__name__ == "_outcomes":
            sys.setprofile(None)
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            getattr(a, call)(*([30] if call == "await_outcomes" else []))
    finally:
        sys.setprofile(before)
    outcomes = a.outcomes(timeout=5)
    assert [next(outcomes).tag for _ in tags] == tags


# -- memory in place ------------------------------------------------------------------


def test_borrowed_datagrams_lie_in_place(bind: Bind) -> None:
    a, b = bind(), bind()
    a.send_batch([(b.local_address, b"%d" % i) for i in range(10)], timeout=5)
    seen = 0
    while seen < 10:
        with b.borrow(timeout=5) as datagrams:
            assert len(datagrams) == len(list(datagrams))
            for addr, view in datagrams:
                assert (addr, bytes(view)) == (a.local_address, b"%d" % seen)
                assert view.readonly
                seen += 1
            kept = datagrams[0].payload
        with pytest.raises(ValueError, match="released"):
            bytes(kept)
        datagrams.release()


def test_what_is_still_looked_at_stays(bind: Bind) -> None:
    a, b = bind(), bind(recv_buffer=65536)
    a.send(b.local_address, b"look at me" * 100, timeout=5)
    with b.borrow(timeout=5) as datagrams:
        part = datagrams[0].payload[10:20]
    for _ in range(50):  # over and over the receive buffer
        a.send_run(b.local_address, b"z" * 10_000, 1000, timeout=5)
        receive(b, 10)
    assert bytes(part) == b"look at me"
    b.close()
    a.close()
    del a, b
    gc.collect()
    assert bytes(part) == b"look at me"
    part.release()


def congest(a: rdsd.Socket, b: rdsd.Socket) -> tuple[list[rdsd.Lease], int]:
    """Sends until the port of b is congested: what keeps it so, and how many are unread."""
    held: list[rdsd.Lease] = []
    sent = 0
    while not a.congested(b.local_address, timeout=5):
        try:
            a.try_send(b.local_address, bytes(1000))
            sent += 1
        except (rdsd.Congested, rdsd.WouldBlock):
            time.sleep(0.001)
        if (size := b.peek_size()) is not None:
            assert size == 1000
            held.append(b.borrow(1, timeout=5))
    return held, sent - len(held)


def test_unreleased_datagrams_congest_their_port(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20), bind(recv_buffer=16384)
    held, unread = congest(a, b)
    for lease in held:
        lease.release()
    receive(b, unread)
    a.send(b.local_address, b"room again", timeout=10)
    assert receive(b, 1) == [b"room again"]


def test_a_request_ends_in_time_though_its_send_has_waited(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20), bind(recv_buffer=16384)
    held, _ = congest(a, b)
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        request = pool.submit(a.request, b.local_address, b"?", 2)
        time.sleep(0.7)
        for lease in held:
            lease.release()
        while (asked := b.recv(timeout=5)).payload != b"?":
            pass
        time.sleep(max(0.0, begun + 2.5 - time.monotonic()))
        b.reply(asked, b"late", timeout=5)
        with pytest.raises(rdsd.TimedOut):
            request.result(10)


def test_what_is_borrowed_is_in_the_way(bind: Bind) -> None:
    a, b = bind(), bind(recv_buffer=64 << 10)
    held: list[rdsd.Lease] = []
    for _ in range(3):  # the third passes the limit
        a.send(b.local_address, bytes(30 << 10), timeout=5)
        held.append(b.borrow(1, timeout=5))
    sender = threading.Thread(target=a.send, args=(b.local_address, bytes(1 << 20), 10))
    sender.start()
    try:
        with pytest.raises(rdsd.Congested, match="release"):
            b.borrow(1, timeout=5)
        with pytest.raises(rdsd.TimedOut):
            b.recv(timeout=0.05)  # it keeps nothing: it waits for who does
    finally:
        for lease in held:
            lease.release()
    assert len(b.recv(timeout=10).payload) == 1 << 20
    sender.join()


def test_a_request_needs_nothing_of_what_is_borrowed(
    bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_are_out(_: rdsd.Socket) -> None:
        raise rdsd.Congested(errno.ENOBUFS, "8192 received pieces are unreleased: release some")

    a, b = bind(), bind()
    monkeypatch.setattr(type(b), "_peek", all_are_out, raising=False)
    with pytest.raises(rdsd.Congested, match="release some"):
        b.peek_size()
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(b.request, a.local_address, b"?", 5)
        a.reply(a.recv(timeout=5), b"!", timeout=5)
        assert request.result(10).payload == b"!"


def test_a_slot_is_filled_in_place(bind: Bind) -> None:
    a, b = bind(outcomes=True), bind()
    with a.reserve(b.local_address, 100, timeout=5) as slot:
        slot.data[:5] = b"first"
        assert not slot.data.readonly
        tag = slot.commit(5)
    assert b.recv(timeout=5).payload == b"first"
    assert next(a.outcomes(timeout=5)) == (tag, rdsd.OutcomeKind.DELIVERED, "")
    for use in (slot.commit, lambda: slot.data):
        with pytest.raises(rdsd.Closed):
            use()
    slot.abort()
    with a.reserve(b.local_address, 3, timeout=5) as slot:
        slot.data[:] = b"two"
        slot.commit()
    with a.reserve(b.local_address, 3, timeout=5) as slot:
        with pytest.raises(rdsd.TooLarge):
            slot.commit(4)
        slot.data[:] = b"not"
    a.reserve(b.local_address, 0, timeout=5).commit()
    assert receive(b, 2) == [b"two", b""]
    with pytest.raises(rdsd.InvalidArgument, match="size"):
        a.reserve(b.local_address, -1)
    with pytest.raises(rdsd.TooLarge):
        a.reserve(b.local_address, (1 << 20) + 1)


def test_a_slot_somebody_looks_at_is_not_given_up(bind: Bind) -> None:
    a, b = bind(), bind()
    slot = a.reserve(b.local_address, 4, timeout=5)
    part = slot.data[:2]
    for end in (slot.commit, slot.abort):
        with pytest.raises(BufferError, match="looks"):
            end()
    part[:] = b"ab"
    slot.data[2:] = b"cd"
    part.release()
    slot.commit()
    assert b.recv(timeout=5).payload == b"abcd"


def test_slots_count_against_the_send_buffer(bind: Bind) -> None:
    a = bind(send_buffer=65536)
    slots = [a.reserve(NOBODY, 30_000, timeout=5) for _ in range(3)]
    with pytest.raises(rdsd.TimedOut):
        a.reserve(NOBODY, 30_000, timeout=0.05)
    slots.pop()  # forgotten is aborted
    gc.collect()
    a.reserve(NOBODY, 30_000, timeout=5).abort()
    a.close()
    with pytest.raises(rdsd.Closed):
        slots[0].commit()


# -- waiting ---------------------------------------------------------------------------


def test_who_waits_lets_other_threads_run(bind: Bind) -> None:
    a, b = bind(), bind()
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)
        a.send(b.local_address, b"enough", timeout=5)

    thread = threading.Thread(target=count)
    thread.start()
    threading.Timer(0.2, done.set).start()
    assert b.recv(timeout=5).payload == b"enough"
    thread.join()
    assert turns > 20


def test_close_ends_every_wait(bind: Bind) -> None:
    a = bind(outcomes=True)
    ends: list[str] = []

    def wait(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
            ends.append(f"{name}: ended")
        except rdsd.Closed:
            ends.append(name)

    with a.watch_congestion() as watch:
        calls: dict[str, Callable[[], Any]] = {
            "recv": a.recv,
            "flush": a.flush,
            "request": lambda: a.request(NOBODY, b"x", None),
            "outcomes": lambda: list(a.outcomes()),
            "watch": lambda: list(watch),
            "for": lambda: list(a),
        }
        a.send(NOBODY, b"stuck", timeout=5)
        threads = [threading.Thread(target=wait, args=call) for call in calls.items()]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        a.close()
        for thread in threads:
            thread.join(5)
    assert sorted(ends) == ["flush", "for: ended", "outcomes: ended", "recv", "request",
                            "watch: ended"]  # fmt: skip
    a.close()


def fill(sock: rdsd.Socket, dst: rdsd.Address) -> int:
    """Sends in batches until the destination is congested; how many were accepted."""
    sent = 0
    while True:
        try:
            sent += len(sock.try_send_batch([(dst, bytes(1000))] * 10))
        except rdsd.BatchError as error:
            sent += error.accepted
            if error.errno == 105:
                return sent
            if error.errno != 11:  # posted faster than the daemon looks
                raise
            time.sleep(0.001)


def test_watches_hear_the_same_and_end_alone(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20), bind(recv_buffer=16384)
    first, second, third = (a.watch_congestion(timeout=10) for _ in range(3))
    closed = threading.Thread(target=lambda: list(third))
    closed.start()
    sent = fill(a, b.local_address)
    full = rdsd.CongestionChange(b.local_address, True)
    assert full in next(first).changes
    assert full in next(second).changes
    receive(b, sent)
    third.close()
    closed.join(5)
    assert not closed.is_alive()
    clear = rdsd.CongestionChange(b.local_address, False)
    for watch in (first, second):
        while clear not in next(watch).changes:
            pass
    late = a.watch_congestion(timeout=0.05)
    with pytest.raises(rdsd.TimedOut):
        next(late)


def test_a_watch_can_be_polled(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20), bind(recv_buffer=16384)
    sent = fill(a, b.local_address)
    watch = a.watch_congestion(timeout=0)
    receive(b, sent)
    until = time.monotonic() + 10
    while True:
        try:
            if (b.local_address, False) in next(watch).changes:
                break
        except rdsd.TimedOut:
            assert time.monotonic() < until, "an event that is there is not told"
    a.close()
    assert list(watch) == []


def test_an_interrupt_leaves_a_watch_to_others(bind: Bind, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = bind(send_buffer=4 << 20), bind(recv_buffer=16384)
    sent = fill(a, b.local_address)
    watch = a.watch_congestion(timeout=10)

    def interrupted(deadline: float | None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(watch, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(watch)
    receive(b, sent)
    for event in watch:
        if (b.local_address, False) in event.changes:
            break


def test_a_fan_in_of_watchers_ends(bind: Bind) -> None:
    """The spool pattern: for most senders the first datagram of all is refused."""
    senders, each = 6, 40
    sink, crowd = bind(recv_buffer=16384), bind(send_buffer=4 << 20)
    sent = fill(crowd, sink.local_address)
    refused = threading.Semaphore(0)

    def spool() -> None:
        with bind() as a, a.watch_congestion(timeout=10) as watch:
            for i in range(each):
                while True:
                    try:
                        a.try_send(sink.local_address, b"%d" % i + bytes(1000))
                        break
                    except rdsd.WouldBlock:
                        time.sleep(0.001)
                    except rdsd.Congested:
                        refused.release()
                        for event in watch:
                            if (sink.local_address, False) in event.changes:
                                break
            a.flush(timeout=10)

    threads = [threading.Thread(target=spool) for _ in range(senders)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert refused.acquire(timeout=10)
    receive(sink, sent + senders * each)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_what_cleared_unwatched_is_told_to_the_next_watcher(bind: Bind) -> None:
    a, b = bind(send_buffer=4 << 20), bind(recv_buffer=16384)
    receive(b, fill(a, b.local_address))
    while a.congested(b.local_address, timeout=5):
        time.sleep(0.005)
    with a.watch_congestion(timeout=5) as watch:
        assert rdsd.CongestionChange(b.local_address, False) in next(watch).changes


def test_many_producers_and_consumers(bind: Bind) -> None:
    senders, receivers, each = 4, 4, 2000
    a, b = bind(), bind()
    got: Counter[bytes] = Counter()
    lock = threading.Lock()

    def send(number: int) -> None:
        for i in range(each):
            a.send(b.local_address, b"%d %d" % (number, i), timeout=20)

    def read() -> None:
        mine: Counter[bytes] = Counter()
        while True:
            batch = [d.payload for d in b.recv_batch(50, timeout=20)]
            mine.update(batch)
            if b"end" in batch:
                break
        with lock:
            got.update(mine)

    readers = [threading.Thread(target=read) for _ in range(receivers)]
    writers = [threading.Thread(target=send, args=(n,)) for n in range(senders)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join(30)
    for thread in readers:
        while thread.is_alive():
            a.send(b.local_address, b"end", timeout=20)
            thread.join(0.02)
    del got[b"end"]
    assert got == Counter(b"%d %d" % (n, i) for n in range(senders) for i in range(each))


def test_a_socket_nobody_calls_binds_again(bind: Bind, daemons: Pair) -> None:
    near = daemons[0]
    a = bind()
    before = a.daemon_instance
    near.kill()
    near.start()
    until = time.monotonic() + 10
    while a.daemon_instance == before or not a.connected:  # neither call binds
        assert time.monotonic() < until
        time.sleep(0.01)
    with rdsd.Client(near.target) as other, other.bind((near.address, 0)) as b:
        b.send(a.local_address, b"there you are", timeout=5)
        assert a.recv(timeout=5).payload == b"there you are"


def test_batches_end_with_a_socket_that_binds_once(bind: Bind, daemons: Pair) -> None:
    near = daemons[0]
    a, b, c = (bind(reconnect=False, send_buffer=65536) for _ in range(3))
    here = a.local_address
    a.send(here, b"x", timeout=5)
    calls: list[Callable[[], Any]] = [
        lambda: b.send_batch([(NOBODY, bytes(1000))] * 100, timeout=10),  # wait for room
        lambda: c.send_run(NOBODY, bytes(100_000), 1000, 10),
        lambda: a.send_batch([(here, b"x")] * 3, timeout=5),  # begin afterwards
        lambda: a.send_run(here, b"xx", 1, timeout=5),
        lambda: a.send_run(here, [b"x"] * 3, timeout=5),
    ]
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(call) for call in calls[:2]]
        time.sleep(0.1)
        near.kill()
        try:
            until = time.monotonic() + 5
            while not a.closed:
                assert time.monotonic() < until
                time.sleep(0.01)
            begun = time.monotonic()
            for call in [lambda: waiting[0].result(), lambda: waiting[1].result(), *calls[2:]]:
                with pytest.raises(rdsd.BatchError) as caught:
                    call()
                assert {type(error) for _, error in caught.value.errors} == {rdsd.DaemonUnavailable}
            assert time.monotonic() - begun < 5
        finally:
            near.start()


# -- signals --------------------------------------------------------------------------------

PROGRAM = """
import signal, sys, threading, time
import rdsd
target, host, front_end, what = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's "&"
client = rdsd.Client(target, front_end=front_end)
a, b = client.bind((host, 0), outcomes=True), client.bind((host, 0))
a.send(b.local_address, b"first", timeout=5)
b.recv(timeout=5)
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(time.monotonic()))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
nobody = ("127.0.0.250", 7)
a.send(nobody, b"stuck", timeout=5)
waits = {
    "recv": lambda t: a.recv(t),
    "send": lambda t: [a.send(nobody, bytes(60_000), t) for _ in range(1000)],
    "batch": lambda t: a.send_batch([(nobody, bytes(60_000))] * 1000, t),
    "request": lambda t: a.request(b.local_address, b"?", t),
    "flush": lambda t: a.flush(t),
    "outcomes": lambda t: list(a.outcomes(t)),
    "watch": lambda t: list(a.watch_congestion(t)),
}
# A handler that raises nothing disturbs no wait. On a busy machine several signals are one.
disturbed = 0
while disturbed <= 5:
    ticks.clear()
    begun = time.monotonic()
    try:
        waits[what](0.3)
    except rdsd.RdsError as error:
        assert error.errno == 110, error
    assert time.monotonic() - begun >= 0.25, (time.monotonic() - begun, len(ticks))
    disturbed += len(ticks)
if what == "request":  # and the one request is answered by the one reply
    def answer():
        while (asked := b.recv(timeout=5)).payload != b"!":
            pass
        time.sleep(0.2)
        b.reply(asked, b"reply", timeout=5)
    threading.Thread(target=answer).start()
    assert a.request(b.local_address, b"!", 5).payload == b"reply"
signal.setitimer(signal.ITIMER_REAL, 0)
main = threading.main_thread().ident
begun = time.monotonic()
try:
    threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    waits[what](None)
    print("it ended")
except KeyboardInterrupt:
    assert time.monotonic() - begun < 10
    print("interrupted")
client.close()
"""


@pytest.mark.parametrize("what", ["recv", "send", "batch", "request", "flush", "outcomes", "watch"])
def test_signals(daemons: Pair, what: str) -> None:
    require("rings", daemons[0])
    run_program(PROGRAM, daemons[0], "rings", what, says="interrupted\n")


def test_a_close_beside_a_frozen_daemon(client: rdsd.Client, daemons: Pair, bind: Bind) -> None:
    a, b = bind(), bind()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(a.request, NOBODY, b"?", 60) for _ in range(3)]
        waiting.append(pool.submit(a.recv))
        time.sleep(0.3)  # each request has a port of its own by then
        daemons[0].freeze()
        try:
            begun = time.monotonic()
            closing = threading.Thread(target=client.close)
            closing.start()
            for call in waiting:
                assert isinstance(call.exception(20), rdsd.Closed)
            assert time.monotonic() - begun < 1.5, "they hear of it after the daemon was waited for"
            closing.join()
            assert time.monotonic() - begun < 3.5, "one after the other is waited for"
        finally:
            daemons[0].thaw()
    assert b.closed


# The daemon is asked while it is frozen; a signal handler thaws it when several have come.
ONCE = """\
import os, signal, sys
from pathlib import Path
import rdsd
target, host, what, daemon = sys.argv[1:]
client = rdsd.Client(target, front_end="rings")
a = client.bind((host, 0))
nobody = ("127.0.0.250", 7)
for _ in range(3):
    a.send(nobody, b"stuck", timeout=10)
with client.bind((host, 0)) as free:
    port = free.local_address.port
came = []
def come(*_):
    came.append(a.peek_size())  # a handler may call what it likes
    if len(came) == 5:
        os.kill(int(daemon), signal.SIGCONT)
signal.signal(signal.SIGALRM, come)
def state(stat):
    return stat.read_text().rpartition(") ")[2][0]
os.kill(int(daemon), signal.SIGSTOP)
while not all(state(stat) == "T" for stat in Path("/proc", daemon, "task").glob("*/stat")):
    pass
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
try:
    if what == "cancel":
        assert a.cancel_sent_to(nobody, timeout=60).cancelled == 3
    else:
        client.bind((host, port), timeout=60)
    assert len(came) >= 5, len(came)
finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.kill(int(daemon), signal.SIGCONT)
print("done")
client.close()
"""


@pytest.mark.parametrize("what", ["cancel", "bind"])
def test_what_is_asked_is_asked_once(daemons: Pair, what: str) -> None:
    require("rings", daemons[0])
    assert daemons[0].process is not None
    run_program(ONCE, daemons[0], what, str(daemons[0].process.pid), says="done\n")


def test_signals_over_the_control_socket(daemons: Pair) -> None:
    require("seqpacket", daemons[0])
    run_program(PROGRAM, daemons[0], "seqpacket", "recv", says="interrupted\n")


def run_program(program: str, daemon: Daemon, *args: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), daemon.target, daemon.address, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == says


def test_a_signal_just_before_a_wait_is_not_lost(bind: Bind) -> None:
    """As when Ctrl-C meets the moment in which a call still looks."""
    a = bind(spin=0.01)
    old = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        for delay in (0.0005, 0.003, 0.008, 0.012):
            timer = threading.Timer(
                delay, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)
            )
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                timer.start()
                a.recv()
            assert time.monotonic() - begun < 10
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_a_signal_to_another_thread_ends_a_flush(bind: Bind) -> None:
    """Nothing interrupts the wait, as where a signal comes just before it sleeps."""
    a = bind()
    a.send(("127.0.0.250", 7), b"stuck", timeout=5)

    def signal_here() -> None:
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    other = threading.Thread(target=signal_here)
    old = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            other.start()
            a.flush(10)
        assert time.monotonic() - begun < 5
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, old)


# -- leaks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("front_end", ["rings", "seqpacket"])
def test_a_thousand_sockets_leave_nothing(daemons: Pair, front_end: rdsd.FrontEnd) -> None:
    require(front_end, daemons[0])
    with rdsd.Client(daemons[0].target, front_end=front_end) as client:
        churn(client, daemons[0].address, 100)
        files, memory, threads = used()
        churn(client, daemons[0].address, 1000)
        gc.collect()
        until = time.monotonic() + 5
        while (after := used())[0] > files or after[2] > threads:
            assert time.monotonic() < until, f"{after}, before {(files, memory, threads)}"
            time.sleep(0.05)
    assert after[1] - memory < 4 << 20


def churn(client: rdsd.Client, host: str, count: int) -> None:
    for i in range(count):
        sock = client.bind((host, 0), outcomes=True)
        if i % 10 == 0:
            sock.send(sock.local_address, b"to oneself", timeout=5)
            with sock.borrow(timeout=5) as datagrams:
                assert bytes(datagrams[0].payload) == b"to oneself"
            sock.reserve(sock.local_address, 100, timeout=5)  # and forgotten
        if i % 3 or sock.front_end != "rings":
            sock.close()  # else forgotten as well


def used() -> tuple[int, int, int]:
    """Descriptors, resident bytes and threads of this process."""
    status = Path("/proc/self/status").read_text().split()
    return (
        len(os.listdir("/proc/self/fd")),
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"),
        int(status[status.index("Threads:") + 1]),
    )
