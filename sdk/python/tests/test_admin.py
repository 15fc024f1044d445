"""Administration against a scripted service, over both fronts: what is sent, what comes back,
how it fails. With real daemons: test_admin_daemon.py."""

from __future__ import annotations

import asyncio
import errno
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from services import Calls, abort, empty, fill

import rdsd
import rdsd.aio
from rdsd import _admin_codec as codec
from rdsd import _admin_types as types
from rdsd._words import word
from rdsd.v1 import rdsd_pb2 as pb
from rdsd.v1 import rdsd_pb2_grpc as rpc
from rdsd.v1 import volume_pb2 as volume_pb

METHODS = set(pb.DESCRIPTOR.services_by_name["Admin"].methods_by_name)


class FakeAdmin:
    """Answers each call with what the test put there and keeps the request."""

    def __init__(self) -> None:
        self.request: Any = None
        self.asked = ""
        self.asked_ever: set[str] = set()
        self.answer: Any = None
        self.error: tuple[int, str] | None = None
        self.reports: list[Any] = []
        self.hold = threading.Event()  # set: a watch ends after the reports
        self.slow: threading.Event | None = None  # until it is set a call has no answer

    def take(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.asked, self.request = method, request
        self.asked_ever.add(method)
        if self.error is not None:
            abort(context, *self.error)
        if self.slow is not None:
            self.slow.wait(10)
        return self.answer

    def watch(
        self, method: str, request: Any, context: grpc.ServicerContext
    ) -> Iterator[pb.CongestionNotice | pb.TraceReport]:
        self.take(method, request, context)
        ended = threading.Event()
        context.add_callback(ended.set)
        context.send_initial_metadata(())
        yield from self.reports
        while not self.hold.is_set() and not ended.wait(0.01):
            pass


def _method(name: str) -> Callable[..., Any]:
    if name in ("WatchCongestion", "Trace"):
        return lambda self, request, context: self.watch(name, request, context)
    return lambda self, request, context: self.take(name, request, context)


for _name in METHODS:
    setattr(FakeAdmin, _name, _method(_name))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAdmin]:
    service = FakeAdmin()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    rpc.add_AdminServicer_to_server(cast(Any, service), server)
    server.add_insecure_port(f"unix://{tmp_path}/s")
    server.start()
    yield service
    service.hold.set()
    server.stop(0).wait(5)


@pytest_asyncio.fixture(params=["sync", "aio"])
async def admin(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Calls]:
    calls = Calls(request.param, f"unix://{tmp_path}/s", "admin")
    yield calls
    await calls.do(calls.client.close)


HERE, THERE = b"\x0a\0\0\1", b"\x0a\0\0\2"
END = pb.Endpoint(address=HERE, port=5)
FAR = pb.Endpoint(address=THERE, port=6)

