"""Both fronts against the fake daemon: the surface, its errors, restarts."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import FrameType
from typing import Any, cast

import grpc
import pytest
from conftest import FRONT_ENDS, Daemon, Front, require
from fake_daemon import FakeDaemon, FakeSocket, key

import rdsd
import rdsd.aio
from rdsd import _requests
from rdsd._aio_stream import StreamSocket
from rdsd.v1 import rdsd_pb2 as pb

HOST = "127.0.0.1"

Call = Callable[[], Coroutine[Any, Any, Any]]


async def pair(front: Front, fake: FakeDaemon, **options: Any) -> tuple[Any, Any]:
    client = front.client(fake.target)
    return (
        await front.do(client.bind, (HOST, 0), **options),
        await front.do(client.bind, f"{HOST}:0", **options),
    )


async def test_send_and_receive(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    for payload in (b"bytes", bytearray(b"array"), memoryview(b"view"), b""):
        await front.do(a.send, b.local_address, payload, timeout=timedelta(seconds=5))
        got = await front.do(b.recv, timeout=5)
        assert got == rdsd.Datagram(a.local_address, bytes(payload))


async def test_receive_into_a_buffer(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    for payload in (b"one", b"larger than the buffer", b"", b"four"):
        await front.do(a.send, b.local_address, payload, timeout=5)
    buffer = bytearray(b"........")
    assert await front.do(b.recv_into, buffer, timeout=5) == (3, a.local_address)
    assert buffer == b"one....."
    for _ in range(2):  # it stays
        with pytest.raises(rdsd.TooLarge, match="buffer"):
            await front.do(b.recv_into, buffer, timeout=5)
    assert buffer == b"one....."
    large = memoryview(bytearray(40))[10:]
    assert await front.do(b.recv_into, large, timeout=5) == (22, a.local_address)
    assert bytes(large[:23]) == b"larger than the buffer\0"
    assert await front.do(b.recv_into, bytearray(), timeout=5) == (0, a.local_address)
    assert (await front.do(b.recv, timeout=5)).payload == b"four"
    with pytest.raises(rdsd.TimedOut):
        await front.do(b.recv_into, buffer, timeout=0.05)
    for wrong, error in ((b"constant", BufferError), ("text", TypeError)):
        with pytest.raises(error):
            await front.do(b.recv_into, wrong, timeout=5)
    await front.do(b.close)
    with pytest.raises(rdsd.Closed):
        await front.do(b.recv_into, buffer, timeout=5)


async def test_batches_keep_order(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    count = 3000
    tags = await front.do(a.send_batch, [(b.local_address, b"%d" % i) for i in range(count)])
    assert len(tags) == count
    got: list[bytes] = []
    while len(got) < count:
        got += [d.payload for d in await front.do(b.recv_batch, 700, timeout=5)]
    assert got == [b"%d" % i for i in range(count)]


async def test_a_small_window_gives_credit_back(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake, recv_window=(2, 100))
    await front.do(a.send_batch, [(b.local_address, b"x")] * 50)
    for _ in range(50):
        await front.do(b.recv, timeout=5)


async def test_iteration_ends_with_close(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    await front.do(a.send_batch, [(b.local_address, b"%d" % i) for i in range(3)])
    got: list[bytes] = []

    def read() -> None:
        got.extend(d.payload for d in b)

    async def read_aio() -> None:
        async for d in b:
            got.append(d.payload)  # noqa: PERF401 - what came before the end counts

    task = asyncio.create_task(asyncio.to_thread(read) if front.name == "sync" else read_aio())
    await wait_until(lambda: len(got) == 3)
    await front.do(b.close)
    await asyncio.wait_for(task, 5)
    assert got == [b"0", b"1", b"2"]


async def test_outcomes(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake, outcomes=True)
    there = await front.do(a.send, b.local_address, b"x")
    nowhere = await front.do(a.send, (HOST, 9), b"x")
    outcomes = a.outcomes(timeout=5)
    assert await front.next(outcomes) == (there, rdsd.OutcomeKind.DELIVERED, "")
    assert await front.next(outcomes) == (nowhere, rdsd.OutcomeKind.FAILED, "no such port")


async def test_outcomes_must_be_asked_for(front: Front, fake: FakeDaemon) -> None:
    a, _ = await pair(front, fake)
    with pytest.raises(rdsd.InvalidArgument, match="outcomes=True"):
        a.outcomes()


async def test_request_gets_the_reply_of_its_peer(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    other = await front.do(front.client(fake.target).bind, (HOST, 0))
    request = asyncio.create_task(front.do(a.request, b.local_address, b"ping", 5))
    asked = await front.do(b.recv, timeout=5)
    assert asked.addr.host == HOST
    assert asked.addr != a.local_address
    await front.do(other.send, a.local_address, b"not for the request")
    await front.do(other.send, asked.addr, b"dropped")
    await front.do(b.reply, asked, b"pong", timeout=5)
    assert (await request).payload == b"pong"
    assert (await front.do(a.recv, timeout=5)).payload == b"not for the request"


async def test_request_times_out_and_cancels(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    with pytest.raises(rdsd.TimedOut) as caught:
        await front.do(a.request, b.local_address, b"ping", 0.1)
    assert isinstance(caught.value, TimeoutError)
    await asyncio.to_thread(fake.wait_taken_back, left=2)


async def test_a_late_reply_is_nobodys(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    late = []
    for number in range(5):
        if number in (1, 3):
            with pytest.raises(rdsd.TimedOut):
                await front.do(a.request, b.local_address, b"%d" % number, 0.2)
            late.append(await front.do(b.recv, timeout=5))
            continue
        request = asyncio.create_task(front.do(a.request, b.local_address, b"%d" % number, 10))
        asked = await front.do(b.recv, timeout=5)
        assert asked.payload == b"%d" % number
        assert asked.addr not in [gone.addr for gone in late]
        for gone in late:
            await front.do(b.reply, gone, b"re: " + gone.payload)
        await front.do(b.reply, asked, b"re: " + asked.payload)
        assert (await request).payload == b"re: %d" % number
    assert await front.do(a.peek_size) is None


async def test_requests_have_a_limit_and_wait(
    front: Front, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await pair(front, fake)
    most, kept, many = 3, 2, 5
    monkeypatch.setattr(_requests, "MAX_PORTS", most)
    monkeypatch.setattr(_requests, "KEEP_PORTS", kept)
    asked = [
        asyncio.create_task(front.do(a.request, b.local_address, b"%d" % i, 20))
        for i in range(many)
    ]
    got = [await front.do(b.recv, timeout=20) for _ in range(most)]
    assert len({d.addr for d in got}) == most
    with pytest.raises(rdsd.TimedOut):
        await front.do(b.recv, timeout=0.05)
    with pytest.raises(rdsd.TimedOut, match="in use"):
        await front.do(a.request, b.local_address, b"no port", 0.05)
    for number in range(many):
        await front.do(b.reply, got[number], b"re: " + got[number].payload)
        if len(got) < many:
            got.append(await front.do(b.recv, timeout=20))
    answers = [await one for one in asked]
    assert [d.payload for d in answers] == [b"re: %d" % i for i in range(many)]
    assert len(a._requests._ports.ports) <= kept


@pytest.mark.parametrize(
    ("name", "event"),
    [("pick", "return"), ("_acquire", "return"), ("take_turn", "return"), ("_add", "call")],
)
def test_a_request_that_is_interrupted_leaves_nothing(
    fake: FakeDaemon, name: str, event: str
) -> None:
    with rdsd.Client(fake.target, front_end="seqpacket") as client:
        a, b = client.bind((HOST, 0)), client.bind((HOST, 0))

        def interrupt(frame: FrameType, what: str, arg: Any) -> None:
            if frame.f_code.co_name == name and what == event and arg is not False:
                sys.setprofile(None)
                raise KeyboardInterrupt

        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                a.request(b.local_address, b"interrupted", 5)
        finally:
            sys.setprofile(before)
        requests = a._requests
        assert not requests._changed._is_owned()  # type: ignore[attr-defined]
        assert not any(port.asked for port in requests._ports.ports)
        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(a.request, b.local_address, b"?", 5)
            while (asked := b.recv(timeout=5)).payload != b"?":
                pass
            b.reply(asked, b"!", timeout=5)
            assert request.result(10).payload == b"!"


@pytest.mark.parametrize("early", [True, False])
async def test_a_request_leaves_from_no_port_that_is_lost(
    front: Front, fake: FakeDaemon, early: bool
) -> None:
    class Answering(FakeSocket):
        def push(self, source: pb.Endpoint, payload: bytes) -> None:
            fake.sockets[key(source)].push(pb.Endpoint(address=source.address, port=9), b"re")

    a, _ = await pair(front, fake)
    (host, _), *_ = fake.sockets
    fake.sockets[host, 9] = Answering()
    assert await front.do(a.request, (HOST, 9), b"?", 30) == ((HOST, 9), b"re")
    port = a._requests._ports.ports[0].sock
    fake.sockets[host, 8] = FakeSocket()  # answers nothing
    sent = len(fake.received["send"])
    left = asyncio.create_task(front.do(a.request, (HOST, 8), b"?", None))
    await asyncio.to_thread(fake.wait_received, "send", sent + 1)
    sender = port._core.sender
    await wait_until(lambda: not (sender._batches or sender._trying or sender._waiting))
    await asyncio.to_thread(fake.stop)
    await wait_until(lambda: not port.connected)
    fake.sockets[host, 9] = Answering()
    fake.sockets[host, port.local_address.port] = FakeSocket()  # somebody else is given it first
    asking = [] if not early else [asyncio.create_task(front.do(a.request, (HOST, 9), b"?", 30))]
    fake.start()
    await wait_until(lambda: port.closed)
    with pytest.raises(rdsd.DaemonUnavailable, match="somebody else has the port"):
        await asyncio.wait_for(left, 10)
    answer = await (asking[0] if early else front.do(a.request, (HOST, 9), b"?", 30))
    assert answer == ((HOST, 9), b"re")
    await wait_until(lambda: port.closed)


async def test_a_refused_request_cancels_nothing(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    with pytest.raises(rdsd.TooLarge):
        await front.do(a.request, b.local_address, bytes(2 << 20), 5)
    await front.do(a.flush)
    assert not fake.received["cancel"]


async def test_a_cancelled_await_takes_the_request_back(fake: FakeDaemon) -> None:
    async with rdsd.aio.Client(fake.target) as client, await client.bind((HOST, 0)) as a:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await a.request((HOST, 9), b"ping", None)
        await asyncio.to_thread(fake.wait_taken_back, left=1)


async def test_a_cancelled_await_takes_back_what_has_not_left(fake: FakeDaemon) -> None:
    fake.window_batches = 1
    fake.silent.add("send")
    async with rdsd.aio.Client(fake.target) as client, await client.bind((HOST, 0)) as a:
        sends = [asyncio.create_task(a.send((HOST, 9), b"%d" % i)) for i in range(2)]
        await asyncio.to_thread(fake.wait_received, "send")
        third = asyncio.create_task(a.send((HOST, 9), b"third"))
        await asyncio.sleep(0)
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        assert not cast(StreamSocket, a)._core.sender.queued
        await a.close()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(r, rdsd.Closed) and r.undecided for r in results)


async def test_queries(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    fake.congested.add(77)
    assert await front.do(a.congested, (HOST, 77)) is True
    assert await front.do(a.congested, (HOST, 78)) is False
    assert await front.do(a.cancel_sent_to, (HOST, 77)) == rdsd.CancelResult(3, 1)
    await front.do(a.flush, timeout=5)
    assert await front.do(b.peek_size) is None
    await front.do(a.send, b.local_address, b"12345")
    while (size := await front.do(b.peek_size)) is None:
        pass
    assert size == 5


async def test_try_send_meets_congestion_at_once(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    fake.congested.add(b.local_address.port)
    with pytest.raises(rdsd.Congested) as caught:
        await front.do(a.try_send, b.local_address, b"x")
    assert caught.value.errno == 105


async def test_watch_congestion(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    port = b.local_address.port
    fake.congested.add(port)
    with pytest.raises(rdsd.Congested):
        await front.do(a.try_send, b.local_address, b"x")
    fake.clear(port)
    watch = a.watch_congestion(timeout=5)
    event = await front.next(watch)
    assert rdsd.CongestionChange(b.local_address, False) in event.changes
    await asyncio.to_thread(fake.wait_received, "monitor", 3)
    # In any order: two sockets, each read by a thread of the daemon's.
    assert [m.monitor.set_events for m in fake.received["monitor"]].count(True) == 1
    watch.close()
    with pytest.raises(StopAsyncIteration):
        await front.next(watch)


async def test_batch_error_lists_what_was_refused(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    fake.congested.add(9)
    where = b.local_address
    with pytest.raises(rdsd.BatchError) as caught:
        await front.do(a.send_batch, [(where, b"1"), ((HOST, 9), b"2"), (where, b"x" * (1 << 21))])
    error = caught.value
    assert [(i, type(e)) for i, e in error.errors] == [(1, rdsd.Congested), (2, rdsd.TooLarge)]
    assert (error.accepted, error.errno) == (1, 105)


@pytest.mark.parametrize("timeout", [3e6, timedelta(days=365), 1e9, 1e300])
async def test_a_timeout_of_months_waits(local_front: Front, daemons: Any, timeout: Any) -> None:
    """No call of the operating system's is given more than it takes."""
    do, client = local_front.do, local_front.client(daemons[0].target)
    a, b = [
        await do(client.bind, (daemons[0].address, 0), outcomes=True, timeout=timeout)
        for _ in range(2)
    ]
    where = b.local_address
    got = asyncio.ensure_future(do(b.recv, timeout=timeout))
    await asyncio.sleep(0.01)
    await do(a.send, where, b"1", timeout=timeout)
    assert (await asyncio.wait_for(got, 20)).payload == b"1"
    await do(a.send_batch, [(where, b"2")], timeout=timeout)
    await do((await do(a.reserve, where, 1, timeout=timeout)).commit)
    await do(a.flush, timeout=timeout)
    await do(a.cancel_sent_to, where, timeout=timeout)
    assert not await do(a.congested, where, timeout=timeout)
    assert await do(b.peek_size, timeout=timeout) == 1
    assert (await local_front.next(a.outcomes(timeout))).kind is rdsd.OutcomeKind.DELIVERED


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
async def test_receive_times_out(front: Front, fake: FakeDaemon, timeout: Any) -> None:
    a, _ = await pair(front, fake)
    start = time.monotonic()
    with pytest.raises(rdsd.TimedOut):
        await front.do(a.recv, timeout=timeout)
    assert time.monotonic() - start < 10


