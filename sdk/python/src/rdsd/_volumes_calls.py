"""The calls of the volume service: what each sends and what it makes of the answer.

Both fronts carry them out, each in its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import _volumes_codec as codec
from . import _volumes_types as t
from ._errors import InvalidArgument, make
from ._target import Timeout, seconds
from .v1 import volume_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VolumeCall(Generic[T]):
    """One call: a method of the stub, its request, and how to read the answer."""

    method: str
    request: Any
    decode: Callable[[Any], T]


def _nothing(_: object) -> None:
    return None


def _count(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise make(InvalidArgument, f"{name} {value}: want 0 to {most}")
    return value


def _ns(name: str, timeout: Timeout) -> int:
    """Nanoseconds; 0, the daemon's default, for None."""
    value = seconds(timeout)
    if value is None:
        return 0
    if value == 0 or value > 1e9:
        raise make(InvalidArgument, f"{name} {timeout}: want more than 0, or None for the default")
    return round(value * 1e9)


def _size(value: int) -> int:
    return _count("size", value, (1 << 63) - 1)


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
) -> VolumeCall[t.Export]:
    request = pb.VolumeExportRequest(
        name=name,
        path=path,
        kind=codec.number("kind", t.VolumeKind, kind),
        size_bytes=_size(size),
        create=create,
        read_only=read_only,
        shared=shared,
        logical_block_bytes=_count("logical_block", logical_block, 1 << 20),
        allow_address=_strings("allow_addresses", allow_addresses),
        allow_session=_strings("allow_sessions", allow_sessions),
        persist=persist,
    )
    return VolumeCall("Export", request, codec.export)


def unexport(name: str, *, force: bool) -> VolumeCall[None]:
    return VolumeCall("Unexport", pb.VolumeUnexportRequest(name=name, force=force), _nothing)


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
    persist: bool,
    socket_path: str,
    device: str,
    id: str,
) -> VolumeCall[t.Mapping]:
    request = pb.VolumeMapRequest(
        node=node,
        name=name,
        id=id,
        attach=codec.number("attach", t.VolumeAttach, attach),
        access=codec.number("access", t.VolumeAccess, access),
        path=path_list(paths),
        **codec.policy(policy),
        session=session,
        queue_depth=_count("queue_depth", queue_depth, 1 << 16),
        io_timeout_ns=_ns("io_timeout", io_timeout),
        loss_timeout_ns=_ns("loss_timeout", loss_timeout),
        on_loss=codec.number("on_loss", t.VolumeOnLoss, on_loss),
        persist=persist,
        socket_path=socket_path,
        device=device,
    )
    return VolumeCall("Map", request, codec.mapping)


def path_list(paths: Iterable[t.PathLike]) -> list[pb.VolumePathSpec]:
    if isinstance(paths, str | t.PathSpec):
        raise make(InvalidArgument, f"paths {paths!r}: want a list of paths")
    return [codec.to_path(p) for p in paths]


def unmap(mapping: str, *, force: bool) -> VolumeCall[None]:
    return VolumeCall("Unmap", pb.VolumeUnmapRequest(mapping=mapping, force=force), _nothing)


def remap(mapping: str) -> VolumeCall[t.Mapping]:
    return VolumeCall("Remap", pb.VolumeRemapRequest(mapping=mapping), codec.mapping)


def volume_list() -> VolumeCall[t.VolumeList]:
    return VolumeCall("List", pb.VolumeListRequest(), codec.volume_list)


def get_mapping(mapping: str) -> VolumeCall[t.Mapping]:
    request = pb.VolumeGetRequest(mapping=mapping)
    return VolumeCall("Get", request, lambda m: codec.mapping(m.mapping))


def get_export(name: str) -> VolumeCall[t.Export]:
    request = pb.VolumeGetRequest(export=name)
    return VolumeCall("Get", request, lambda m: codec.export(m.export))


def info(
    node: str, name: str, *, session: str, paths: Iterable[t.PathLike]
) -> VolumeCall[t.RemoteVolume]:
    request = pb.VolumeInfoRequest(node=node, name=name, session=session, path=path_list(paths))
    return VolumeCall("Info", request, codec.remote)


def resize_export(name: str, size: int) -> VolumeCall[int]:
    request = pb.VolumeResizeRequest(export=name, size_bytes=_size(size))
    return VolumeCall("Resize", request, lambda m: int(m.size_bytes))


def resize_mapping(mapping: str, size: int) -> VolumeCall[int]:
    request = pb.VolumeResizeRequest(mapping=mapping, size_bytes=_size(size))
    return VolumeCall("Resize", request, lambda m: int(m.size_bytes))


def sessions() -> VolumeCall[tuple[t.VolumeSession, ...]]:
    request = pb.VolumeListSessionsRequest()
    return VolumeCall("ListSessions", request, lambda m: tuple(map(codec.session, m.session)))


def paths(session: str) -> VolumeCall[tuple[t.VolumePath, ...]]:
    request = pb.VolumeListPathsRequest(session=session)
    return VolumeCall("ListPaths", request, lambda m: tuple(map(codec.path, m.path)))


def _path_request(session: str, path: t.PathLike) -> pb.VolumePathRequest:
    return pb.VolumePathRequest(session=session, path=codec.to_path(path))


def add_path(session: str, path: t.PathLike) -> VolumeCall[t.VolumePath]:
    return VolumeCall("AddPath", _path_request(session, path), codec.path)


def on_path(method: str, session: str, path: t.PathLike) -> VolumeCall[None]:
    return VolumeCall(method, _path_request(session, path), _nothing)


def set_policy(session: str, policy: str) -> VolumeCall[None]:
    if not policy:
        raise make(InvalidArgument, "policy: want a name, such as round-robin")
    request = pb.VolumeSetPolicyRequest(session=session, **codec.policy(policy))
    return VolumeCall("SetPolicy", request, _nothing)


def reset_stats(session: str, path: t.PathLike | None) -> VolumeCall[None]:
    request = pb.VolumeResetStatsRequest(session=session)
    if path is not None:
        request.path.CopyFrom(codec.to_path(path))
    return VolumeCall("ResetStats", request, _nothing)


def check(what: str) -> VolumeCall[tuple[t.VolumeFinding, ...]]:
    request = pb.VolumeCheckRequest(what=what)
    return VolumeCall("Check", request, lambda m: tuple(map(codec.finding, m.finding)))


def watch(after: int | None) -> pb.VolumeWatchRequest:
    """after: None for what is to come, 0 for all that is kept, else a number."""
    number = _count("after", after or 0, (1 << 64) - 1)
    return pb.VolumeWatchRequest(after=number, kept=after == 0)