#: Python's method, its arguments, the call of the API with its request, an answer, the value.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Message, Message, Any]] = [
    (
        "queue",
        ("retrans", 7),
        {},
        "ListQueue",
        pb.ListQueueRequest(kind=pb.QUEUE_KIND_RETRANS, limit=7),
        pb.ListQueueResponse(truncated=True),
        ((), True),
    ),
    ("queue", (), {}, "ListQueue", pb.ListQueueRequest(), pb.ListQueueResponse(), ((), False)),
    (
        "peers",
        (),
        {"local": "10.0.0.1", "remote": "fd00::2"},
        "ListPeers",
        pb.ListPeersRequest(local=HERE, remote=b"\xfd" + bytes(14) + b"\2"),
        pb.ListPeersResponse(),
        (),
    ),
    ("peers", (), {}, "ListPeers", pb.ListPeersRequest(), pb.ListPeersResponse(), ()),
    ("sockets", (), {}, "ListSockets", pb.ListSocketsRequest(), pb.ListSocketsResponse(), ()),
    (
        "counters",
        ("10.0.0.2",),
        {},
        "GetCounters",
        pb.GetCountersRequest(remote=THERE),
        pb.GetCountersResponse(counter=[pb.Counter(name="n", value=3, help="h")]),
        (rdsd.Counter("n", 3, "h"),),
    ),
    (
        "congestion",
        (),
        {},
        "ListCongestion",
        pb.ListCongestionRequest(),
        pb.ListCongestionResponse(left_out=3),
        (),
    ),
    (
        "congestion_maps",
        ("10.0.0.2",),
        {},
        "ListCongestionMaps",
        pb.ListCongestionMapsRequest(remote=THERE),
        pb.ListCongestionMapsResponse(left_out=3),
        rdsd.CongestionMaps((), 3),
    ),
    (
        "errors",
        (),
        {},
        "ListErrors",
        pb.ListErrorsRequest(),
        pb.ListErrorsResponse(forgotten=4),
        rdsd.ErrorLog((), 4),
    ),
    ("config", (), {}, "GetConfig", pb.GetConfigRequest(), pb.GetConfigResponse(toml="x"), "x"),
    (
        "ping",
        ("10.0.0.2",),
        {"local": "10.0.0.1", "within": 0.5},
        "Ping",
        pb.PingRequest(local=HERE, remote=THERE, timeout_ns=500_000_000),
        pb.PingResponse(local=HERE, rtt_ns=1_500_000),
        ("10.0.0.1", 0.0015),
    ),
    (
        "drop_lanes",
        ("10.0.0.2",),
        {},
        "DropPath",
        pb.DropPathRequest(remote=THERE, all_lanes=True),
        pb.DropPathResponse(dropped=8),
        8,
    ),
    (
        "drop_lanes",
        ("10.0.0.2",),
        {"local": "10.0.0.1", "lane": 0},
        "DropPath",
        pb.DropPathRequest(local=HERE, remote=THERE, lane=0),
        pb.DropPathResponse(dropped=1),
        1,
    ),
    (
        "cancel_sent",
        ("10.0.0.1:5", ("10.0.0.2", 6)),
        {},
        "CancelSent",
        pb.CancelSentRequest(local=END, destination=FAR),
        pb.CancelSentResponse(cancelled=2, in_flight=1),
        (2, 1),
    ),
    (
        "close_socket",
        ("10.0.0.1:5",),
        {},
        "CloseSocket",
        pb.CloseSocketRequest(local=END),
        pb.CloseSocketResponse(),
        None,
    ),
]


@pytest.mark.parametrize(
    ("method", "args", "options", "asked", "request_", "answer", "value"), CALLS
)
async def test_a_call(
    admin: Calls,
    fake: FakeAdmin,
    method: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    asked: str,
    request_: Message,
    answer: Message,
    value: object,
) -> None:
    fake.answer = answer
    assert await admin(method, *args, **options) == value
    assert (fake.asked, fake.request) == (asked, request_)


async def test_a_status(admin: Calls, fake: FakeAdmin) -> None:
    problem = pb.Problem(code="peer-down", severity=pb.PROBLEM_SEVERITY_WARNING, since_ns=10**9)
    fake.answer = pb.Status(
        version="1",
        local_address=[HERE],
        uptime_ns=2_500_000_000,
        severity=pb.PROBLEM_SEVERITY_WARNING,
        problem=[problem],
    )
    fake.answer.severity = pb.PROBLEM_SEVERITY_WARNING
    s = await admin("status")
    assert (s.version, s.local_addresses, s.uptime, s.healthy) == ("1", ("10.0.0.1",), 2.5, False)
    assert s.severity is rdsd.ProblemSeverity.WARNING
    assert s.problems == (rdsd.Problem("peer-down", types.ProblemSeverity.WARNING, "", "", "", 1),)


