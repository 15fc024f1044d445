"""The front for asyncio over rings: waiting in the loop, requests, cancelled awaits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
import pytest_asyncio
from conftest import Daemon, require

import rdsd
import rdsd.aio
from rdsd._aio_rings import RingSocket
from rdsd._core import BindOptions
from rdsd._ring import Ring

Pair = tuple[Daemon, Daemon]
Bind = Callable[..., Awaitable[rdsd.aio.Socket]]

NOBODY = ("127.0.0.250", 7)  # no node answers there


@pytest_asyncio.fixture
async def bind(daemons: Pair) -> AsyncIterator[Bind]:
    require("rings", daemons[0])
    async with rdsd.aio.Client(daemons[0].target, front_end="rings") as client:

        async def bind(**options: Any) -> rdsd.aio.Socket:
            return await client.bind((daemons[0].address, 0), **options)

        yield bind


async def receive(sock: rdsd.aio.Socket, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        got += [payload for _, payload in await sock.recv_batch(1000, timeout=20)]
    return got


async def test_receive_into_a_buffer(bind: Bind) -> None:
    a, b = await bind(), await bind()
    buffer = bytearray(8)
    waits = asyncio.create_task(b.recv_into(buffer, timeout=20))
    await asyncio.sleep(0.01)
    for payload in (b"first", b"longer than 8", b"", b"last"):
        await a.send(b.local_address, payload, timeout=5)
    assert await waits == (5, a.local_address)
    assert buffer == b"first\0\0\0"
    with pytest.raises(rdsd.TooLarge, match="buffer"):
        await b.recv_into(buffer, timeout=20)
    assert (await b.recv(timeout=20)).payload == b"longer than 8"
    assert await b.recv_into(buffer, timeout=20) == (0, a.local_address)
    assert await b.recv_into(buffer, timeout=20) == (4, a.local_address)
    assert buffer == b"lastt\0\0\0"
    with pytest.raises(rdsd.TimedOut):
        await b.recv_into(buffer, timeout=0.01)


async def fill(sock: rdsd.aio.Socket, dst: tuple[str, int], until: type[rdsd.RdsError]) -> int:
    """Sends until this error; how many were accepted."""
    sent = 0
    while True:
        try:
            await sock.try_send(dst, bytes(1000))
            sent += 1
        except until:
            return sent
        except rdsd.WouldBlock:  # posted faster than the daemon looks
            await asyncio.sleep(0.001)


async def test_there_and_back(bind: Bind) -> None:
    a, b = await bind(), await bind()

    async def echo() -> None:
        async for datagram in b:
            await b.send(datagram.addr, datagram.payload, timeout=5)

    serving = asyncio.create_task(echo())
    for i in range(500):
        await a.send(b.local_address, b"%d" % i, timeout=5)
        assert (await a.recv(timeout=5)).payload == b"%d" % i
    assert a.front_end == "rings"
    await b.close()
    await asyncio.wait_for(serving, 5)


async def test_many_tasks_share_a_socket(bind: Bind) -> None:
    a, b = await bind(), await bind()

    async def send(number: int) -> None:
        for i in range(100):
            await a.send(b.local_address, b"%d %d" % (number, i), timeout=20)

    async def read() -> list[bytes]:
        return [(await b.recv(timeout=20)).payload for _ in range(200)]

    sending = asyncio.gather(*(send(n) for n in range(20)))
    results = await asyncio.gather(*(read() for _ in range(10)))
    await sending
    got = sorted(payload for result in results for payload in result)
    assert got == sorted(b"%d %d" % (n, i) for n in range(20) for i in range(100))


async def test_batches_larger_than_the_buffers(bind: Bind) -> None:
    a, b = await bind(send_buffer=65536), await bind(recv_buffer=65536)
    count = 5000
    payloads = [b"%06d" % i for i in range(count)]
    reading = asyncio.create_task(receive(b, 3 * count))
    tags = [
        *await a.send_batch([(b.local_address, p) for p in payloads], timeout=30),
        *await a.send_run(b.local_address, b"".join(payloads), 6, timeout=30),
        *await a.send_run(b.local_address, payloads, timeout=30),
    ]
    assert await reading == 3 * payloads
    assert len(set(tags)) == 3 * count


async def test_what_a_batch_refuses_is_listed(bind: Bind) -> None:
    a, b = await bind(send_buffer=65536), await bind()
    where, six = b.local_address, rdsd.Address("2001:db8::1", 5)
    batch = [(where, b"1"), (where, bytes(1 << 20)), (six, b""), (where, b"2")]
    for call in (a.send_batch, a.try_send_batch):
        with pytest.raises(rdsd.BatchError) as caught:
            await call(batch)
        kinds = [(1, rdsd.TooLarge), (2, rdsd.FamilyMismatch)]
        assert [(i, type(e)) for i, e in caught.value.errors] == kinds
    begun = time.monotonic()
    with pytest.raises(rdsd.BatchError) as caught:
        await a.send_batch([(NOBODY, bytes(1000))] * 3000, timeout=0.1)
    assert time.monotonic() - begun < 10
    assert caught.value.errno == 110
    accepted = caught.value.accepted
    assert [i for i, _ in caught.value.errors] == list(range(accepted, 3000))
    assert (await a.cancel_sent_to(NOBODY, timeout=5)).cancelled == accepted


async def test_nothing_overtakes_what_a_long_batch_had_no_room_for(
    bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch goes to the library in pieces; room that comes between two of them is too late."""
    a, full, clear = await bind(), await bind(), await bind()
    batch = [(s.local_address, b"%d" % i) for i in range(2000) for s in (full, clear)]
    await a.send_batch(batch[:2], timeout=10)  # both destinations are known
    ring = cast(RingSocket, a)._ring
    given = ring.try_send_batch

    def without_room(pairs: Any) -> Any:
        pairs = list(pairs)
        if (full.local_address, b"5") not in pairs:
            return given(pairs)
        first = pairs.index((full.local_address, b"5"))
        some = [i for i, (dst, _) in enumerate(pairs) if i < first or dst == clear.local_address]
        given([pairs[i] for i in some])
        why = rdsd.error_from_errno(errno.EAGAIN)
        raise rdsd.BatchError(
            [(i, why) for i in range(len(pairs)) if i not in some], [0] * len(pairs)
        )

    monkeypatch.setattr(ring, "try_send_batch", without_room)
    with pytest.raises(rdsd.BatchError) as caught:
        await a.send_batch(batch, timeout=0)
    to_full = [i for i, (dst, _) in enumerate(batch) if dst == full.local_address]
    assert [i for i, _ in caught.value.errors] == to_full[5:]
    assert {type(e) for _, e in caught.value.errors} == {rdsd.TimedOut}
    assert await receive(full, 6) == [b"0", *(b"%d" % i for i in range(5))]
    assert len(await receive(clear, 2001)) == 2001


