"""The administration of a daemon, for threads."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

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
from ._surface import ForkGuard
from ._sync_service import Service, Watch
from ._target import Timeout
from ._types import AddressLike, CancelResult
from .v1 import rdsd_pb2_grpc as rpc


class Admin(Service):
    """What a daemon does with datagrams: its peers, its sockets and its queues, of all clients.

    From ``Client.admin``. Looking needs no right beyond the daemon's socket; drop_lanes,
    cancel_sent, close_socket and trace need an administrator: root, the daemon's own user or
    one of api.admin_uids. Every timeout is in seconds, a timedelta, or None to wait for the
    daemon; past it TimedOut is raised, and what was begun may still be done.
    """

    def __init__(self, channel: grpc.Channel, target: str, guard: ForkGuard) -> None:
        super().__init__(rpc.AdminStub(channel), target, guard)

    def status(
        self,
        *,
        timeout: Timeout = None,
    ) -> Status:
        """The daemon as a whole: version, addresses, budgets, and what is not as it should be."""
        return self._do(calls.status(), timeout)

    def peers(
        self,
        *,
        local: HostLike = "",
        remote: HostLike = "",
        timeout: Timeout = None,
    ) -> tuple[Peer, ...]:
        """The peers with these addresses (by default all), with their lanes and volume paths."""
        return self._do(calls.peers(local=local, remote=remote), timeout)

    def sockets(
        self,
        *,
        timeout: Timeout = None,
    ) -> tuple[SocketInfo, ...]:
        """The sockets of all clients."""
        return self._do(calls.sockets(), timeout)

    def queue(
        self,
        kind: str = "",
        limit: int = 0,
        *,
        timeout: Timeout = None,
    ) -> QueueList:
        """At most limit datagrams (by default 1000) that wait in the queues of a kind: "send",
        "retrans", "recv", by default all."""
        return self._do(calls.queue(kind, limit), timeout)

    def counters(
        self,
        remote: HostLike = "",
        *,
        timeout: Timeout = None,
    ) -> tuple[Counter, ...]:
        """The counters of the daemon, under the names of the kernel's rds-info and in its order,
        those of rdsd alone after them; with remote those of that peer, NotFound without one."""
        return self._do(calls.counters(remote), timeout)

    def congestion(
        self,
        *,
        timeout: Timeout = None,
    ) -> CongestedPorts:
        """The ports that are congested, as seen from the daemon's node."""
        return self._do(calls.congestion(), timeout)

    def congestion_history(
        self,
        port: AddressLike | None = None,
        *,
        timeout: Timeout = None,
    ) -> CongestionHistory:
        """The last hour of congestion, of one port or of all, longest congested first."""
        return self._do(calls.congestion_history(port), timeout)

    def congestion_maps(
        self,
        node: HostLike = "",
        *,
        timeout: Timeout = None,
    ) -> CongestionMaps:
        """Which of the 65,536 ports of nodes are congested, of one node or of all that have one,
        those with most first."""
        return self._do(calls.congestion_maps(node), timeout)

    def errors(
        self,
        *,
        timeout: Timeout = None,
    ) -> ErrorLog:
        """The distinct warnings and errors of the daemon's log."""
        return self._do(calls.errors(), timeout)

    def config(
        self,
        *,
        timeout: Timeout = None,
    ) -> str:
        """The configuration as it is now: a file in TOML that loads again, in which each line says
        where its value came from. What is secret is not in it."""
        return self._do(calls.config(), timeout)

    def ping(
        self,
        remote: HostLike,
        *,
        local: HostLike = "",
        within: Timeout = None,
        timeout: Timeout = None,
    ) -> Pong:
        """Sends an RDS ping to a node and returns its answer. Every rdsd and every kernel answers;
        no application is needed there. within: how long the daemon waits for the answer, 5 s by
        default; past it TimedOut. Unreachable: the node cannot be reached, or is not allowed as a
        peer."""
        return self._do(calls.ping(remote, local=local, within=within), timeout)

    def drop_lanes(
        self,
        remote: HostLike,
        *,
        local: HostLike = "",
        lane: int | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Drops the links of all lanes to a peer, or of one, as a network fault does, and returns
        how many. They come back by themselves, and what was not acknowledged is sent again.
        NotFound: there is no such peer."""
        return self._do(calls.drop_lanes(remote, local=local, lane=lane), timeout)

    def cancel_sent(
        self,
        local: AddressLike,
        destination: AddressLike,
        *,
        timeout: Timeout = None,
    ) -> CancelResult:
        """Drops what the socket bound to local has queued to a destination (port 0: to every port
        of its address). NotFound: nobody has bound local."""
        return self._do(calls.cancel_sent(local, destination), timeout)

    def close_socket(
        self,
        local: AddressLike,
        *,
        timeout: Timeout = None,
    ) -> None:
        """Closes the socket that an application has bound to local: what it had queued is
        cancelled, its calls raise ConnectionReset once what had arrived was received, and it
        does not bind itself again."""
        self._do(calls.close_socket(local), timeout)

    def watch_congestion(
        self,
        *,
        current: bool = False,
        timeout: Timeout = None,
    ) -> NoticeWatch:
        """The ports that become congested or clear, of any socket of the daemon, from now on;
        current: first those that are congested already, of which a change meanwhile is told twice
        and never missed. timeout is for the daemon to begin."""
        self._guard.check()
        return NoticeWatch(
            self._stub, self._target, calls.watch_congestion(current=current), timeout
        )

    def trace(
        self,
        source: AddressLike | None = None,
        destination: AddressLike | None = None,
        *,
        either: Iterable[AddressLike] = (),
        every: int = 1,
        timeout: Timeout = None,
    ) -> TraceWatch:
        """The stages of datagrams from now on. Of an address or a port what is missing is any:
        "10.0.0.1", ":4000", ("", 4000). either: each of these, at most 4, is the source or the
        destination. every: of the messages, those whose sequence is a multiple of it; the same
        arguments choose the same datagrams at both nodes. Who reads too slowly misses events,
        which are counted. timeout is for the daemon to begin. TooMany: it has enough traces."""
        self._guard.check()
        return TraceWatch(
            self._stub, self._target, calls.trace(source, destination, either, every), timeout
        )


class NoticeWatch(Watch[CongestionNotice]):
    """An iterator of CongestionNotice, from Admin.watch_congestion; close it when done.

    It ends with DaemonUnavailable when the daemon does, and with TooMany when changes came faster
    than they were read and some are lost; it stops when closed.
    """


class TraceWatch(Watch[TraceReport]):
    """An iterator of TraceReport, from Admin.trace; close it when done.

    It ends with DaemonUnavailable when the daemon does, and stops when closed.
    """