async def test_the_last_hour(admin: Calls, fake: FakeAdmin) -> None:
    port = pb.PortHistory(endpoint=END, congested_ns=3 * 10**9, slot=[4, 9], slot_ms=[500, 2500])
    fake.answer = pb.CongestionHistory(
        slot_ns=10 * 10**9,
        slots=360,
        port=[port],
        others=pb.PortHistory(congested_ports=2, congested_ns=10**9),
    )
    h = await admin("congestion_history", "10.0.0.1:5")
    assert fake.request == pb.GetCongestionHistoryRequest(endpoint=END)
    assert (h.slot, h.slots, h.ports[0].endpoint) == (10, 360, ("10.0.0.1", 5))
    assert h.ports[0].slots == (rdsd.PortSlot(4, 0.5), rdsd.PortSlot(9, 2.5))
    assert (h.others.endpoint, h.others.congested_ports) == (("", 0), 2)
    assert (h.others.congested_for, h.end.timestamp()) == (1, 0)
    await admin("congestion_history")
    assert fake.request == pb.GetCongestionHistoryRequest()


def test_ports_that_are_left_out() -> None:
    ports = codec.congestion(pb.ListCongestionResponse(left_out=3, port=[pb.CongestedPort()]))
    assert isinstance(ports, rdsd.CongestedPorts)
    assert (len(ports), ports.left_out) == (1, 3)


def test_the_ports_of_a_map() -> None:
    m = pb.CongestionMap(address=THERE, first_port=4000, bitmap=b"\x01\x00\x82")
    assert codec.congestion_map(m).ports == (4000, 4017, 4023)
    m = pb.CongestionMap(address=THERE, first_port=65528, bitmap=b"\x80\xff")
    assert codec.congestion_map(m).ports == (65535,), "there is no port 65536"
    assert codec.congestion_map(pb.CongestionMap(bitmap=b"\xff" * 8192)).ports == tuple(
        range(65536)
    )


def lane(state: Any, error: str = "") -> pb.Path:
    return pb.Path(state=state, last_error=error)


def test_a_peer_is_in_the_best_state_of_its_lanes() -> None:
    up, down, failed = pb.PATH_STATE_UP, pb.PATH_STATE_DOWN, pb.PATH_STATE_ERROR
    p = codec.peer(pb.Peer(lanes=8, path=[lane(down), lane(up, "one"), lane(failed, "two")]))
    assert (p.state, p.last_error, p.lane_count, len(p.lanes)) == ("up", "one", 8, 3)
    assert codec.peer(pb.Peer(path=[lane(down), lane(failed)])).state == "error"
    assert codec.peer(pb.Peer()).state == "unknown"
    far = volume_pb.VolumePath
    volumes = [
        far(state=volume_pb.VOLUME_PATH_STATE_DISCONNECTED, last_error="gone"),
        far(state=volume_pb.VOLUME_PATH_STATE_RECONNECTING),
    ]
    p = codec.peer(pb.Peer(volume_path=volumes))
    assert (p.state, p.last_error, p.lanes) == ("connecting", "gone", ())
    assert codec.peer(pb.Peer(path=[lane(down)], volume_path=volumes)).state == "down"


@pytest.mark.parametrize(
    ("kind", "decode"),
    [
        (pb.Status, codec.status),
        (pb.ListPeersResponse, codec.peers),
        (pb.ListSocketsResponse, codec.sockets),
        (pb.ListQueueResponse, codec.queue),
        (pb.GetCountersResponse, codec.counters),
        (pb.ListCongestionResponse, codec.congestion),
        (pb.CongestionHistory, codec.history),
        (pb.ListCongestionMapsResponse, codec.congestion_maps),
        (pb.CongestionNotice, codec.notice),
        (pb.ListErrorsResponse, codec.errors),
        (pb.PingResponse, codec.pong),
        (pb.TraceReport, codec.trace),
    ],
)
def test_every_field_of_an_answer_arrives(kind: type[Message], decode: Callable[..., Any]) -> None:
    message = kind()
    fill(message)
    assert list(empty(decode(message), kind.__name__)) == []


