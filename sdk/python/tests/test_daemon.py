"""Against real daemons: what scenarios cannot say, restarts above all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from conftest import FRONT_ENDS, Daemon, Front, require

import rdsd
import rdsd.aio
from rdsd import _ring
from rdsd.v1 import rdsd_pb2 as pb

Pair = tuple[Daemon, Daemon]


@pytest.fixture
def front(local_front: Front) -> Front:
    return local_front


@pytest.fixture
def restarted(daemons: Pair) -> Any:
    """The pair, both running again afterwards whatever the test did."""
    yield daemons
    for daemon in daemons:
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()


async def bind(front: Front, daemon: Daemon, **options: Any) -> Any:
    return await front.do(front.client(daemon.target).bind, (daemon.address, 0), **options)


async def test_a_killed_daemon_comes_back(front: Front, restarted: Pair) -> None:
    near, far = restarted
    a, b = await bind(front, near, outcomes=True), await bind(front, far)
    before = a.local_address
    await front.do(a.send, b.local_address, b"before", timeout=5)
    assert (await front.do(b.recv, timeout=5)).payload == b"before"
    stuck = await front.do(a.send, ("127.0.0.250", 7), b"stuck", timeout=5)
    near.kill()
    await until(lambda: not a.connected)
    send = asyncio.create_task(front.do(a.send, b.local_address, b"after", timeout=20))
    await asyncio.to_thread(near.start)
    await asyncio.wait_for(send, 25)
    assert await front.do(b.recv, timeout=20) == (before, b"after")
    outcomes = a.outcomes(timeout=10)
    seen: dict[int, rdsd.Outcome] = {}
    while stuck not in seen:
        outcome = await front.next(outcomes)
        assert outcome.tag not in seen
        seen[outcome.tag] = outcome
    assert seen[stuck][1:] == (rdsd.OutcomeKind.UNKNOWN, "daemon restarted")


async def test_a_receiver_survives_its_daemon(front: Front, restarted: Pair) -> None:
    near, far = restarted
    a, b = await bind(front, near), await bind(front, far)
    recv = asyncio.create_task(front.do(b.recv, timeout=30))
    before = b.daemon_instance
    await asyncio.to_thread(far.terminate)
    await asyncio.to_thread(far.start)
    await until(lambda: b.daemon_instance != before)
    await front.do(a.send, b.local_address, b"hello again", timeout=20)
    assert (await recv).payload == b"hello again"


@contextlib.contextmanager
def descriptors(more: int) -> Iterator[None]:
    """While this process may open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(more + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("front_end", ["rings", "seqpacket"])
@pytest.mark.parametrize("name", ["sync", "aio"])
async def test_too_many_open_files(name: str, front_end: rdsd.FrontEnd, restarted: Pair) -> None:
    near, far = restarted
    front = Front(name, front_end)
    require(front_end, near)
    a, b = await bind(front, near), await bind(front, far)
    client = front.client(near.target)
    start = await settled()
    for more in range(2 if front_end == "seqpacket" and name == "sync" else 1):
        with descriptors(more), pytest.raises(rdsd.TooMany):
            await front.do(client.bind, (near.address, 0))
        await until(lambda: len(os.listdir("/proc/self/fd")) <= start)
    with contextlib.ExitStack() as few:
        near.kill()
        few.enter_context(descriptors(0))
        await until(lambda: not a.connected)
        held = take_all()  # what the lost connection had, but for an attempt under way
        await asyncio.sleep(0.3)
        assert not a.closed
        for fd in held:
            os.close(fd)
    await asyncio.to_thread(near.start)
    await front.do(a.send, b.local_address, b"after", timeout=20)
    assert (await front.do(b.recv, timeout=20)).payload == b"after"
    await front.close()


async def settled() -> int:
    """How many descriptors are open, once what earlier tests have left is closed."""
    gc.collect()
    before, now = -1, len(os.listdir("/proc/self/fd"))
    while before != now:
        await asyncio.sleep(0.3)
        before, now = now, len(os.listdir("/proc/self/fd"))
    return now


def take_all() -> list[int]:
    """All descriptors that this process may still open."""
    got: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            got.append(os.dup(0))
    return got


async def test_a_dead_daemon_hangs_nobody(front: Front, restarted: Pair) -> None:
    near, far = restarted
    a, b = await bind(front, near), await bind(front, far)
    near.kill()
    for call in asking(front, a):
        start = time.monotonic()
        with pytest.raises((rdsd.TimedOut, rdsd.DaemonUnavailable)):
            await asyncio.wait_for(front.do(call, timeout=0.2), 5)
        assert time.monotonic() - start < 5
    with pytest.raises((rdsd.TimedOut, rdsd.DaemonUnavailable)):
        await asyncio.wait_for(front.do(a.send, b.local_address, b"x", timeout=0.2), 5)
    with pytest.raises(rdsd.DaemonUnavailable):
        await front.do(a.try_send, b.local_address, b"x")
    await asyncio.wait_for(front.do(a.close), 5)


@pytest_asyncio.fixture(params=["sync", "aio"])
async def rings_front(request: pytest.FixtureRequest, daemons: Pair) -> AsyncIterator[Front]:
    require("rings", daemons[0])
    front = Front(request.param, "rings")
    yield front
    await front.close()


async def test_a_request_over_rings_leaves_from_no_port_that_is_lost(
    rings_front: Front, restarted: Pair
) -> None:
    front, (near, far) = rings_front, restarted
    a, b = await bind(front, near), await bind(front, far)

    async def asked() -> None:
        request = asyncio.create_task(front.do(a.request, b.local_address, b"ping", 30))
        await front.do(b.reply, await front.do(b.recv, timeout=30), b"pong", timeout=30)
        assert (await asyncio.wait_for(request, 30)).payload == b"pong"

    await asked()
    (lost,) = [p.sock for p in a._requests._ports.ports]
    # Nobody looks after it, not even this event loop, until somebody else has its port.
    _ring._keeper.remove(getattr(lost, "_ring", lost))
    near.kill()
    near.start()
    with rdsd.Client(near.target) as client, client.bind(lost.local_address):
        await asked()
    assert lost.closed


async def test_a_frozen_daemon_hangs_nobody(front: Front, daemons: Pair) -> None:
    near, far = daemons
    a, b = await bind(front, near), await bind(front, far)
    near.freeze()
    try:
        start = time.monotonic()
        for call in asking(front, a):
            with pytest.raises(rdsd.TimedOut):
                await front.do(call, timeout=0.1)
        with pytest.raises(rdsd.TimedOut) as caught:
            await front.do(a.send, b.local_address, b"x", timeout=0.1)
        # Over rings a datagram is accepted by being posted, and this one was not: nobody has
        # looked at its destination yet.
        rings = front.front_end == "rings"
        assert caught.value.undecided is not rings
        with pytest.raises(rdsd.TimedOut):
            await front.do(front.client(near.target).bind, (near.address, 0), timeout=0.1)
        assert time.monotonic() - start < 5
        near.thaw()
        if rings:
            await front.do(a.send, b.local_address, b"x", timeout=20)
        assert (await front.do(b.recv, timeout=20)).payload == b"x", "it was accepted after all"
        near.freeze()
        start = time.monotonic()
        await front.do(a.close)
        assert time.monotonic() - start < 5
    finally:
        near.thaw()


async def test_bind_and_request_are_as_patient_as_the_caller(
    front: Front, daemons: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_core.BIND_ANSWER", "_sync.BIND_TIMEOUT", "aio.BIND_TIMEOUT"):
        monkeypatch.setattr(f"rdsd.{limit}", 0.1)
    monkeypatch.setattr("rdsd._requests.BIND_TIMEOUT", 0.1)
    near, far = daemons
    a, b = await bind(front, near), await bind(front, far)
    near.freeze()
    try:
        late = front.client(near.target)
        binds = asyncio.create_task(front.do(late.bind, (near.address, 0), timeout=20))
        asks = asyncio.create_task(front.do(a.request, b.local_address, b"?", None))
        closed = front.client(near.target)
        never = asyncio.create_task(front.do(closed.bind, (near.address, 0), timeout=None))
        await asyncio.sleep(0.6)
        assert not binds.done()
        await asyncio.wait_for(front.do(closed.close), 10)
        with pytest.raises(rdsd.Closed):
            await asyncio.wait_for(never, 10)
    finally:
        near.thaw()
    assert (await asyncio.wait_for(binds, 20)).connected
    await front.do(b.reply, await front.do(b.recv, timeout=20), b"!", timeout=20)
    assert (await asyncio.wait_for(asks, 20)).payload == b"!"


async def test_close_ends_requests_of_a_frozen_daemon(
    front: Front, daemons: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that waits for the daemon to bind its port, which stays nobody's."""
    monkeypatch.setattr("rdsd._requests.BIND_TIMEOUT", 120)
    near, far = daemons
    a, b = await bind(front, near), await bind(front, far)
    answered = asyncio.create_task(front.do(a.request, b.local_address, b"?", None))
    await front.do(b.recv, timeout=30)
    near.freeze()
    try:
        binds = asyncio.create_task(front.do(a.request, b.local_address, b"?", None))
        await until(lambda: a._requests._ports.binding is not None)
        await asyncio.wait_for(front.do(a.close), 30)
        for request in (answered, binds):
            with pytest.raises(rdsd.Closed):
                await asyncio.wait_for(request, 30)
    finally:
        near.thaw()
    with rdsd.Client(near.target) as client:
        await until(lambda: not any(s.pid == os.getpid() for s in client.admin.sockets()))


async def test_a_stream_of_batches_arrives_whole(front: Front, daemons: Pair) -> None:
    a, b = [await bind(front, d) for d in daemons]
    count, part = 20_000, 2000

    async def send() -> None:
        for start in range(0, count, part):
            batch = [(b.local_address, b"%d" % i) for i in range(start, start + part)]
            await front.do(a.send_batch, batch, timeout=30)

    sending = asyncio.create_task(send())
    got: list[bytes] = []
    while len(got) < count:
        got += [d.payload for d in await front.do(b.recv_batch, 1000, timeout=30)]
    await sending
    assert got == [b"%d" % i for i in range(count)]


async def step(front: Front, iteration: Any) -> Any:
    """One item of a new iteration, which is left at once."""

    def leave() -> Any:
        for item in iteration:
            return item

    if front.name == "sync":
        return await asyncio.to_thread(leave)
    async for item in iteration:
        return item


async def test_who_leaves_an_iteration_loses_nothing(front: Front, daemons: Pair) -> None:
    a, b = await bind(front, daemons[0], outcomes=True), await bind(front, daemons[0])
    count = 60
    sent = [b"%03d" % i for i in range(count)]
    tags = await front.do(a.send_batch, [(b.local_address, payload) for payload in sent])
    await front.do(a.flush, timeout=10)
    # One read ahead of all, kept while others read.
    kept = iter(b) if front.name == "sync" else aiter(b)
    got = [await front.next(kept)]
    got += [await step(front, b) for _ in range(9)]
    assert await front.do(b.peek_size, timeout=10) == 3
    got.append(await front.do(b.recv, timeout=10))
    room = bytearray(10)
    with pytest.raises(rdsd.TooLarge):
        await front.do(b.recv_into, bytearray(2), timeout=10)
    size, source = await front.do(b.recv_into, room, timeout=10)
    got.append(rdsd.Datagram(source, bytes(room[:size])))
    while len(got) < 20:
        got += await front.do(b.recv_batch, 20 - len(got), timeout=10)
    while len(got) < 30:
        with await front.do(b.borrow, 30 - len(got), timeout=10) as lease:
            got += [rdsd.Datagram(addr, bytes(view)) for addr, view in lease]
    got += [await front.next(kept) for _ in range(15)]
    got += [await step(front, b) for _ in range(15)]
    assert got == [(a.local_address, payload) for payload in sent]
    outcomes = [await step(front, a.outcomes(timeout=10)) for _ in tags]
    assert [outcome.tag for outcome in outcomes] == list(tags)


async def test_what_an_iteration_leaves_wakes_others(front: Front, daemons: Pair) -> None:
    a, b = [await bind(front, daemons[0]) for _ in range(2)]
    waiting = [asyncio.create_task(front.do(b.recv, timeout=20)) for _ in range(3)]
    waiting.append(asyncio.create_task(step(front, b)))
    await asyncio.sleep(0)
    await front.do(a.send_batch, [(b.local_address, b"%d" % i) for i in range(4)])
    got = await asyncio.gather(*waiting)
    assert sorted(payload for _, payload in got) == [b"%d" % i for i in range(4)]


async def test_an_answer_from_an_address_in_ipv6(front: Front, daemons: Pair) -> None:
    a, b = [await bind(front, daemon) for daemon in daemons]
    host, port = b.local_address
    for where in (f"[::ffff:{host}]:{port}", rdsd.Address(f"::ffff:{host}", port)):
        request = asyncio.create_task(front.do(a.request, where, b"ping", timeout=10))
        asked = await front.do(b.recv, timeout=10)
        await front.do(b.reply, asked, b"pong", timeout=10)
        assert await request == (b.local_address, b"pong")


@pytest.mark.parametrize("wrong", [("localhost", 4000), ("127.0.0.1", -1), ("127.0.0.1", "4000")])
async def test_what_is_no_address_is_refused_and_harms_nobody(
    front: Front, daemons: Pair, wrong: Any
) -> None:
    """rdsd.Address takes anything: a name, say. Its message cannot be laid out."""
    a, b = [await bind(front, daemon, outcomes=True) for daemon in daemons]
    client, bad = front.client(daemons[0].target), rdsd.Address(*wrong)
    await front.do(a.send, b.local_address, b"before", timeout=10)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: front.do(a.send, bad, b"x", timeout=10),
        lambda: front.do(a.try_send, bad, b"x"),
        lambda: front.do(a.send_batch, [(b.local_address, b"x"), (bad, b"x")], timeout=10),
        lambda: front.do(a.send_run, bad, [b"x"], timeout=10),
        lambda: front.do(a.reserve, bad, 1, timeout=10),
        lambda: front.do(a.request, bad, b"x", 10),
        lambda: front.do(a.cancel_sent_to, bad, timeout=10),
        lambda: front.do(a.congested, bad, timeout=10),
        lambda: front.do(client.bind, bad, timeout=10),
    ]
    for call in calls:
        with pytest.raises(rdsd.InvalidArgument, match=r"address|port"):
            await call()
    await front.do(a.send, b.local_address, b"after", timeout=10)
    assert [(await front.do(b.recv, timeout=10)).payload for _ in range(2)] == [b"before", b"after"]
    outcomes = a.outcomes(timeout=10)
    kinds = [(await front.next(outcomes)).kind for _ in range(2)]
    assert kinds == [rdsd.OutcomeKind.DELIVERED] * 2


async def test_a_timeout_of_zero_tries_once(front: Front, daemons: Pair) -> None:
    a, b = [await bind(front, daemons[0]) for _ in range(2)]
    where, nobody = b.local_address, ("127.0.0.250", 7)
    await front.do(a.send, where, b"0", timeout=0)  # to a destination that is looked at first
    await front.do(a.send_batch, [(where, b"1"), (where, b"2")], timeout=0)
    await front.do(a.send_run, where, [b"3", b"4"], timeout=0)
    slot = await front.do(a.reserve, where, 1, timeout=0)
    slot.data[:] = b"5"
    await front.do(slot.commit)
    got = [(await front.do(b.recv, timeout=10)).payload for _ in range(6)]
    assert got == [b"%d" % i for i in range(6)]
    await front.do(a.flush, timeout=10)
    for _ in range(20):
        await front.do(a.flush, timeout=0)
    assert not await front.do(a.congested, where, timeout=0)
    assert not await front.do(a.congested, (where.host, 9), timeout=0)
    assert await front.do(b.peek_size, timeout=0) is None
    assert await front.do(a.cancel_sent_to, where, timeout=0) == (0, 0)
    for first in ("reserve", "send_run", "send_batch"):  # each to one that nothing was sent to
        c, to = await bind(front, daemons[0]), b.local_address
        if first == "reserve":
            await front.do((await front.do(c.reserve, to, 1, timeout=0)).commit)
        elif first == "send_run":
            await front.do(c.send_run, to, b"x", 1, timeout=0)
        else:
            await front.do(c.send_batch, [(to, b"x")], timeout=0)
        await front.do(b.recv, timeout=10)
    await front.do(a.send, nobody, b"undecided", timeout=0)
    begun = time.monotonic()
    with pytest.raises(rdsd.TimedOut):
        await front.do(a.flush, timeout=0)
    assert time.monotonic() - begun < 4, "it waits for what is undecided"

    async def fill() -> None:
        for _ in range(1000):
            await front.do(a.send, nobody, bytes(60_000), timeout=0)

    with pytest.raises(rdsd.TimedOut):
        await fill()
    with pytest.raises(rdsd.BatchError) as caught:
        await front.do(a.send_batch, [(nobody, bytes(60_000))] * 1000, timeout=0)
    assert {type(error) for _, error in caught.value.errors} == {rdsd.TimedOut}


async def test_an_abstract_socket(front: Front, daemons: Pair, tmp_path: Path) -> None:
    near = daemons[0]
    host, command = near.address.rsplit(".", 1)[0] + ".4", list(near.command)
    name = f"rdsd-py-{os.getpid()}"
    command[command.index("--address") + 1] = host
    command[command.index("--socket") + 1] = f"@{name}"
    daemon = Daemon(f"@{name}", host, command, log=tmp_path / "log")
    await asyncio.to_thread(daemon.start)
    try:
        a = await bind(front, daemon)
        assert a.front_end == front.front_end
        await front.do(a.send, a.local_address, b"to itself", timeout=10)
        assert await front.do(a.recv, timeout=10) == (a.local_address, b"to itself")
    finally:
        await asyncio.to_thread(daemon.terminate)


async def test_a_closed_socket_is_gone_from_the_daemon(front: Front, daemons: Pair) -> None:
    client = front.client(daemons[0].target)
    sock = await front.do(client.bind, (daemons[0].address, 0), label="python test")
    ports = await listed(front, client)
    assert (sock.local_address.port, "python test") in ports
    await front.do(sock.close)
    await until_async(lambda: listed(front, client), lambda ports: not ports)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
async def test_a_cancelled_close_goes_on(front_end: rdsd.FrontEnd, daemons: Pair) -> None:
    near = daemons[0]
    require(front_end, near)
    async with rdsd.aio.Client(near.target, front_end=front_end) as client:
        a, b = [await client.bind((near.address, 0)) for _ in range(2)]
        asked = asyncio.create_task(a.request(b.local_address, b"?", 10))
        await b.reply(await b.recv(timeout=10), b"!", timeout=10)
        await asked  # its port is kept
        await cancelled_early(near, a.close)
        assert a.closed
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.bind(a.local_address)
                    break
                except rdsd.AddressInUse:
                    await asyncio.sleep(0.02)
        await a.close()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
async def test_a_cancelled_close_of_a_client_goes_on(
    front_end: rdsd.FrontEnd, daemons: Pair
) -> None:
    near = daemons[0]
    require(front_end, near)
    client = rdsd.aio.Client(near.target, front_end=front_end)
    socks = [await client.bind((near.address, 0)) for _ in range(3)]
    await cancelled_early(near, client.close)
    await client.close()
    assert all(sock.closed for sock in socks)


async def cancelled_early(daemon: Daemon, close: Callable[[], Awaitable[None]]) -> None:
    """Cancels a close that waits for a daemon, which then goes on."""
    daemon.freeze()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await close()
    finally:
        daemon.thaw()


async def test_closed_by_an_administrator(front: Front, daemons: Pair) -> None:
    client = front.client(daemons[0].target)
    sock, waiting = await bind(front, daemons[0]), await bind(front, daemons[0])
    recv = asyncio.create_task(front.do(waiting.recv))
    await front.do(waiting.send, sock.local_address, b"unread", timeout=20)
    await until_async(lambda: front.do(sock.peek_size), lambda size: size is not None)
    for of in (sock, waiting):
        await front.do(client.admin.close_socket, of.local_address)
        await until(lambda of=of: of.closed)
    got = iter(sock) if front.name == "sync" else aiter(sock)
    assert (await front.next(got)).payload == b"unread"
    for told in (front.next(got), recv):
        with pytest.raises(rdsd.ConnectionReset, match="closed by an administrator"):
            await asyncio.wait_for(told, 20)


async def test_exact_errno_of_an_admin_call(front: Front, daemons: Pair) -> None:
    client = front.client(daemons[0].target)
    nobody, nowhere = (daemons[0].address, 9), ("192.0.2.1", 9)
    for local, error in ((nobody, rdsd.NotFound), (nowhere, rdsd.AddressNotAvailable)):
        with pytest.raises(error):
            await front.do(client.admin.close_socket, local)
        # The raw service says the same.
        end = pb.Endpoint(address=ipaddress.ip_address(local[0]).packed, port=local[1])
        with pytest.raises(grpc.RpcError) as caught:
            await front.do(client.admin_service.CloseSocket, pb.CloseSocketRequest(local=end))
        assert isinstance(rdsd.from_grpc(caught.value), error)


async def test_bad_binds(front: Front, daemons: Pair) -> None:
    client = front.client(daemons[0].target)
    with pytest.raises(rdsd.AddressNotAvailable):
        await front.do(client.bind, ("192.0.2.1", 0))
    sock = await front.do(client.bind, (daemons[0].address, 0))
    with pytest.raises(rdsd.AddressInUse):
        await front.do(client.bind, sock.local_address)


def asking(front: Front, sock: Any) -> list[Any]:
    """Calls that wait for the daemon. Over rings a peek looks for itself."""
    return [sock.recv, sock.flush, *([] if front.front_end == "rings" else [sock.peek_size])]


async def listed(front: Front, client: Any) -> list[tuple[int, str]]:
    sockets = await front.do(client.admin.sockets)
    return [(s.local.port, s.label) for s in sockets if s.label == "python test"]


async def until(condition: Any) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)


async def until_async(ask: Any, good: Any) -> None:
    limit = time.monotonic() + 10
    while not good(await ask()):
        assert time.monotonic() < limit
        await asyncio.sleep(0.01)
