"""The administration of a daemon, for asyncio: the surface of _sync_admin."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

from . import _admin_calls as calls
from ._admin_calls import HostLike
from ._admin_types import (
    CongestedPorts,
    CongestionHistory,
    CongestionMaps,
    CongestionNotice,
    Counter,
    ErrorLog,
    Peer,
    Pong,
    QueueList,
    SocketInfo,
    Status,
    TraceReport,
)
from ._aio_service import Service, Watch
from ._surface import ForkGuard
from ._target import Timeout, seconds
from ._types import AddressLike, CancelResult
from .v1 import rdsd_pb2_grpc as rpc


class Admin(Service):
    """As rdsd.Admin, inside one event loop. A cancelled ``await`` leaves open whether what was
    begun is done."""

    def __init__(self, channel: grpc.aio.Channel, target: str, guard: ForkGuard) -> None:
        super().__init__(rpc.AdminStub(channel), target, guard)

    async def status(
        self,
        *,
        timeout: Timeout = None,
    ) -> Status:
        """As rdsd.Admin.status."""
        return await self._do(calls.status(), timeout)

    async def peers(
        self,
        *,
        local: HostLike = "",
        remote: HostLike = "",
        timeout: Timeout = None,
    ) -> tuple[Peer, ...]:
        """As rdsd.Admin.peers."""
        return await self._do(calls.peers(local=local, remote=remote), timeout)

    async def sockets(
        self,
        *,
        timeout: Timeout = None,
    ) -> tuple[SocketInfo, ...]:
        """As rdsd.Admin.sockets."""
        return await self._do(calls.sockets(), timeout)

    async def queue(
        self,
        kind: str = "",
        limit: int = 0,
        *,
        timeout: Timeout = None,
    ) -> QueueList:
        """As rdsd.Admin.queue."""
        return await self._do(calls.queue(kind, limit), timeout)

    async def counters(
        self,
        remote: HostLike = "",
        *,
        timeout: Timeout = None,
    ) -> tuple[Counter, ...]:
        """As rdsd.Admin.counters."""
        return await self._do(calls.counters(remote), timeout)

    async def congestion(
        self,
        *,
        timeout: Timeout = None,
    ) -> CongestedPorts:
        """As rdsd.Admin.congestion."""
        return await self._do(calls.congestion(), timeout)

    async def congestion_history(
        self,
        port: AddressLike | None = None,
        *,
        timeout: Timeout = None,
    ) -> CongestionHistory:
        """As rdsd.Admin.congestion_history."""
        return await self._do(calls.congestion_history(port), timeout)

    async def congestion_maps(
        self,
        node: HostLike = "",
        *,
        timeout: Timeout = None,
    ) -> CongestionMaps:
        """As rdsd.Admin.congestion_maps."""
        return await self._do(calls.congestion_maps(node), timeout)

    async def errors(
        self,
        *,
        timeout: Timeout = None,
    ) -> ErrorLog:
        """As rdsd.Admin.errors."""
        return await self._do(calls.errors(), timeout)

    async def config(
        self,
        *,
        timeout: Timeout = None,
    ) -> str:
        """As rdsd.Admin.config."""
        return await self._do(calls.config(), timeout)

    async def ping(
        self,
        remote: HostLike,
        *,
        local: HostLike = "",
        within: Timeout = None,
        timeout: Timeout = None,
    ) -> Pong:
        """As rdsd.Admin.ping."""
        return await self._do(calls.ping(remote, local=local, within=within), timeout)

    async def drop_lanes(
        self,
        remote: HostLike,
        *,
        local: HostLike = "",
        lane: int | None = None,
        timeout: Timeout = None,
    ) -> int:
        """As rdsd.Admin.drop_lanes."""
        return await self._do(calls.drop_lanes(remote, local=local, lane=lane), timeout)

    async def cancel_sent(
        self,
        local: AddressLike,
        destination: AddressLike,
        *,
        timeout: Timeout = None,
    ) -> CancelResult:
        """As rdsd.Admin.cancel_sent."""
        return await self._do(calls.cancel_sent(local, destination), timeout)

    async def close_socket(
        self,
        local: AddressLike,
        *,
        timeout: Timeout = None,
    ) -> None:
        """As rdsd.Admin.close_socket."""
        await self._do(calls.close_socket(local), timeout)

    async def watch_congestion(
        self,
        *,
        current: bool = False,
        timeout: Timeout = None,
    ) -> NoticeWatch:
        """As rdsd.Admin.watch_congestion."""
        self._guard.check()
        call = calls.watch_congestion(current=current)
        watch = NoticeWatch(self._stub, self._target, call)
        await watch._begin(seconds(timeout))
        return watch

    async def trace(
        self,
        source: AddressLike | None = None,
        destination: AddressLike | None = None,
        *,
        either: Iterable[AddressLike] = (),
        every: int = 1,
        timeout: Timeout = None,
    ) -> TraceWatch:
        """As rdsd.Admin.trace."""
        self._guard.check()
        watch = TraceWatch(
            self._stub, self._target, calls.trace(source, destination, either, every)
        )
        await watch._begin(seconds(timeout))
        return watch


class NoticeWatch(Watch[CongestionNotice]):
    """An async iterator of CongestionNotice, from Admin.watch_congestion; close it when done.

    It ends with DaemonUnavailable when the daemon does, and with TooMany when changes came faster
    than they were read and some are lost; it stops when closed.
    """


class TraceWatch(Watch[TraceReport]):
    """An async iterator of TraceReport, from Admin.trace; close it when done.

    It ends with DaemonUnavailable when the daemon does, and stops when closed.
    """