def test_the_words_are_those_of_the_api() -> None:
    for words, enum in (
        (types.ProblemSeverity, pb.ProblemSeverity),
        (types.PeerKind, pb.PeerKind),
        (types.LaneState, pb.PathState),
        (types.QueueKind, pb.QueueKind),
        (types.TraceStage, pb.TraceStage),
    ):
        names = [name for name, _ in sorted(enum.items(), key=lambda item: item[1])]
        for name, w in zip(names[1:], list(words)[1:], strict=True):
            assert name.endswith("_" + w.name), words
            assert w.value == w.name.lower().replace("_", "-")
        assert word(words, 99) is next(iter(words))
    for kind, outcome in ((0, None), (1, rdsd.OutcomeKind.DELIVERED), (99, rdsd.OutcomeKind(4))):
        event = pb.TraceEvent(outcome=kind)  # type: ignore[arg-type]
        assert codec.trace_event(event).outcome is outcome


async def test_every_call_of_the_api_has_a_method(admin: Calls, fake: FakeAdmin) -> None:
    fake.error = (errno.ENOENT, "")
    filled = {"remote": "10.0.0.2", "local": "10.0.0.1:5", "destination": "10.0.0.2:6"}
    asked = set()
    for name, method in inspect.getmembers(admin.client.admin, inspect.ismethod):
        if name.startswith("_"):
            continue
        needs = [
            filled[p.name]
            for p in inspect.signature(method).parameters.values()
            if p.default is p.empty
        ]
        try:
            watch = await admin(name, *needs)
            await admin.next(watch)
        except rdsd.NotFound:
            asked.add(fake.asked)
    assert asked == METHODS


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, rdsd.NotFound),
        (errno.EPERM, rdsd.Owned),
        (errno.EACCES, rdsd.PermissionDenied),
        (errno.ETIMEDOUT, rdsd.TimedOut),
        (errno.EUSERS, rdsd.RateLimited),
    ],
)
async def test_the_daemons_errors(
    admin: Calls, fake: FakeAdmin, number: int, kind: type[rdsd.RdsError]
) -> None:
    fake.error = (number, "the reason")
    with pytest.raises(kind, match="the reason") as caught:
        await admin("close_socket", "10.0.0.1:5")
    assert caught.value.errno == number
    watch = await admin("trace")
    with pytest.raises(kind, match="the reason"):
        await admin.next(watch)


@pytest.mark.parametrize(
    ("method", "args", "options", "text"),
    [
        ("queue", ("sent",), {}, "kind 'sent'"),
        ("queue", ("", -1), {}, "limit -1"),
        ("peers", (), {"remote": "somewhere"}, "remote 'somewhere'"),
        ("peers", (), {"local": "10.0.0.1:5"}, "local '10.0.0.1:5'"),
        ("counters", ("x",), {}, "remote 'x'"),
        ("congestion_maps", ("x",), {}, "node 'x'"),
        ("congestion_history", ("10.0.0.1",), {}, "address '10.0.0.1'"),
        ("ping", ("10.0.0.2",), {"within": 0}, "within 0"),
        ("drop_lanes", ("10.0.0.2",), {"lane": -1}, "lane -1"),
        ("close_socket", (("10.0.0.1", 65536),), {}, "port 65536"),
        ("trace", (), {"either": "10.0.0.1"}, "a list of addresses"),
        ("trace", (":x",), {}, "address"),
        ("trace", (("", 65536),), {}, "port 65536"),
        ("trace", (), {"every": -1}, "every -1"),
    ],
)
async def test_wrong_arguments_are_not_sent(
    admin: Calls,
    fake: FakeAdmin,
    method: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(rdsd.InvalidArgument, match=text):
        await admin(method, *args, **options)
    assert fake.request is None


async def test_notices(admin: Calls, fake: FakeAdmin) -> None:
    fake.reports = [
        pb.CongestionNotice(unix_ns=10**9, endpoint=END, local=True),
        pb.CongestionNotice(unix_ns=2 * 10**9, endpoint=FAR, congested=True),
    ]
    with await admin("watch_congestion", current=True) as watch:
        assert fake.request == pb.WatchCongestionRequest(include_current=True)
        first, second = [await admin.next(watch) for _ in range(2)]
        waiting = asyncio.create_task(admin.next(watch))
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 5)
    assert (first.time.timestamp(), first.local, first.congested) == (1, True, False)
    assert (second.endpoint, second.congested) == (("10.0.0.2", 6), True)

    fake.hold.set()
    watch = await admin("watch_congestion")
    assert fake.request == pb.WatchCongestionRequest()
    for _ in range(2):
        await admin.next(watch)
    with pytest.raises(rdsd.DaemonUnavailable, match="ended the watch"):
        await admin.next(watch)


