"""The calls of the administration service: what each sends and what it makes of the answer.

Both fronts carry them out, each in its way.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from . import _admin_codec as codec
from . import _admin_types as t
from ._codec import endpoint
from ._errors import InvalidArgument, make
from ._service import ServiceCall, count, nanoseconds, nothing
from ._target import Timeout
from ._types import AddressLike, CancelResult, pack_host, to_address
from ._words import number
from .v1 import rdsd_pb2 as pb

#: The address of a node; an empty one is any.
HostLike: TypeAlias = str | ipaddress.IPv4Address | ipaddress.IPv6Address


def _host(name: str, value: HostLike) -> bytes:
    try:
        return pack_host(str(value)) if value else b""
    except ValueError:
        raise make(InvalidArgument, f"{name} {value!r}: want an address such as 10.0.0.1") from None


def _end(value: AddressLike) -> pb.Endpoint:
    return endpoint(to_address(value))


def _part(value: AddressLike | None) -> pb.Endpoint:
    """An address and a port of which either may be missing: "10.0.0.1", ":4000", ("", 4000)."""
    if value is None:
        return pb.Endpoint()
    if isinstance(value, str):
        try:
            return pb.Endpoint(address=pack_host(value.strip("[]")))
        except ValueError:  # it has a port, or is wrong
            if not value.startswith(":"):
                return _end(value)
        return pb.Endpoint(port=to_address("0.0.0.0" + value).port)
    host, port = value
    if host:
        return _end((host, port))
    return pb.Endpoint(port=to_address(("0.0.0.0", port)).port)


def status() -> ServiceCall[t.Status]:
    return ServiceCall("GetStatus", pb.GetStatusRequest(), codec.status)


def peers(*, local: HostLike, remote: HostLike) -> ServiceCall[tuple[t.Peer, ...]]:
    request = pb.ListPeersRequest(local=_host("local", local), remote=_host("remote", remote))
    return ServiceCall("ListPeers", request, codec.peers)


def sockets() -> ServiceCall[tuple[t.SocketInfo, ...]]:
    return ServiceCall("ListSockets", pb.ListSocketsRequest(), codec.sockets)


def queue(kind: str, limit: int) -> ServiceCall[t.QueueList]:
    request = pb.ListQueueRequest(
        kind=number("kind", t.QueueKind, kind), limit=count("limit", limit, (1 << 32) - 1)
    )
    return ServiceCall("ListQueue", request, codec.queue)


def counters(remote: HostLike) -> ServiceCall[tuple[t.Counter, ...]]:
    request = pb.GetCountersRequest(remote=_host("remote", remote))
    return ServiceCall("GetCounters", request, codec.counters)


def congestion() -> ServiceCall[t.CongestedPorts]:
    return ServiceCall("ListCongestion", pb.ListCongestionRequest(), codec.congestion)


def congestion_history(port: AddressLike | None) -> ServiceCall[t.CongestionHistory]:
    request = pb.GetCongestionHistoryRequest()
    if port is not None:
        request.endpoint.CopyFrom(_end(port))
    return ServiceCall("GetCongestionHistory", request, codec.history)


def congestion_maps(node: HostLike) -> ServiceCall[t.CongestionMaps]:
    request = pb.ListCongestionMapsRequest(remote=_host("node", node))
    return ServiceCall("ListCongestionMaps", request, codec.congestion_maps)


def errors() -> ServiceCall[t.ErrorLog]:
    return ServiceCall("ListErrors", pb.ListErrorsRequest(), codec.errors)


def config() -> ServiceCall[str]:
    return ServiceCall("GetConfig", pb.GetConfigRequest(), lambda m: str(m.toml))


def ping(remote: HostLike, *, local: HostLike, within: Timeout) -> ServiceCall[t.Pong]:
    request = pb.PingRequest(
        local=_host("local", local),
        remote=_host("remote", remote),
        timeout_ns=nanoseconds("within", within),
    )
    return ServiceCall("Ping", request, codec.pong)


def drop_lanes(remote: HostLike, *, local: HostLike, lane: int | None) -> ServiceCall[int]:
    request = pb.DropPathRequest(
        local=_host("local", local),
        remote=_host("remote", remote),
        lane=count("lane", lane or 0, (1 << 32) - 1),
        all_lanes=lane is None,
    )
    return ServiceCall("DropPath", request, lambda m: int(m.dropped))


def cancel_sent(local: AddressLike, destination: AddressLike) -> ServiceCall[CancelResult]:
    request = pb.CancelSentRequest(local=_end(local), destination=_end(destination))
    return ServiceCall("CancelSent", request, lambda m: CancelResult(m.cancelled, m.in_flight))


def close_socket(local: AddressLike) -> ServiceCall[None]:
    return ServiceCall("CloseSocket", pb.CloseSocketRequest(local=_end(local)), nothing)


def watch_congestion(*, current: bool) -> ServiceCall[t.CongestionNotice]:
    request = pb.WatchCongestionRequest(include_current=current)
    return ServiceCall("WatchCongestion", request, codec.notice)


def trace(
    source: AddressLike | None,
    destination: AddressLike | None,
    either: Iterable[AddressLike],
    every: int,
) -> ServiceCall[t.TraceReport]:
    if isinstance(either, str):
        raise make(InvalidArgument, f"either {either!r}: want a list of addresses")
    request = pb.TraceRequest(
        source=_part(source),
        destination=_part(destination),
        either=[_part(e) for e in either],
        every=count("every", every, (1 << 64) - 1),
    )
    return ServiceCall("Trace", request, codec.trace)