async def test_a_full_send_buffer_is_waited_for(bind: Bind) -> None:
    a = await bind(send_buffer=65536, outcomes=True)
    sent = await fill(a, NOBODY, rdsd.WouldBlock)
    waiting = [asyncio.create_task(a.send(NOBODY, b"%d" % i, timeout=10)) for i in range(5)]
    with pytest.raises(rdsd.TimedOut):
        await a.reserve(NOBODY, 100, timeout=0.05)
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in waiting)
    assert (await a.cancel_sent_to(NOBODY, timeout=5)).cancelled == sent
    assert len(set(await asyncio.gather(*waiting))) == 5
    outcomes = a.outcomes(timeout=5)
    for _ in range(sent):
        assert (await anext(outcomes)).kind is rdsd.OutcomeKind.CANCELLED


async def test_a_congested_port_is_waited_for(bind: Bind) -> None:
    a, b = await bind(send_buffer=4 << 20), await bind(recv_buffer=16384)
    watch = a.watch_congestion(timeout=10)
    sent = await fill(a, b.local_address, rdsd.Congested)
    assert await a.congested(b.local_address, timeout=5)
    waiting = asyncio.create_task(a.send(b.local_address, b"last", timeout=10))
    batch = asyncio.create_task(a.send_batch([(b.local_address, b"of all")] * 3, timeout=10))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    got = await receive(b, sent + 4)
    await waiting
    assert len(await batch) == 3
    assert sorted(got[-4:]) == [b"last", b"of all", b"of all", b"of all"]
    wanted = {rdsd.CongestionChange(b.local_address, congested) for congested in (True, False)}
    while wanted:
        wanted -= set((await anext(watch)).changes)
    watch.close()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_fan_in_of_watchers_ends(bind: Bind) -> None:
    """The spool pattern: for most senders the first datagram of all is refused."""
    senders, each = 10, 40
    sink = await bind(recv_buffer=16384)
    crowd = await bind(send_buffer=4 << 20)
    sent = await fill(crowd, sink.local_address, rdsd.Congested)
    refused = asyncio.Semaphore(0)

    async def spool(a: rdsd.aio.Socket) -> None:
        left = [b"%d" % i + bytes(1000) for i in range(each)]
        async with a.watch_congestion(timeout=10) as watch:
            while left:
                try:
                    await a.try_send(sink.local_address, left[0])
                    left.pop(0)
                except rdsd.WouldBlock:
                    await asyncio.sleep(0.001)
                except rdsd.Congested:
                    refused.release()
                    async for event in watch:
                        if (sink.local_address, False) in event.changes:
                            break

    tasks = [asyncio.create_task(spool(await bind())) for _ in range(senders)]
    for _ in tasks:
        await refused.acquire()
    await receive(sink, sent + senders * each)
    await asyncio.gather(*tasks)


