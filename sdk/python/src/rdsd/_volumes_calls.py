"""The calls of the volume service: what each sends and what it makes of the answer.

Both fronts carry them out, each in its way.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import _volumes_codec as codec
from . import _volumes_types as t
from ._errors import InvalidArgument, make
from ._service import ServiceCall, count, nanoseconds, nothing
from ._target import Timeout
from ._words import number
from .v1 import volume_pb2 as pb


def _size(value: int) -> int:
    return count("size", value, (1 << 63) - 1)


def _strings(name: str, values: Iterable[str]) -> list[str]:
    if isinstance(values, str):
        raise make(InvalidArgument, f"{name} {values!r}: want a list of strings")
    return list(values)


def export(
    name: str,
    *,
    path: str,
    kind: str,
    size: int,
    create: bool,
    read_only: bool,
    shared: bool,
    logical_block: int,
    allow_addresses: Iterable[str],
    allow_sessions: Iterable[str],
    persist: bool,
) -> ServiceCall[t.Export]:
    request = pb.VolumeExportRequest(
        name=name,
        path=path,
        kind=number("kind", t.VolumeKind, kind),
        size_bytes=_size(size),
        create=create,
        read_only=read_only,
        shared=shared,
        logical_block_bytes=count("logical_block", logical_block, 1 << 20),
        allow_address=_strings("allow_addresses", allow_addresses),
        allow_session=_strings("allow_sessions", allow_sessions),
        persist=persist,
    )
    return ServiceCall("Export", request, codec.export)


def unexport(name: str, *, force: bool) -> ServiceCall[None]:
    return ServiceCall("Unexport", pb.VolumeUnexportRequest(name=name, force=force), nothing)


def force_close(export: str, session: str) -> ServiceCall[None]:
    request = pb.VolumeForceCloseRequest(export=export, session=session)
    return ServiceCall("ForceClose", request, nothing)


def map_volume(
    node: str,
    name: str,
    *,
    attach: str,
    access: str,
    paths: Iterable[t.PathLike],
    policy: str,
    session: str,
    queue_depth: int,
    io_timeout: Timeout,
    loss_timeout: Timeout,
    on_loss: str,
    unfenced: str,
    unfenced_after: Timeout,
    max_reconnect_attempts: int,
    persist: bool,
    socket_path: str,
    device: str,
    id: str,
) -> ServiceCall[t.Mapping]:
    request = pb.VolumeMapRequest(
        node=node,
        name=name,
        id=id,
        attach=number("attach", t.VolumeAttach, attach),
        access=number("access", t.VolumeAccess, access),
        path=path_list(paths),
        **codec.policy(policy),
        session=session,
        queue_depth=count("queue_depth", queue_depth, 1 << 16),
        io_timeout_ns=nanoseconds("io_timeout", io_timeout),
        loss_timeout_ns=nanoseconds("loss_timeout", loss_timeout),
        on_loss=number("on_loss", t.VolumeOnLoss, on_loss),
        unfenced=number("unfenced", t.VolumeUnfenced, unfenced),
        unfenced_after_ns=nanoseconds("unfenced_after", unfenced_after),
        max_reconnect_attempts=max_reconnect_attempts,
        persist=persist,
        socket_path=socket_path,
        device=device,
    )
    return ServiceCall("Map", request, codec.mapping)


def path_list(paths: Iterable[t.PathLike]) -> list[pb.VolumePathSpec]:
    if isinstance(paths, str | t.PathSpec):
        raise make(InvalidArgument, f"paths {paths!r}: want a list of paths")
    return [codec.to_path(p) for p in paths]


def unmap(mapping: str, *, force: bool) -> ServiceCall[None]:
    return ServiceCall("Unmap", pb.VolumeUnmapRequest(mapping=mapping, force=force), nothing)


def remap(mapping: str) -> ServiceCall[t.Mapping]:
    return ServiceCall("Remap", pb.VolumeRemapRequest(mapping=mapping), codec.mapping)


def volume_list() -> ServiceCall[t.VolumeList]:
    return ServiceCall("List", pb.VolumeListRequest(), codec.volume_list)


def get_mapping(mapping: str) -> ServiceCall[t.Mapping]:
    request = pb.VolumeGetRequest(mapping=mapping)
    return ServiceCall("Get", request, lambda m: codec.mapping(m.mapping))


def get_export(name: str) -> ServiceCall[t.Export]:
    request = pb.VolumeGetRequest(export=name)
    return ServiceCall("Get", request, lambda m: codec.export(m.export))


def info(
    node: str, name: str, *, session: str, paths: Iterable[t.PathLike]
) -> ServiceCall[t.RemoteVolume]:
    request = pb.VolumeInfoRequest(node=node, name=name, session=session, path=path_list(paths))
    return ServiceCall("Info", request, codec.remote)


def resize_export(name: str, size: int) -> ServiceCall[int]:
    request = pb.VolumeResizeRequest(export=name, size_bytes=_size(size))
    return ServiceCall("Resize", request, lambda m: int(m.size_bytes))


def resize_mapping(mapping: str, size: int) -> ServiceCall[int]:
    request = pb.VolumeResizeRequest(mapping=mapping, size_bytes=_size(size))
    return ServiceCall("Resize", request, lambda m: int(m.size_bytes))


def sessions() -> ServiceCall[tuple[t.VolumeSession, ...]]:
    request = pb.VolumeListSessionsRequest()
    return ServiceCall("ListSessions", request, lambda m: tuple(map(codec.session, m.session)))


def paths(session: str) -> ServiceCall[tuple[t.VolumePath, ...]]:
    request = pb.VolumeListPathsRequest(session=session)
    return ServiceCall("ListPaths", request, lambda m: tuple(map(codec.path, m.path)))


def _path_request(session: str, path: t.PathLike, wait: bool) -> pb.VolumePathRequest:
    return pb.VolumePathRequest(session=session, path=codec.to_path(path), wait=wait)


def add_path(session: str, path: t.PathLike, wait: bool) -> ServiceCall[t.VolumePath]:
    return ServiceCall("AddPath", _path_request(session, path, wait), codec.path)


def on_path(method: str, session: str, path: t.PathLike, wait: bool) -> ServiceCall[None]:
    return ServiceCall(method, _path_request(session, path, wait), nothing)


def set_session(
    session: str,
    *,
    policy: str,
    unfenced: str,
    unfenced_after: Timeout,
    max_reconnect_attempts: int,
) -> ServiceCall[t.VolumeSession]:
    request = pb.VolumeSetSessionRequest(
        session=session,
        policy_name=policy,
        unfenced=number("unfenced", t.VolumeUnfenced, unfenced),
        unfenced_after_ns=nanoseconds("unfenced_after", unfenced_after),
        max_reconnect_attempts=max_reconnect_attempts,
    )
    return ServiceCall("SetSession", request, codec.session)


def set_policy(session: str, policy: str) -> ServiceCall[None]:
    if not policy:
        raise make(InvalidArgument, "policy: want a name, such as round-robin")
    request = pb.VolumeSetPolicyRequest(session=session, **codec.policy(policy))
    return ServiceCall("SetPolicy", request, nothing)


def reset_stats(session: str, path: t.PathLike | None) -> ServiceCall[None]:
    request = pb.VolumeResetStatsRequest(session=session)
    if path is not None:
        request.path.CopyFrom(codec.to_path(path))
    return ServiceCall("ResetStats", request, nothing)


def check(what: str) -> ServiceCall[tuple[t.VolumeFinding, ...]]:
    request = pb.VolumeCheckRequest(what=what)
    return ServiceCall("Check", request, lambda m: tuple(map(codec.finding, m.finding)))


def watch(after: int | None, instance: int) -> ServiceCall[t.VolumeEvent]:
    """after: None for what is to come, 0 for all that is kept, else a number."""
    last = count("after", after or 0, (1 << 64) - 1)
    of = count("instance", instance, (1 << 64) - 1)
    request = pb.VolumeWatchRequest(after=last, kept=after == 0, instance=of)
    return ServiceCall("Watch", request, codec.event)