async def test_a_trace_is_asked_for_whole(admin: Calls, fake: FakeAdmin) -> None:
    start = pb.TraceStart(clock="boot", local_address=[HERE])
    event = pb.TraceEvent(stage=pb.TRACE_STAGE_LEFT, unix_ns=7, source=END, sequence=9)
    fake.reports = [pb.TraceReport(start=start), pb.TraceReport(event=[event], dropped=2)]
    either = ["10.0.0.1", "[fd00::2]", ":6", ("", 6), ("10.0.0.2", 0)]
    watch = await admin("trace", "10.0.0.1:5", ("10.0.0.2", 6), either=either, every=3)
    assert fake.request == pb.TraceRequest(
        source=END,
        destination=FAR,
        either=[
            pb.Endpoint(address=HERE),
            pb.Endpoint(address=b"\xfd" + bytes(14) + b"\2"),
            pb.Endpoint(port=6),
            pb.Endpoint(port=6),
            pb.Endpoint(address=THERE),
        ],
        every=3,
    )
    first, second = [await admin.next(watch) for _ in range(2)]
    assert first == rdsd.TraceReport("boot", ("10.0.0.1",), (), 0)
    assert (second.dropped, second.events[0].stage, second.events[0].seq) == (2, "left", 9)
    assert (second.events[0].time_ns, second.events[0].source) == (7, ("10.0.0.1", 5))
    watch.close()


async def test_no_daemon_and_a_closed_client(admin: Calls) -> None:
    with pytest.raises(rdsd.DaemonUnavailable, match="no daemon answers"):
        await admin("status")
    kept = admin.client.admin
    await admin.do(admin.client.close)
    with pytest.raises(rdsd.Closed):
        await admin.do(kept.status)
    with pytest.raises(rdsd.Closed):
        await admin("status")


async def test_whoever_waits_is_told_that_the_client_is_closed(
    admin: Calls, fake: FakeAdmin
) -> None:
    """Over asyncio it looked as if somebody had cancelled the task."""
    watch = await admin("watch_congestion")
    fake.slow = threading.Event()

    async def begun() -> Any:
        return await admin.next(await admin("trace"))

    waiting = [
        asyncio.create_task(admin.next(watch)),
        asyncio.create_task(admin("status")),
        asyncio.create_task(begun()),
    ]
    for _ in range(500):
        if {"GetStatus", "Trace"} <= fake.asked_ever:
            break
        await asyncio.sleep(0.01)
    await admin.do(admin.client.close)
    done, late = await asyncio.wait(waiting, timeout=5)
    fake.slow.set()
    assert not late
    assert [(type(t.exception()), str(t.exception())) for t in waiting if not t.cancelled()] == [
        (rdsd.Closed, "the client is closed")
    ] * 3, done


async def test_the_raw_service(admin: Calls, fake: FakeAdmin) -> None:
    fake.answer = pb.Status(version="7")
    service = admin.client.admin_service
    assert (await admin.do(service.GetStatus, pb.GetStatusRequest())).version == "7"