async def test_a_cancelled_await_sends_nothing_later(bind: Bind) -> None:
    a, b = await bind(send_buffer=4 << 20), await bind(recv_buffer=16384)
    sent = await fill(a, b.local_address, rdsd.Congested)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await a.send(b.local_address, b"changed my mind")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await a.recv()
    assert set(await receive(b, sent)) == {bytes(1000)}
    await a.send(b.local_address, b"and now", timeout=5)
    assert (await b.recv(timeout=5)).payload == b"and now"


def watch_attempts(sock: rdsd.aio.Socket, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The destinations that an attempt in the loop would have waited for."""
    ring = cast(RingSocket, sock)._ring
    unknown: list[Any] = []
    one, many = ring.try_send, ring.try_send_batch

    def try_send(dst: Any, payload: Any) -> int:
        unknown.extend(d for d in [dst] if not ring._known(d))
        return one(dst, payload)

    def try_send_batch(items: Any) -> Any:
        unknown.extend(d for d, _ in items if not ring._known(d))
        return many(items)

    monkeypatch.setattr(ring, "try_send", try_send)
    monkeypatch.setattr(ring, "try_send_batch", try_send_batch)
    return unknown


async def test_what_is_cancelled_leaves_no_thread(bind: Bind, daemons: Pair) -> None:
    """A flush without a timeout, to a node that is not there, with wait_for around it: each
    had its thread until the socket was closed."""
    a = await bind()
    await a.send(NOBODY, b"never", timeout=10)
    await _cancelled(a.flush)
    daemons[0].freeze()
    try:
        await _cancelled(a.flush)
        await _cancelled(lambda: a.cancel_sent_to(NOBODY))
        await _cancelled(lambda: a.congested((NOBODY[0], 4321)))
        async with rdsd.aio.Client(daemons[0].target, front_end="rings") as client:
            await _cancelled(lambda: client.bind((daemons[0].address, 0), timeout=None))
    finally:
        daemons[0].thaw()
    await a.cancel_sent_to(NOBODY, timeout=10)
    await a.flush(timeout=10)  # what has ended so is in nobody's way


async def _cancelled(call: Callable[[], Awaitable[Any]]) -> None:
    """Makes a call that cannot end by itself, cancels it, and waits until its thread is gone."""
    await _until(lambda: not _asking())
    waits = asyncio.ensure_future(call())
    await _until(_asking)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waits, 0.05)
    assert waits.cancelled()
    await _until(lambda: not _asking())


def _asking() -> bool:
    return any(thread.name == "rdsd-ask" for thread in threading.enumerate())


async def _until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def test_no_attempt_waits_in_the_loop(
    bind: Bind, daemons: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await bind(send_buffer=65536)
    unknown = watch_attempts(a, monkeypatch)
    for call in (a.send_batch, a.try_send_batch):
        with pytest.raises(rdsd.BatchError) as caught:
            await call([(("2001:db8::1", 5), b"")] * 3 + [(NOBODY, b"")])
        assert [(i, type(e)) for i, e in caught.value.errors] == [
            (i, rdsd.FamilyMismatch) for i in range(3)
        ]
        assert caught.value.tags[3] > 0
    await fill(a, NOBODY, rdsd.WouldBlock)
    waiting: list[Any] = [asyncio.create_task(a.send(NOBODY, b"x", timeout=60)) for _ in range(3)]
    waiting.append(asyncio.create_task(a.send_batch([(NOBODY, b"x")] * 3, timeout=60)))
    ring = cast(RingSocket, a)._ring
    await asyncio.sleep(0)
    daemons[0].kill()
    while a.connected:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert not ring._known(NOBODY)
    await asyncio.to_thread(daemons[0].start)
    await asyncio.gather(*waiting)
    assert unknown == []


async def test_a_daemon_slower_than_the_library_waits(
    bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await bind()
    introduce, late = Ring.introduce, [1, 2]

    def slow(ring: Ring, dst: Any) -> None:
        if late:
            late.pop()
            raise rdsd.TimedOut(110, "the daemon does not answer")
        introduce(ring, dst)

    monkeypatch.setattr(Ring, "introduce", slow)
    await asyncio.gather(*(a.send(a.local_address, b"x", timeout) for timeout in (None, 60)))
    assert not late


async def test_requests_beside_each_other_and_a_reader(bind: Bind) -> None:
    a, b, c = await bind(), await bind(), await bind()

    async def serve() -> None:
        async for datagram in b:
            await c.send(a.local_address, b"noise", timeout=5)
            await c.send(datagram.addr, b"dropped", timeout=5)
            await b.reply(datagram, b"re: " + datagram.payload, timeout=5)

    serving = asyncio.create_task(serve())
    reading = asyncio.create_task(receive(a, 20))
    replies = [asyncio.create_task(a.request(b.local_address, b"%d" % i, 10)) for i in range(20)]
    got = [(await reply).payload for reply in replies]
    assert got == [b"re: %d" % i for i in range(20)]
    assert await reading == [b"noise"] * 20
    with pytest.raises(rdsd.TimedOut):
        await a.request(NOBODY, b"anyone?", 0.05)
    assert (await a.cancel_sent_to(NOBODY, timeout=5)).cancelled == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await a.request(NOBODY, b"anyone?", None)
    await b.close()
    await serving


async def test_noise_beside_a_request_is_read_in_order(bind: Bind) -> None:
    a, b, c = await bind(), await bind(), await bind()
    for i in range(10):
        await c.send(a.local_address, b"%d" % i, timeout=5)
    request = asyncio.create_task(a.request(b.local_address, b"?", 10))
    asked = await b.recv(timeout=5)
    await c.flush(timeout=5)
    assert await a.peek_size() == 1
    await c.send(a.local_address, b"10", timeout=5)
    await b.reply(asked, b"!", timeout=5)
    assert (await request).payload == b"!"
    with await a.borrow(4, timeout=5) as datagrams:
        assert [bytes(view) for _, view in datagrams] == [b"0", b"1", b"2", b"3"]
    assert await receive(a, 7) == [b"%d" % i for i in range(4, 11)]


async def left_iteration(sock: rdsd.aio.Socket) -> bytes:
    """The datagram after which an iteration was left."""
    async for datagram in sock:
        return datagram.payload
    raise AssertionError("it ended")


async def test_what_an_iteration_left_makes_nobody_read_ahead(bind: Bind) -> None:
    size, buffer = 1000, 65536
    a, b = await bind(send_buffer=4 << 20), await bind(recv_buffer=buffer)
    await a.send_batch([(b.local_address, bytes(size))] * 4, timeout=5)
    await a.flush(timeout=5)
    await left_iteration(b)
    into, sent, got = bytearray(size), 4, 1

    async def borrowed() -> None:
        with await b.borrow(1, timeout=5) as datagrams:
            assert len(datagrams) == 1

    takes: list[Callable[[], Awaitable[object]]] = [b.recv, lambda: b.recv_into(into), borrowed]
    for take in itertools.cycle(takes):
        try:
            for _ in range(3):
                await a.try_send(b.local_address, bytes(size))
                sent += 1
        except rdsd.Congested:
            break
        except rdsd.WouldBlock:
            await asyncio.sleep(0.001)
        with contextlib.suppress(rdsd.TimedOut):  # what b has no room for is undecided
            await a.flush(timeout=0.1)
        assert (sent - got) * size < 2 * buffer, "nobody bounds what is unread"
        await take()
        got += 1
    assert len(await receive(b, sent - got)) == sent - got


async def test_who_takes_one_asks_the_ring_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sock = RingSocket("", BindOptions(rdsd.Address("127.0.0.1", 0)))
    asked: list[int] = []

    def there(limit: int) -> list[rdsd.Datagram]:
        asked.append(limit)
        return [rdsd.Datagram(rdsd.Address("127.0.0.1", 7), b"%d" % len(asked))] * limit

    monkeypatch.setattr(sock._ring, "_recv_now", there)
    assert await left_iteration(sock) == b"1"
    for _ in range(255):
        assert sock._take(1)[0].payload == b"1"
    assert asked == [256]
    for n in range(2, 5):
        assert [payload for _, payload in sock._take(1)] == [b"%d" % n]
    assert asked == [256, 1, 1, 1]


async def test_memory_in_place(bind: Bind) -> None:
    a, b = await bind(), await bind()
    with await a.reserve(b.local_address, 100, timeout=5) as slot:
        slot.data[:3] = b"one"
        await slot.commit(3)
    with await a.reserve(b.local_address, 100, timeout=5):
        pass  # aborted
    with await b.borrow(timeout=5) as datagrams:
        assert [(addr, bytes(view)) for addr, view in datagrams] == [(a.local_address, b"one")]
    assert await b.peek_size() is None


async def test_what_is_borrowed_is_in_the_way(bind: Bind) -> None:
    a, b = await bind(), await bind(recv_buffer=64 << 10)
    held = []
    for _ in range(3):
        await a.send(b.local_address, bytes(30 << 10), timeout=5)
        held.append(await b.borrow(1, timeout=5))
    copied = asyncio.ensure_future(b.recv(timeout=10))  # waits, whatever the others hear
    sent = asyncio.ensure_future(a.send(b.local_address, bytes(1 << 20), timeout=10))
    with pytest.raises(rdsd.Congested, match="release"):
        await b.borrow(1, timeout=5)
    assert not copied.done()
    for lease in held:
        lease.release()
    assert len((await copied).payload) == 1 << 20
    await sent


async def test_a_frozen_daemon_stops_no_loop(bind: Bind, daemons: Pair) -> None:
    a, b = await bind(), await bind()
    near = daemons[0]
    near.freeze()
    try:
        ticks = 0
        limit = 1.0  # a busy machine turns the loop every 30 ms, a stopped one not at all
        calls = [
            a.send(b.local_address, b"x", timeout=limit),
            a.try_send(("127.0.0.249", 7), b"x"),
            a.flush(timeout=limit),
            a.cancel_sent_to(NOBODY, timeout=limit),
            a.congested(NOBODY, timeout=limit),
            a.recv(timeout=limit),
            a.request(b.local_address, b"x", limit),
        ]
        waiting = [asyncio.ensure_future(call) for call in calls]
        patient = waiting.pop(1)  # try_send waits for the daemon's verdict on its destination
        begun = time.monotonic()
        while not all(task.done() for task in waiting):
            assert time.monotonic() - begun < 5
            await asyncio.sleep(0.005)
            ticks += 1
        assert ticks > 10
        assert not patient.done()
    finally:
        near.thaw()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(r) for r in results] == [rdsd.TimedOut] * len(calls[1:]), results
    await asyncio.wait_for(patient, 10)


async def test_what_is_there_and_cannot_be_taken_stops_no_loop(
    bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when so many datagrams are lent that the library has no lease for another."""
    a, b = await bind(), await bind()
    await a.send(b.local_address, b"there", timeout=10)
    tries, often = 0, asyncio.Event()

    def take(limit: int) -> list[rdsd.Datagram]:
        nonlocal tries
        tries += 1
        assert tries < 1000
        if tries == 10:
            often.set()
        return []

    with monkeypatch.context() as patched:
        patched.setattr(b, "_take", take)
        reading = asyncio.create_task(b.recv(timeout=20))
        await asyncio.wait_for(often.wait(), 20)
    assert (await reading).payload == b"there"


async def test_outcomes_beside_a_close_are_all_told(bind: Bind) -> None:
    for early in (True, False):  # the reader waits, or comes while close is under way
        a = await bind(outcomes=True)
        tags = [await a.send(NOBODY, b"stuck", timeout=10) for _ in range(3)]

        async def read(a: rdsd.aio.Socket = a) -> list[rdsd.Outcome]:
            return [outcome async for outcome in a.outcomes(timeout=20)]

        reading = asyncio.create_task(read()) if early else None
        await asyncio.sleep(0)
        closing = asyncio.create_task(a.close())
        await asyncio.sleep(0)
        outcomes = await (reading or read())
        await closing
        assert [outcome.tag for outcome in outcomes] == tags


async def await_room(sock: Any) -> None:
    """As a send that met WouldBlock."""
    await sock._wait_for_room([rdsd.WouldBlock()], time.monotonic() + 10)


async def test_who_waits_for_something_else_stays_armed(bind: Bind) -> None:
    """The library answers what is there, and is then armed for nobody."""
    a, b = await bind(outcomes=True), await bind(outcomes=True)
    for _ in range(3):
        reading = asyncio.create_task(b.recv(timeout=20))
        deciding = asyncio.ensure_future(anext(b.outcomes(timeout=20)))
        await asyncio.sleep(0.01)  # both sleep
        await await_room(b)
        await a.send(b.local_address, b"x", timeout=5)
        await asyncio.wait_for(reading, 5)
        await b.send(a.local_address, b"y", timeout=5)
        await asyncio.wait_for(deciding, 5)


async def test_the_end_is_told_to_all(bind: Bind, daemons: Pair) -> None:
    """Also when the call of one task has met it before the loop did."""
    near = daemons[0]
    a = await bind(outcomes=True, reconnect=False)
    calls: list[Any] = [a.recv(timeout=10), anext(a.outcomes(timeout=10))]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.01)  # both sleep
    near.kill()
    try:
        with pytest.raises(rdsd.DaemonUnavailable):  # nothing else of the loop has run meanwhile
            await await_room(a)
        results = await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        await asyncio.to_thread(near.start)
    assert [type(r) for r in results] == [rdsd.DaemonUnavailable] * 2


