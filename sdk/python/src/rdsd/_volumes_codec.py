"""Messages of the volume service as the values of _volumes_types, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from . import _volumes_types as t
from ._errors import RdsError, TransportFailed, error_from_errno, make
from ._types import unpack_host
from ._volumes_paths import parse_path
from ._words import word
from .v1 import volume_pb2 as pb


def policy(value: str) -> Any:
    """A policy as a request has it. Which there are, and what their short forms are, the
    daemon knows; the number is for one that knows those with a number alone."""
    names = [word.value for word in t.VolumePolicy]
    known = names.index(value) if value in names else pb.VOLUME_POLICY_NAMED
    return {"policy": known, "policy_name": str(value)}


def policy_word(m: pb.VolumeMapping | pb.VolumeSession) -> str:
    """The policy of an answer: a name that we do not know is still its name."""
    name = m.policy_name or word(t.VolumePolicy, m.policy)
    return t.VolumePolicy(name) if name in list(t.VolumePolicy) else name


def to_path(path: t.PathLike) -> pb.VolumePathSpec:
    transport = ""
    if isinstance(path, str):
        src, dst, transport = parse_path(path)
    elif len(path) == 3:
        src, dst, transport = path
    else:
        src, dst = path
    return pb.VolumePathSpec(source=src.strip(), destination=dst.strip(), transport=transport)


def path_spec(m: pb.VolumePathSpec) -> t.PathSpec:
    return t.PathSpec(m.source, m.destination, m.transport)


def seconds(ns: int) -> float:
    return ns / 1e9


def info(m: pb.VolumeInfo) -> t.VolumeInfo:
    return t.VolumeInfo(
        size=m.size_bytes,
        logical_block=m.logical_block_bytes,
        physical_block=m.physical_block_bytes,
        max_io=m.max_io_bytes,
        max_segments=m.max_segments,
        max_discard=m.max_discard_bytes,
        discard_granularity=m.discard_granularity_bytes,
        discard_alignment=m.discard_alignment_bytes,
        max_write_zeroes=m.max_write_zeroes_bytes,
        fast_zero=m.fast_zero,
        rotational=m.rotational,
        read_only=m.read_only,
        write_cache=m.write_cache,
        fua=m.fua,
        multi_conn=m.multi_conn,
    )


def op(m: pb.VolumeOpCounters) -> t.VolumeOp:
    return t.VolumeOp(
        op=m.operation,
        submitted=m.submitted,
        completed=m.completed,
        errors=m.errors,
        bytes=m.bytes,
        time=seconds(m.time_ns),
        p50=seconds(m.p50_ns),
        p99=seconds(m.p99_ns),
        p999=seconds(m.p999_ns),
    )


def user(m: pb.VolumeUser) -> t.VolumeUser:
    return t.VolumeUser(
        session=m.session,
        peer=unpack_host(m.peer) if m.peer else "",
        access=word(t.VolumeAccess, m.access),
        open_for=seconds(m.open_ns),
        kernel=m.kernel,
    )


def export(m: pb.VolumeExport) -> t.Export:
    return t.Export(
        name=m.name,
        kind=word(t.VolumeKind, m.kind),
        path=m.path,
        read_only=m.read_only,
        shared=m.shared,
        allow_addresses=tuple(m.allow_address),
        allow_sessions=tuple(m.allow_session),
        persist=m.persist,
        origin=word(t.VolumeOrigin, m.origin),
        state=word(t.ExportState, m.state),
        state_for=seconds(m.state_ns),
        error=m.error,
        info=info(m.info) if m.HasField("info") else None,
        users=tuple(map(user, m.user)),
        ops=tuple(map(op, m.operation)),
    )


def mapping(m: pb.VolumeMapping) -> t.Mapping:
    return t.Mapping(
        id=m.id,
        device=m.device,
        uri=m.uri,
        attach=word(t.VolumeAttach, m.attach),
        node=m.node,
        name=m.name,
        state=word(t.MappingState, m.state),
        state_for=seconds(m.state_ns),
        last_error=m.last_error,
        info=info(m.info) if m.HasField("info") else None,
        access=word(t.VolumeAccess, m.access),
        session=m.session,
        session_id=m.session_id,
        paths=tuple(map(path_spec, m.path)),
        policy=policy_word(m),
        queue_depth=m.queue_depth,
        io_timeout=seconds(m.io_timeout_ns),
        loss_timeout=seconds(m.loss_timeout_ns),
        on_loss=word(t.VolumeOnLoss, m.on_loss),
        unfenced=word(t.VolumeUnfenced, m.unfenced),
        unfenced_after=seconds(m.unfenced_after_ns),
        max_reconnect_attempts=m.max_reconnect_attempts,
        persist=m.persist,
        users=m.users,
        waiting=m.waiting,
        path_count=m.paths,
        paths_up=m.paths_up,
        address=path_spec(m.address) if m.HasField("address") else None,
        ops=tuple(map(op, m.operation)),
    )


def volume_list(m: pb.VolumeListResponse) -> t.VolumeList:
    return t.VolumeList(tuple(map(export, m.export)), tuple(map(mapping, m.mapping)))


def remote(m: pb.VolumeInfoResponse) -> t.RemoteVolume:
    return t.RemoteVolume(m.node, m.name, info(m.info), m.queue_depth)


def session(m: pb.VolumeSession) -> t.VolumeSession:
    return t.VolumeSession(
        id=m.id,
        name=m.name,
        uuid=m.uuid,
        role=word(t.VolumeRole, m.role),
        peer=m.peer,
        up=m.up,
        state_for=seconds(m.state_ns),
        policy=policy_word(m),
        on_loss=word(t.VolumeOnLoss, m.on_loss),
        volumes=tuple(m.volume),
        paths=m.paths,
        paths_up=m.paths_up,
        queue_depth=m.queue_depth,
        in_flight=m.in_flight,
        waiting=m.waiting,
        max_io=m.max_io_bytes,
        memory=m.memory_bytes,
        kernel=m.kernel,
        unfenced=word(t.VolumeUnfenced, m.unfenced),
        unfenced_after=seconds(m.unfenced_after_ns),
        unfenced_failovers=m.unfenced_failovers,
        max_reconnect_attempts=m.max_reconnect_attempts,
    )


def path(m: pb.VolumePath) -> t.VolumePath:
    return t.VolumePath(
        session=m.session,
        session_id=m.session_id,
        role=word(t.VolumeRole, m.role),
        src=m.source,
        dst=m.destination,
        state=word(t.PathState, m.state),
        state_for=seconds(m.state_ns),
        epoch=m.epoch,
        connections=m.connections,
        cur_latency=seconds(m.cur_latency_ns),
        reconnects=m.reconnects,
        reconnects_failed=m.reconnects_failed,
        reads=m.reads,
        read_bytes=m.read_bytes,
        writes=m.writes,
        write_bytes=m.write_bytes,
        in_flight=m.in_flight,
        failovers=m.failovers,
        last_error=m.last_error,
        transport=m.transport,
        device=m.device,
        port=m.port,
    )


def finding(m: pb.VolumeFinding) -> t.VolumeFinding:
    return t.VolumeFinding(word(t.Severity, m.severity), m.what, m.text, m.remedy)


def event(m: pb.VolumeEvent) -> t.VolumeEvent:
    return t.VolumeEvent(
        number=m.number,
        time=datetime.fromtimestamp(m.unix_ns / 1e9, UTC),
        kind=word(t.VolumeEventKind, m.kind),
        role=word(t.VolumeRole, m.role),
        session=m.session,
        path=path_spec(m.path) if m.HasField("path") else None,
        mapping=m.mapping,
        export=m.export,
        state=m.state,
        count=m.count,
        size=m.size_bytes,
        took=seconds(m.took_ns),
        error=_error(m.errno, m.error),
        text=m.text,
        instance=m.instance,
    )


def _error(errno: int, text: str) -> RdsError | None:
    if errno:
        return error_from_errno(errno, text)
    return make(TransportFailed, text) if text else None