async def test_a_silent_daemon_hangs_nobody(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    fake.silent.update({"send", "flush", "congested", "peek", "cancel"})
    where = b.local_address
    with pytest.raises(rdsd.TimedOut) as caught:
        await front.do(a.send, where, b"x", timeout=0.05)
    assert caught.value.undecided
    calls: list[Call] = [
        lambda: front.do(a.flush, timeout=0.05),
        lambda: front.do(a.congested, where, timeout=0.05),
        lambda: front.do(a.peek_size, timeout=0.05),
        lambda: front.do(a.cancel_sent_to, where, timeout=0.05),
    ]
    for call in calls:
        with pytest.raises(rdsd.TimedOut):
            await call()


async def test_sends_by_credit_wait_for_no_answer(front: Front, fake: FakeDaemon) -> None:
    fake.credit, fake.window_batches = 100, 64
    a, b = await pair(front, fake)
    where = b.local_address
    for _ in range(2):
        await front.do(a.send, where, b"asked")
        assert (await front.do(b.recv, timeout=5)).payload == b"asked"
    fake.silent.add("send")
    if front.front_end != "grpc":  # results are read by callers that wait
        with pytest.raises(rdsd.TimedOut):
            await front.do(a.send, where, b"x", timeout=0.05)
        return
    for i in range(10):
        await front.do(a.send, where, b"%d" % i, timeout=0.05)
    await front.do(a.send_batch, [(where, b"batch")] * 10, timeout=0.05)
    with pytest.raises(rdsd.TimedOut):
        await front.do(a.flush, timeout=0.05)  # it waits for the results
    # Slow ones leave their place to others, so that all of it is written.
    await asyncio.to_thread(_until_sent, fake, 22)
    # The other socket's question may come after it.
    assert any(m.monitor.set_events for m in fake.received["monitor"])
    assert all(m.send.wait for m in fake.received["send"][2:5])


def _until_sent(fake: FakeDaemon, count: int) -> None:
    def sent() -> int:
        return sum(len(m.send.length) for m in fake.received["send"])

    with fake.changed:
        assert fake.changed.wait_for(lambda: sent() >= count, 5), sent()


async def test_a_silent_bind_times_out(front: Front, fake: FakeDaemon) -> None:
    fake.silent.add("bind")
    with pytest.raises(rdsd.TimedOut, match="did not answer"):
        await front.do(front.client(fake.target).bind, (HOST, 0), timeout=0.1)


async def test_no_daemon(front: Front, fake: FakeDaemon) -> None:
    with pytest.raises(rdsd.DaemonUnavailable, match="nowhere"):
        await front.do(front.client(str(fake.path) + "-nowhere").bind, (HOST, 0), timeout=5)


async def test_bind_refusals(front: Front, fake: FakeDaemon) -> None:
    a, _ = await pair(front, fake)
    with pytest.raises(rdsd.AddressInUse):
        await front.do(front.client(fake.target).bind, a.local_address)
    fake.bind_errno = 13
    with pytest.raises(rdsd.PermissionDenied, match="refused by the test"):
        await front.do(front.client(fake.target).bind, (HOST, 0))
    fake.bind_errno = 0
    fake.bind_status = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")
    if front.front_end == "grpc":
        with pytest.raises(rdsd.OutOfBudget, match="too many streams"):
            await front.do(front.client(fake.target).bind, (HOST, 0))


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("10.0.0.1", {}),
        ("fd00::1:5", {}),
        (("nowhere.example", 5), {}),
        ((HOST, 70000), {}),
        ((HOST, 0), {"recv_window": (0, 1)}),
        ((HOST, 0), {"label": "x" * 65}),
        ((HOST, 0), {"congestion_mask": 1 << 64}),
        ((HOST, 0), {"send_buffer": -1}),
    ],
)
async def test_bad_arguments_are_named(
    front: Front, fake: FakeDaemon, address: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(rdsd.InvalidArgument) as caught:
        await front.do(front.client(fake.target).bind, address, **options)
    assert isinstance(caught.value, ValueError)


class Four:
    """An integer as numpy has them."""

    def __index__(self) -> int:
        return 4


@pytest.mark.parametrize("name", ["send_buffer", "recv_buffer", "recv_window", "congestion_mask"])
async def test_numbers_are_whole(local_front: Front, daemons: Any, name: str) -> None:
    client, here = local_front.client(daemons[0].target), (daemons[0].address, 0)
    for wrong in (65536.0, None, "4"):
        options: dict[str, Any] = {name: (4, wrong) if name == "recv_window" else wrong}
        with pytest.raises(TypeError, match="whole number"):
            await local_front.do(client.bind, here, timeout=30, **options)
    for right in (True, Four()):
        options = {name: (right, right) if name == "recv_window" else right}
        await local_front.do(client.bind, here, timeout=30, **options)


async def test_bad_payload_and_destination(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    with pytest.raises(rdsd.InvalidArgument, match="str"):
        await front.do(a.send, b.local_address, "text")
    with pytest.raises(rdsd.DestinationRequired):
        await front.do(a.send, ("0.0.0.0", 5), b"x")


# -- restart ---------------------------------------------------------------


async def test_restart_binds_the_same_port_again(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    before = (a.local_address, b.local_address)
    recv = asyncio.create_task(front.do(b.recv, timeout=20))
    await asyncio.to_thread(fake.restart)
    await wait_until(lambda: len(fake.sockets) == 2)  # both are back
    await wait_until(lambda: a.daemon_instance == fake.instance)
    await front.do(a.send, b.local_address, b"after", timeout=20)
    assert (await recv).payload == b"after"
    assert (a.local_address, b.local_address) == before


async def test_restart_makes_undecided_unknown(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake, outcomes=True)
    fake.no_outcome = True
    tags = [await front.do(a.send, b.local_address, b"x") for _ in range(3)]
    await asyncio.to_thread(fake.restart)
    outcomes = a.outcomes(timeout=20)
    got = [await front.next(outcomes) for _ in tags]
    assert got == [(tag, rdsd.OutcomeKind.UNKNOWN, "daemon restarted") for tag in tags]


async def test_callers_of_a_dead_daemon_time_out(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    await asyncio.to_thread(fake.stop)
    await wait_until(lambda: not a.connected)
    where = b.local_address
    calls: list[Call] = [
        lambda: front.do(a.send, where, b"x", timeout=0.1),
        lambda: front.do(a.recv, timeout=0.1),
        lambda: front.do(a.flush, timeout=0.1),
        lambda: front.do(a.request, where, b"x", 0.1),
        lambda: front.do(a.peek_size, timeout=0.1),
    ]
    for call in calls:
        with pytest.raises(rdsd.TimedOut):
            await asyncio.wait_for(call(), 5)
    with pytest.raises(rdsd.DaemonUnavailable):
        await front.do(a.try_send, where, b"x")


async def test_a_send_waits_for_the_return(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    await asyncio.to_thread(fake.stop)
    await wait_until(lambda: not a.connected and not b.connected)
    send = asyncio.create_task(front.do(a.send, b.local_address, b"patience", timeout=20))
    await asyncio.to_thread(fake.start)
    await asyncio.wait_for(send, 20)


async def test_a_daemon_that_comes_back_mute_is_tried_again(
    front: Front, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await pair(front, fake)
    monkeypatch.setattr("rdsd._core.BIND_ANSWER", 0.1)
    fake.silent.add("bind")
    await asyncio.to_thread(fake.restart)
    await asyncio.to_thread(fake.wait_received, "bind", 6)  # two at first, two tries of each
    fake.silent.clear()
    await wait_until(lambda: len(fake.sockets) == 2)
    await front.do(a.send, b.local_address, b"x", timeout=20)


async def test_a_flush_over_a_restart_says_so(front: Front, fake: FakeDaemon) -> None:
    a, _ = await pair(front, fake)
    fake.silent.add("flush")
    flush = asyncio.create_task(front.do(a.flush))
    await asyncio.to_thread(fake.wait_received, "flush")
    await asyncio.to_thread(fake.restart)
    with pytest.raises(rdsd.DaemonUnavailable, match="daemon restarted"):
        await asyncio.wait_for(flush, 20)


async def test_a_watcher_hears_of_the_return(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    fake.congested.add(b.local_address.port)
    with pytest.raises(rdsd.Congested):
        await front.do(a.try_send, b.local_address, b"x")
    watch = a.watch_congestion(timeout=20)
    await asyncio.to_thread(fake.restart)
    event = await front.next(watch)
    assert event.freed == (1 << 64) - 1
    assert event.changes == (rdsd.CongestionChange(b.local_address, False),)


async def test_closed_by_an_administrator_stays_closed(front: Front, fake: FakeDaemon) -> None:
    a, _ = await pair(front, fake)
    recv = asyncio.create_task(front.do(a.recv))
    await wait_until(lambda: len(fake.sockets) == 2)
    fake.close_all(104, "closed by an administrator")
    with pytest.raises(rdsd.ConnectionReset, match="administrator"):
        await asyncio.wait_for(recv, 5)
    assert a.closed
    with pytest.raises(rdsd.ConnectionReset):
        await front.do(a.send, (HOST, 1), b"x")


async def test_a_daemon_that_talks_nonsense(front: Front, fake: FakeDaemon) -> None:
    a, _ = await pair(front, fake)
    fake.send_raw(pb.ServerMessage(recv=pb.RecvBatch(payload=b"abc", length=[1])))
    with pytest.raises(rdsd.ProtocolError):
        await front.do(a.recv, timeout=5)


async def test_without_reconnect_every_call_ends(front: Front, fake: FakeDaemon) -> None:
    a, _ = await pair(front, fake, reconnect=False)
    recv = asyncio.create_task(front.do(a.recv))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(fake.stop)
    with pytest.raises(rdsd.DaemonUnavailable):
        await asyncio.wait_for(recv, 10)


# -- the end ---------------------------------------------------------------


async def test_close_wakes_whoever_waits(front: Front, fake: FakeDaemon) -> None:
    a, b = await pair(front, fake)
    fake.silent.add("send")
    waiting = [
        asyncio.create_task(front.do(a.recv)),
        asyncio.create_task(front.do(a.send, b.local_address, b"x")),
    ]
    await asyncio.to_thread(fake.wait_received, "send")
    await front.do(a.close)
    await front.do(a.close)
    for task in waiting:
        with pytest.raises(rdsd.RdsError):
            await asyncio.wait_for(task, 5)
    with pytest.raises(rdsd.Closed):
        await front.do(a.send, b.local_address, b"x")
    await wait_until(lambda: len(fake.sockets) == 1)


async def test_a_closed_client_says_so(front: Front, fake: FakeDaemon) -> None:
    client = front.client(fake.target)
    sock = await front.do(client.bind, (HOST, 0))
    await front.do(client.close)
    assert sock.closed
    with pytest.raises(rdsd.Closed):
        await front.do(client.bind, (HOST, 0))


async def wait_until(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


async def test_a_close_beside_a_daemon_that_hangs(
    front: Front, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("_sync_stream", "_aio_stream"):
        monkeypatch.setattr(f"rdsd.{module}._CLOSE_WAIT", 1.0)
    client = front.client(fake.target)
    a, b, c = [await front.do(client.bind, (HOST, 0)) for _ in range(3)]
    tasks = [asyncio.create_task(front.do(a.request, b.local_address, b"?", 60)) for _ in range(3)]
    await asyncio.to_thread(fake.wait_received, "send", 3)  # each from a port of its own
    tasks.append(asyncio.create_task(front.do(a.recv)))
    await asyncio.sleep(0.1)
    fake.ends_nothing = True
    begun = time.monotonic()
    closing = asyncio.create_task(front.do(client.close))
    for task in tasks:
        with pytest.raises(rdsd.Closed):
            await asyncio.wait_for(task, 20)
        assert time.monotonic() - begun < 1.5, "it hears after the daemon was waited for"
    await closing
    assert time.monotonic() - begun < 3.2, "one after the other is waited for"
    assert c.closed


async def test_a_client_closed_beside_a_bind(
    front: Front, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, answer, bind = threading.Event(), threading.Event(), fake._on_bind

    def hold_back(*args: Any) -> None:
        came.set()
        answer.wait(60)
        bind(*args)

    monkeypatch.setattr(fake, "_on_bind", hold_back)
    client = front.client(fake.target)
    binding = asyncio.create_task(front.do(client.bind, (HOST, 0), timeout=60))
    await asyncio.to_thread(came.wait, 60)
    closing = asyncio.create_task(front.do(client.close))
    while not client._closed:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    answer.set()
    with pytest.raises(rdsd.Closed, match="the client is closed"):
        await binding
    await closing
    fake.wait_taken_back(0, timeout=60)


async def test_a_client_closed_beside_a_bind_that_is_not_answered(
    local_front: Front, daemons: tuple[Daemon, Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over rings the bind went on until its time was over."""
    for module in ("_sync", "aio"):
        monkeypatch.setattr(f"rdsd.{module}.BIND_TIMEOUT", 60.0)
    front, near = local_front, daemons[0]
    client = front.client(near.target)
    sock = await front.do(client.bind, (near.address, 0))
    near.freeze()
    try:
        binding = asyncio.create_task(front.do(client.bind, (near.address, 0), timeout=None))
        # A request binds a port for its reply.
        asking = asyncio.create_task(front.do(sock.request, sock.local_address, b"?", timeout=None))
        await asyncio.sleep(0.3)  # they wait by then
        await front.do(client.close)
        with pytest.raises(rdsd.Closed, match="the client is closed"):
            await asyncio.wait_for(binding, 20)
        with pytest.raises(rdsd.Closed):
            await asyncio.wait_for(asking, 20)
    finally:
        near.thaw()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_close_after_the_loop_has_ended(
    daemons: tuple[Daemon, Daemon], front_end: rdsd.FrontEnd
) -> None:
    """Over a stream it raised "Event loop is closed", and again each time."""
    require(front_end, daemons[0])

    async def leave() -> tuple[rdsd.aio.Client, rdsd.aio.Socket]:
        client = rdsd.aio.Client(daemons[0].target, front_end=front_end)
        sock = await client.bind((daemons[0].address, 0))
        answer = asyncio.create_task(sock.request(sock.local_address, b"?", 10))
        await sock.reply(await sock.recv(timeout=10), b"!", timeout=10)
        assert (await answer).payload == b"!"  # which leaves it a port
        return client, sock

    async def close(what: rdsd.aio.Client | rdsd.aio.Socket) -> None:
        await what.close()

    client, sock = asyncio.run(leave())
    for _ in range(2):
        asyncio.run(close(sock))
        asyncio.run(close(client))
    assert sock.closed


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_one_loop_after_the_other(daemons: tuple[Daemon, Daemon], front_end: rdsd.FrontEnd) -> None:
    """As where each test has a loop of its own: the second one raised "Event loop is closed"."""
    require(front_end, daemons[0])
    client = rdsd.aio.Client(daemons[0].target, front_end=front_end)

    async def use() -> None:
        assert (await client.admin.status(timeout=10)).version
        async with await client.bind((daemons[0].address, 0)) as sock:
            await sock.send(sock.local_address, b"here", timeout=10)
            assert (await sock.recv(timeout=10)).payload == b"here"

    async def use_from_another() -> None:
        await use()
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(use()))
        await use()
        await client.close()

    asyncio.run(use())
    asyncio.run(use_from_another())


async def test_a_size_that_is_no_whole_number_spends_no_slot(
    local_front: Front, daemons: tuple[Daemon, Daemon]
) -> None:
    """The slot was committed by it, to nothing."""
    client = local_front.client(daemons[0].target)
    sock = await local_front.do(client.bind, (daemons[0].address, 0))
    slot = await local_front.do(sock.reserve, sock.local_address, 4, timeout=10)
    for size in (1.5, "4"):
        with pytest.raises(TypeError):
            await local_front.do(slot.commit, size)
    slot.data[:] = b"goes"
    await local_front.do(slot.commit)
    assert (await local_front.do(sock.recv, timeout=10)).payload == b"goes"


@pytest.mark.parametrize("front_end", FRONT_ENDS)
async def test_another_loop_is_refused(daemons: Any, front_end: rdsd.FrontEnd) -> None:
    """Nothing would wake it: a call there would end with its time, or never."""
    require(front_end, daemons[0])
    async with rdsd.aio.Client(daemons[0].target, front_end=front_end) as client:
        sock = await client.bind((daemons[0].address, 0))
        calls: list[Callable[[], Any]] = [sock.recv, sock.__aiter__().__anext__]
        if front_end != "rings":  # where these need not wait
            calls += [
                lambda: sock.send(sock.local_address, b""),
                lambda: sock.send_batch([(sock.local_address, b"")]),
                lambda: sock.cancel_sent_to(sock.local_address),
                sock.flush,
                lambda: sock.congested(sock.local_address),
            ]
        for call in calls:

            def elsewhere(call: Callable[[], Any] = call) -> None:
                asyncio.run(asyncio.wait_for(call(), 10))

            with pytest.raises(RuntimeError, match="loop"):
                await asyncio.to_thread(elsewhere)
        await sock.send(sock.local_address, b"here", timeout=10)
        assert (await sock.recv(timeout=10)).payload == b"here"
