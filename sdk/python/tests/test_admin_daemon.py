"""Administration of real daemons: a reader that does not read, a sender that goes on, and what
an administrator of either daemon sees of it and does about it."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from conftest import Daemon
from services import Calls

import rdsd

Pair = tuple[Daemon, Daemon]
Admins = tuple[Calls, Calls]


@pytest_asyncio.fixture(params=["sync", "aio"])
async def admins(request: pytest.FixtureRequest, daemons: Pair) -> AsyncIterator[Admins]:
    near, far = (Calls(request.param, d.target, "admin") for d in daemons)
    yield near, far
    for calls in (near, far):
        await calls.do(calls.client.close)


class Congested:
    """A port of the far node that nobody reads, and who has filled it."""

    def __init__(self, reader: rdsd.Socket, sender: rdsd.Socket) -> None:
        self.reader, self.sender = reader, sender


@pytest_asyncio.fixture
async def congested(daemons: Pair) -> AsyncIterator[Congested]:
    near, far = daemons
    with rdsd.Client(near.target) as here, rdsd.Client(far.target) as there:
        reader = there.bind((far.address, 0), recv_buffer=4096, recv_window=(1, 1), label="sleeper")
        sender = here.bind((near.address, 0))
        yield Congested(reader, sender)


def fill(c: Congested) -> None:
    """Sends until the port is congested."""
    until = time.monotonic() + 20
    while True:
        try:
            c.sender.try_send(c.reader.local_address, bytes(1024))
        except rdsd.Congested:
            return
        except rdsd.WouldBlock:
            pass
        assert time.monotonic() < until, "the port does not become congested"


def read_on(sock: rdsd.Socket) -> None:
    while True:
        sock.recv(timeout=10)


async def eventually(ask: Callable[[], Awaitable[Any]], good: Callable[[Any], bool]) -> Any:
    until = time.monotonic() + 20
    while not good(value := await ask()):
        assert time.monotonic() < until, value
    return value


async def test_a_daemon_as_a_whole(admins: Admins, daemons: Pair) -> None:
    near, far = daemons
    admin = admins[0]
    s = await admin("status")
    assert (s.state, s.local_addresses, s.http_address) == ("serving", (near.address,), "")
    assert s.version
    assert s.uptime > 0
    assert {b.name for b in s.budgets} >= {"memory", "peers", "sockets"}
    assert s.severity in set(rdsd.ProblemSeverity)
    assert s.healthy == (s.severity in ("ok", "note"))
    pong = await admin("ping", far.address)
    assert pong.local == near.address
    assert 0 < pong.rtt < 10
    with pytest.raises(rdsd.InvalidArgument):
        await admin("ping", "")
    assert near.address in tomllib.loads(await admin("config"))["rds"]["addresses"]
    counters = await admin("counters")
    assert counters[0].name == "conn_reset"
    assert counters[0].help
    assert await admin("counters", far.address)
    with pytest.raises(rdsd.NotFound):
        await admin("counters", "127.9.9.9")
    log = await admin("errors")
    assert all(e.count > 0 and e.first <= e.last for e in log.errors)


async def test_a_congested_port(admins: Admins, congested: Congested) -> None:
    near, far = admins
    to, source = congested.reader.local_address, congested.sender.local_address
    async with AsyncExitStack() as stack:
        before = stack.enter_context(await far("watch_congestion"))
        fill(congested)
        current = stack.enter_context(await far("watch_congestion", current=True))
        for watch in (before, current):
            notice = await far.next(watch)
            while (notice.endpoint, notice.congested) != (to, True):
                notice = await far.next(watch)
            assert notice.local

    (port,) = [p for p in await far("congestion") if p.endpoint == to]
    assert (port.local, port.reader_pid, port.reader_uid) == (True, os.getpid(), os.getuid())
    assert [c.source for c in port.culprits] == [source]
    assert port.queued_bytes >= port.culprits[0].queued_bytes > 0
    (seen,) = [p for p in await near("congestion") if p.endpoint == to]
    assert not seen.local
    assert seen.blocked > 0
    with pytest.raises(rdsd.TimedOut):  # in the main thread: several waits of the library, one send
        congested.sender.send(to, b"late", timeout=0.9)
    (later,) = [p for p in await near("congestion") if p.endpoint == to]
    assert later.blocked == seen.blocked + 1

    (sock,) = [s for s in await far("sockets") if s.local == to]
    assert (sock.label, sock.congested, sock.pid) == ("sleeper", True, os.getpid())
    assert sock.recv_queued > 0
    assert sock.program
    queue = await far("queue", "recv", 1)
    assert (len(queue.datagrams), queue.truncated) == (1, True)
    assert (queue.datagrams[0].queue, queue.datagrams[0].remote) == ("recv", source)

    maps = await near("congestion_maps", to.host)
    assert [(m.node, m.local, m.seen_from) for m in maps.maps] == [(to.host, False, source.host)]
    assert to.port in maps.maps[0].ports
    (own,) = [m for m in (await far("congestion_maps")).maps if m.local]
    assert to.port in own.ports

    hour = await eventually(
        lambda: far("congestion_history", to),
        lambda h: bool(h.ports and h.ports[0].congested and h.ports[0].reader_pid),
    )
    (history,) = hour.ports
    assert (history.endpoint, history.local, history.times) == (to, True, 1)
    assert [c.source for c in history.culprits] == [source]
    assert 0 < history.congested_for <= hour.kept + 1
    assert 0 < sum(s.congested_for for s in history.slots) <= hour.kept + 1

    (peer,) = await near("peers", remote=to.host)
    assert (peer.kind, peer.state, peer.congested_ports) == ("rdsd", "up", 1)
    assert 0 < len(peer.lanes) <= peer.lane_count
    assert peer.lanes[0].state is rdsd.LaneState.UP
    assert await near("peers", local=to.host) == ()


async def test_what_an_administrator_does(admins: Admins, congested: Congested) -> None:
    near, far = admins
    to, source = congested.reader.local_address, congested.sender.local_address
    fill(congested)
    assert await near("drop_lanes", to.host) > 0
    assert (await near("cancel_sent", source, to)).in_flight >= 0
    assert await far("close_socket", to) is None
    with pytest.raises(rdsd.RdsError) as caught:
        read_on(congested.reader)
    assert not isinstance(caught.value, rdsd.TimedOut)
    assert to not in [s.local for s in await far("sockets")]
    for call in (
        near("drop_lanes", "127.9.9.9", lane=0),
        near("cancel_sent", (source.host, 9), to),
        far("close_socket", (to.host, 9)),
    ):
        with pytest.raises(rdsd.NotFound):
            await call


async def test_a_trace(admins: Admins, congested: Congested) -> None:
    near, far = admins
    to, source = congested.reader.local_address, congested.sender.local_address
    sent, came = await near("trace", source, to), await far("trace", destination=f":{to.port}")
    with sent, came:
        clocks = [(await c.next(w)).clock for c, w in ((near, sent), (far, came))]
        assert clocks[0] == clocks[1], "both run on this machine"
        congested.sender.send(to, b"traced", timeout=10)
        assert congested.reader.recv(timeout=10).payload == b"traced"
        events: dict[str, rdsd.TraceEvent] = {}
        for calls, watch, last in ((near, sent, "done"), (far, came, "read")):
            while last not in events:
                events |= {e.stage: e for e in (await calls.next(watch)).events}
    assert set(events) == {"left", "done", "placed", "read"}
    name = {(e.source, e.destination, e.incarnation, e.lane, e.seq) for e in events.values()}
    assert len(name) == 1
    left, placed = events["left"], events["placed"]
    assert left.posted_ns <= left.accepted_ns <= left.time_ns <= placed.received_ns
    assert placed.received_ns <= placed.time_ns <= events["read"].time_ns
    assert events["done"].outcome is rdsd.OutcomeKind.DELIVERED