async def test_close_ends_every_wait(bind: Bind) -> None:
    a = await bind(outcomes=True)
    await a.send(NOBODY, b"stuck", timeout=5)
    watch = a.watch_congestion()
    calls: list[Any] = [a.recv(), a.flush(), a.request(NOBODY, b"x", None)]
    ends: list[Any] = [anext(a.outcomes(), None), anext(watch, None), anext(aiter(a), None)]
    waiting = [asyncio.ensure_future(call) for call in calls + ends]
    await asyncio.sleep(0.05)
    await a.close()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [type(r) for r in results[:3]] == [rdsd.Closed] * 3
    assert results[4:] == [None, None]
    with pytest.raises(rdsd.Closed):
        await a.send(NOBODY, b"x")
    await a.close()


async def test_a_socket_nobody_awaits_binds_again(bind: Bind, daemons: Pair) -> None:
    near = daemons[0]
    a = await bind()
    before = a.daemon_instance
    near.kill()
    await asyncio.to_thread(near.start)
    async with asyncio.timeout(10):
        while a.daemon_instance == before or not a.connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_cancelled_bind_leaves_nothing(daemons: Pair) -> None:
    require("rings", daemons[0])
    near = daemons[0]
    before = len(os.listdir("/proc/self/fd"))
    async with rdsd.aio.Client(daemons[0].target, front_end="rings") as client:
        near.freeze()
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.bind((daemons[0].address, 0), timeout=0.5)
        finally:
            near.thaw()
    async with asyncio.timeout(5):
        while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
