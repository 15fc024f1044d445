"""Volumes against a scripted service, over both fronts: what is sent, what comes back, how it
fails. With real daemons: test_volumes_daemon.py."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from services import Calls, abort, empty, fill

import rdsd
import rdsd.aio
from rdsd import _volumes_codec as codec
from rdsd import _volumes_types as types
from rdsd._words import word
from rdsd.v1 import volume_pb2 as pb
from rdsd.v1 import volume_pb2_grpc as rpc


class FakeVolumes(rpc.VolumeServiceServicer):
    """Answers each call with what the test put there and keeps the request."""

    def __init__(self) -> None:
        self.request: Any = None
        self.answer: Any = None
        self.error: tuple[int, str] | None = None
        self.events: list[pb.VolumeEvent] = []
        self.hold = threading.Event()  # set: a watch ends after the events
        self.silent = threading.Event()  # set: a watch does not begin

    def take(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.request = request
        if self.error is not None:
            abort(context, *self.error)
        return self.answer

    Export = Unexport = ForceClose = Map = Unmap = Remap = List = Get = Info = Resize = take
    ListSessions = ListPaths = AddPath = RemovePath = DisconnectPath = take
    ReconnectPath = SetPolicy = SetSession = ResetStats = Check = take

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.VolumeEvent]:
        self.request = request
        if self.error is not None:
            abort(context, *self.error)
        ended = threading.Event()
        context.add_callback(ended.set)
        while self.silent.is_set() and not ended.wait(0.01):
            pass
        context.send_initial_metadata(())
        yield from self.events
        while not self.hold.is_set() and not ended.wait(0.01):
            pass


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeVolumes]:
    service = FakeVolumes()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    rpc.add_VolumeServiceServicer_to_server(service, server)
    server.add_insecure_port(f"unix://{tmp_path}/s")
    server.start()
    yield service
    service.hold.set()
    service.silent.clear()
    server.stop(0).wait(5)


@pytest_asyncio.fixture(params=["sync", "aio"])
async def volumes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Calls]:
    calls = Calls(request.param, f"unix://{tmp_path}/s", "volumes")
    yield calls
    await calls.do(calls.client.close)


async def test_a_mapping_is_asked_for_whole(volumes: Calls, fake: FakeVolumes) -> None:
    fake.answer = pb.VolumeMapping(id="v1", device="/s", state=pb.VOLUME_MAPPING_STATE_OPEN)
    m = await volumes(
        "map",
        "10.0.0.7:9",
        "disk",
        attach=rdsd.VolumeAttach.NBD,
        access="migration",
        paths=[("10.0.0.1", "10.0.0.7"), "10.1.0.1, 10.1.0.7:9", "10.2.0.7"],
        policy="ml",
        session="a-b",
        queue_depth=64,
        io_timeout=1,
        loss_timeout=0.5,
        on_loss="error",
        unfenced="wait",
        unfenced_after=30,
        max_reconnect_attempts=9,
        persist=True,
        socket_path="/s",
        device="/dev/nbd3",
        id="m",
    )
    assert (m.id, m.device, m.state) == ("v1", "/s", "open")
    assert m.info is None
    assert m.address is None
    assert fake.request == pb.VolumeMapRequest(
        node="10.0.0.7:9",
        name="disk",
        attach=pb.VOLUME_ATTACH_NBD,
        access=pb.VOLUME_ACCESS_MIGRATION,
        path=[
            pb.VolumePathSpec(source="10.0.0.1", destination="10.0.0.7"),
            pb.VolumePathSpec(source="10.1.0.1", destination="10.1.0.7:9"),
            pb.VolumePathSpec(destination="10.2.0.7"),
        ],
        policy=pb.VOLUME_POLICY_NAMED,
        policy_name="ml",
        session="a-b",
        queue_depth=64,
        io_timeout_ns=1_000_000_000,
        loss_timeout_ns=500_000_000,
        on_loss=pb.VOLUME_ON_LOSS_ERROR,
        unfenced=pb.VOLUME_UNFENCED_WAIT,
        unfenced_after_ns=30_000_000_000,
        max_reconnect_attempts=9,
        persist=True,
        socket_path="/s",
        device="/dev/nbd3",
        id="m",
    )


async def test_an_export_is_asked_for_whole(volumes: Calls, fake: FakeVolumes) -> None:
    fake.answer = pb.VolumeExport(name="disk", info=pb.VolumeInfo(size_bytes=7))
    e = await volumes(
        "export",
        "disk",
        path="/d",
        kind="file",
        size=1 << 20,
        create=True,
        read_only=True,
        shared=True,
        logical_block=4096,
        allow_addresses=["10.0.0.0/8"],
        allow_sessions=["a*"],
        persist=True,
    )
    assert e.info.size == 7
    assert fake.request == pb.VolumeExportRequest(
        name="disk",
        path="/d",
        kind=pb.VOLUME_KIND_FILE,
        size_bytes=1 << 20,
        create=True,
        read_only=True,
        shared=True,
        logical_block_bytes=4096,
        allow_address=["10.0.0.0/8"],
        allow_session=["a*"],
        persist=True,
    )


async def test_a_session_is_changed(volumes: Calls, fake: FakeVolumes) -> None:
    fake.answer = pb.VolumeSession(name="s", unfenced=pb.VOLUME_UNFENCED_NOW)
    s = await volumes(
        "set_session",
        "s",
        policy="rr",
        unfenced="after",
        unfenced_after=60,
        max_reconnect_attempts=-1,
    )
    assert s.unfenced == "now"
    assert fake.request == pb.VolumeSetSessionRequest(
        session="s",
        policy_name="rr",
        unfenced=pb.VOLUME_UNFENCED_AFTER,
        unfenced_after_ns=60_000_000_000,
        max_reconnect_attempts=-1,
    )
    await volumes("set_session", "s")
    assert fake.request == pb.VolumeSetSessionRequest(session="s")


async def test_a_path_is_waited_for(volumes: Calls, fake: FakeVolumes) -> None:
    fake.answer = pb.VolumePath(transport="ib", device="rdsd0", port=1)
    p = await volumes("add_path", "s", "ib:a,b", wait=True)
    assert (p.transport, p.device, p.port) == ("ib", "rdsd0", 1)
    assert fake.request == pb.VolumePathRequest(session="s", path=IB_PATH, wait=True)
    fake.answer = pb.VolumePathResponse()
    for method in ("remove_path", "disconnect_path", "reconnect_path"):
        await volumes(method, "s", "a,b", wait=True)
        assert fake.request == pb.VolumePathRequest(session="s", path=PATH, wait=True)


@pytest.mark.parametrize(
    ("text", "src", "dst", "transport"),
    [
        ("10.0.0.7", "", "10.0.0.7", ""),
        ("10.0.0.1,10.0.0.7:1234", "10.0.0.1", "10.0.0.7:1234", ""),
        (",10.0.0.7", "", "10.0.0.7", ""),
        ("10.0.0.1, 10.0.0.7", "10.0.0.1", "10.0.0.7", ""),
        ("tcp:10.0.0.1,10.0.0.7", "10.0.0.1", "10.0.0.7", "tcp"),
        ("ib:10.0.0.1,10.0.0.7", "10.0.0.1", "10.0.0.7", "ib"),
        ("ib:store", "", "store", "ib"),
        ("ib:[fd00::7]:1234", "", "[fd00::7]:1234", "ib"),
        ("ip:10.0.0.1@ip:10.0.0.7", "10.0.0.1", "10.0.0.7", "ib"),
        ("ip:10.0.0.7", "", "10.0.0.7", "ib"),
        ("gid:::ffff:10.0.0.1,gid:::ffff:a00:7", "10.0.0.1", "10.0.0.7", "ib"),
        ("gid:fd00::1@gid:fd00::7", "fd00::1", "fd00::7", "ib"),
        ("ib:gid:fd00::7", "", "fd00::7", "ib"),
    ],
)
async def test_paths_in_words(
    volumes: Calls, fake: FakeVolumes, text: str, src: str, dst: str, transport: str
) -> None:
    fake.answer = pb.VolumePath()
    await volumes("add_path", "s", text)
    want = pb.VolumePathSpec(source=src, destination=dst, transport=transport)
    assert fake.request == pb.VolumePathRequest(session="s", path=want)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "destination is missing"),
        ("ib:", "destination is missing"),
        ("10.0.0.1,", "destination is missing"),
        ("a,b,c", "one path is"),
        ("a@b@c", "one path is"),
        ("a b", "blanks"),
        ("a/b", "slashes"),
        ("gid:10.0.0.7", "a GID is an IPv6 address"),
        ("gid:x", "a GID is an IPv6 address"),
        ("gid:::", "a GID is an IPv6 address"),
        ("tcp:ip:10.0.0.7", "over TCP"),
        ("tcp:gid:fd00::7", "over TCP"),
    ],
)
async def test_paths_in_wrong_words(volumes: Calls, fake: FakeVolumes, text: str, why: str) -> None:
    with pytest.raises(rdsd.InvalidArgument, match=why):
        await volumes("add_path", "s", text)
    assert fake.request is None


PATH = pb.VolumePathSpec(source="a", destination="b")
IB_PATH = pb.VolumePathSpec(source="a", destination="b", transport="ib")


@pytest.mark.parametrize(
    ("method", "args", "request_", "answer", "value"),
    [
        ("unexport", ("d", True), pb.VolumeUnexportRequest(name="d", force=True), None, None),
        (
            "force_close",
            ("d", "s"),
            pb.VolumeForceCloseRequest(export="d", session="s"),
            pb.VolumeForceCloseResponse(),
            None,
        ),
        ("unmap", ("v1", True), pb.VolumeUnmapRequest(mapping="v1", force=True), None, None),
        (
            "resize_export",
            ("d", 9),
            pb.VolumeResizeRequest(export="d", size_bytes=9),
            pb.VolumeResizeResponse(size_bytes=9),
            9,
        ),
        (
            "resize_mapping",
            ("v1",),
            pb.VolumeResizeRequest(mapping="v1"),
            pb.VolumeResizeResponse(size_bytes=9),
            9,
        ),
        (
            "remove_path",
            ("s", "ib:a,b"),
            pb.VolumePathRequest(session="s", path=IB_PATH),
            pb.VolumePathResponse(),
            None,
        ),
        (
            "remove_path",
            ("s", rdsd.PathSpec("a", "b", "ib")),
            pb.VolumePathRequest(session="s", path=IB_PATH),
            pb.VolumePathResponse(),
            None,
        ),
        (
            "remove_path",
            ("s", "a,b"),
            pb.VolumePathRequest(session="s", path=PATH),
            pb.VolumePathResponse(),
            None,
        ),
        (
            "disconnect_path",
            ("s", ("a", "b")),
            pb.VolumePathRequest(session="s", path=PATH),
            pb.VolumePathResponse(),
            None,
        ),
        (
            "reconnect_path",
            ("s", rdsd.PathSpec("a", "b")),
            pb.VolumePathRequest(session="s", path=PATH),
            pb.VolumePathResponse(),
            None,
        ),
        (
            "set_policy",
            ("s", "rr"),
            pb.VolumeSetPolicyRequest(session="s", policy=pb.VOLUME_POLICY_NAMED, policy_name="rr"),
            pb.VolumeSetPolicyResponse(),
            None,
        ),
        ("reset_stats", (), pb.VolumeResetStatsRequest(), pb.VolumeResetStatsResponse(), None),
        (
            "reset_stats",
            ("s", "a,b"),
            pb.VolumeResetStatsRequest(session="s", path=PATH),
            pb.VolumeResetStatsResponse(),
            None,
        ),
        ("sessions", (), pb.VolumeListSessionsRequest(), pb.VolumeListSessionsResponse(), ()),
        ("paths", ("s",), pb.VolumeListPathsRequest(session="s"), pb.VolumeListPathsResponse(), ()),
        ("check", ("v1",), pb.VolumeCheckRequest(what="v1"), pb.VolumeCheckResponse(), ()),
        ("list", (), pb.VolumeListRequest(), pb.VolumeListResponse(), ((), ())),
    ],
)
async def test_the_other_calls(
    volumes: Calls,
    fake: FakeVolumes,
    method: str,
    args: tuple[Any, ...],
    request_: Message,
    answer: Message | None,
    value: object,
) -> None:
    options = {}
    if method in ("unexport", "unmap"):
        args, options = args[:1], {"force": args[1]}
        answer = pb.VolumeUnmapResponse() if method == "unmap" else pb.VolumeUnexportResponse()
    fake.answer = answer
    assert await volumes(method, *args, **options) == value
    assert fake.request == request_


@pytest.mark.parametrize(
    ("kind", "decode"),
    [
        (pb.VolumeExport, codec.export),
        (pb.VolumeMapping, codec.mapping),
        (pb.VolumeListResponse, codec.volume_list),
        (pb.VolumeInfoResponse, codec.remote),
        (pb.VolumeSession, codec.session),
        (pb.VolumePath, codec.path),
        (pb.VolumeFinding, codec.finding),
        (pb.VolumeEvent, codec.event),
    ],
)
def test_every_field_of_an_answer_arrives(kind: type[Message], decode: Callable[..., Any]) -> None:
    message = kind()
    fill(message)
    assert list(empty(decode(message), kind.__name__)) == []


def test_a_policy_goes_by_its_name() -> None:
    number = pb.VOLUME_POLICY_ROUND_ROBIN
    assert codec.policy("round-robin") == {"policy": number, "policy_name": "round-robin"}
    assert codec.policy("") == {"policy": 0, "policy_name": ""}
    for answer in pb.VolumeMapping(policy=number), pb.VolumeMapping(policy_name="round-robin"):
        assert codec.mapping(answer).policy is types.VolumePolicy.ROUND_ROBIN
    named = pb.VolumeSession(policy=pb.VOLUME_POLICY_NAMED, policy_name="fastest")
    assert codec.session(named).policy == "fastest"


def test_the_words_are_those_of_the_api() -> None:
    for words, enum in (
        (types.VolumeKind, pb.VolumeKind),
        (types.VolumeAccess, pb.VolumeAccess),
        (types.VolumeAttach, pb.VolumeAttach),
        (types.VolumePolicy, pb.VolumePolicy),
        (types.VolumeOnLoss, pb.VolumeOnLoss),
        (types.VolumeUnfenced, pb.VolumeUnfenced),
        (types.VolumeRole, pb.VolumeRole),
        (types.VolumeOrigin, pb.VolumeOrigin),
        (types.ExportState, pb.VolumeExportState),
        (types.MappingState, pb.VolumeMappingState),
        (types.PathState, pb.VolumePathState),
        (types.Severity, pb.VolumeSeverity),
        (types.VolumeEventKind, pb.VolumeEventKind),
    ):
        names = [name for name, _ in sorted(enum.items(), key=lambda item: item[1])]
        names = [name for name in names if name != "VOLUME_POLICY_NAMED"]  # has no word
        assert all(n.endswith("_" + w.name) for n, w in zip(names, words, strict=True)), words
        assert word(words, 99) == ""


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, rdsd.NotFound),
        (errno.EEXIST, rdsd.Exists),
        (errno.EBUSY, rdsd.Busy),
        (errno.EACCES, rdsd.PermissionDenied),
        (errno.EPERM, rdsd.Owned),
        (errno.EROFS, rdsd.ReadOnly),
        (errno.ENOSPC, rdsd.NoSpace),
        (errno.EALREADY, rdsd.Already),
        (errno.ENODEV, rdsd.Gone),
        (errno.ESTALE, rdsd.Stale),
        (errno.ETIMEDOUT, rdsd.TimedOut),
    ],
)
async def test_the_daemons_errors(
    volumes: Calls, fake: FakeVolumes, number: int, kind: type[rdsd.RdsError]
) -> None:
    fake.error = (number, "the reason")
    with pytest.raises(kind, match="the reason") as caught:
        await volumes("unmap", "v1")
    assert caught.value.errno == number


@pytest.mark.parametrize(
    ("method", "args", "options", "text"),
    [
        ("map", ("n", "d"), {"access": "w"}, "access 'w'"),
        ("map", ("n", "d"), {"attach": "iscsi"}, "attach 'iscsi'"),
        ("map", ("n", "d"), {"on_loss": "cry"}, "on_loss 'cry'"),
        ("map", ("n", "d"), {"unfenced": "never"}, "unfenced 'never'"),
        ("set_session", ("s",), {"unfenced": "never"}, "unfenced 'never'"),
        ("map", ("n", "d"), {"paths": "10.0.0.7"}, "a list of paths"),
        ("map", ("n", "d"), {"io_timeout": 0}, "io_timeout 0"),
        ("map", ("n", "d"), {"queue_depth": -1}, "queue_depth -1"),
        ("export", ("d",), {"kind": "tape"}, "kind 'tape'"),
        ("export", ("d",), {"size": -1}, "size -1"),
        ("export", ("d",), {"allow_addresses": "10.0.0.0/8"}, "a list of strings"),
        ("set_policy", ("s", ""), {}, "policy"),
    ],
)
async def test_wrong_arguments_are_not_sent(
    volumes: Calls,
    fake: FakeVolumes,
    method: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(rdsd.InvalidArgument, match=text):
        await volumes(method, *args, **options)
    assert fake.request is None


async def test_a_deadline_and_a_closed_client(volumes: Calls, fake: FakeVolumes) -> None:
    fake.silent.set()
    with pytest.raises(rdsd.TimedOut):
        await volumes.do(volumes.client.volumes.watch, timeout=0.1)
    again = volumes.client.volumes
    await volumes.do(volumes.client.close)
    with pytest.raises(rdsd.Closed):
        await volumes.do(again.list)
    with pytest.raises(rdsd.Closed):
        await volumes("list")


async def test_no_daemon(volumes: Calls) -> None:
    with pytest.raises(rdsd.DaemonUnavailable, match="no daemon answers"):
        await volumes("list")
    watch = await volumes("watch")
    with pytest.raises(rdsd.DaemonUnavailable, match="no daemon answers"):
        await volumes.next(watch)


async def test_a_watch(volumes: Calls, fake: FakeVolumes) -> None:
    fake.events = [
        pb.VolumeEvent(number=4, kind=pb.VOLUME_EVENT_KIND_GAP, count=3),
        pb.VolumeEvent(
            number=5, unix_ns=10**9, kind=pb.VOLUME_EVENT_KIND_ERROR, errno=5, error="m"
        ),
        pb.VolumeEvent(number=6, instance=9, kind=99, error="odd"),  # type: ignore[arg-type]
    ]
    fake.hold.set()
    watch = await volumes("watch", 1, instance=8)
    gap, failed, odd = [await volumes.next(watch) for _ in range(3)]
    assert (gap.kind, gap.count, gap.error, gap.path) == ("gap", 3, None, None)
    assert isinstance(failed.time, datetime)
    assert failed.time.timestamp() == 1
    assert (type(failed.error), str(failed.error)) == (rdsd.TransportFailed, "m")
    assert (odd.kind, str(odd.error), odd.instance) == ("", "odd", 9)
    with pytest.raises(rdsd.DaemonUnavailable):
        await volumes.next(watch)
    assert fake.request == pb.VolumeWatchRequest(after=1, instance=8)
    fake.hold.clear()

    with await volumes("watch", 0) as watch:
        assert fake.request == pb.VolumeWatchRequest(kept=True)
        for _ in range(3):
            await volumes.next(watch)
        waiting = asyncio.create_task(volumes.next(watch))
        await asyncio.sleep(0.05)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(StopAsyncIteration):
        await volumes.next(watch)


async def test_a_refused_watch(volumes: Calls, fake: FakeVolumes) -> None:
    fake.error = (errno.ENOSYS, "no volumes here")
    watch = await volumes("watch")
    with pytest.raises(rdsd.NotSupported, match="no volumes here"):
        await volumes.next(watch)
