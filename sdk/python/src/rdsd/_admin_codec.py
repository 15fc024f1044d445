"""Messages of the administration service as the values of _admin_types."""

from __future__ import annotations

from datetime import UTC, datetime

from . import _admin_types as t
from ._codec import address
from ._errors import ProtocolError, make
from ._types import Address, OutcomeKind, unpack_host
from ._volumes_codec import path as volume_path
from ._volumes_codec import seconds
from ._volumes_types import PathState, VolumePath
from ._words import word
from .v1 import rdsd_pb2 as pb

PORTS = 1 << 16


def host(packed: bytes) -> str:
    """An address; none is empty."""
    try:
        return unpack_host(packed) if packed else ""
    except ValueError as err:
        raise make(ProtocolError, f"the daemon sent {err}") from None


def end(m: pb.Endpoint) -> Address:
    """An endpoint; one without an address is ("", port)."""
    return address(m) if m.address else Address("", m.port)


def when(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC)


def problem(m: pb.Problem) -> t.Problem:
    return t.Problem(
        code=m.code,
        severity=word(t.ProblemSeverity, m.severity),
        subject=m.subject,
        text=m.text,
        remedy=m.remedy,
        since=seconds(m.since_ns),
    )


def budget(m: pb.Budget) -> t.Budget:
    return t.Budget(m.name, m.used, m.limit, m.refused)


def status(m: pb.Status) -> t.Status:
    return t.Status(
        version=m.version,
        instance=m.instance,
        state=m.state,
        uptime=seconds(m.uptime_ns),
        local_addresses=tuple(map(host, m.local_address)),
        rds_port=m.rds_port,
        peers=m.peers,
        peers_up=m.peers_up,
        sockets=m.sockets,
        memory_used=m.memory_used_bytes,
        memory_budget=m.memory_budget_bytes,
        config_file=m.config_file,
        budgets=tuple(map(budget, m.budget)),
        http_address=m.http_address,
        healthy=m.healthy,
        severity=word(t.ProblemSeverity, m.severity),
        problems=tuple(map(problem, m.problem)),
    )


def lane(m: pb.Path) -> t.PeerLane:
    return t.PeerLane(
        index=m.index,
        state=word(t.LaneState, m.state),
        next_tx_seq=m.next_tx_seq,
        next_rx_seq=m.next_rx_seq,
        local_endpoint=m.local_endpoint,
        remote_endpoint=m.remote_endpoint,
        up_for=seconds(m.up_since_ns),
        reconnects=m.reconnects,
        last_error=m.last_error,
        sent_bytes=m.sent_bytes,
        received_bytes=m.received_bytes,
        send_credits=m.send_credits,
        read_paused=m.read_paused,
        error_age=seconds(m.error_age_ns),
        attempts=m.attempts,
        retry_in=seconds(m.retry_in_ns),
    )


#: From the worst to the best: a peer is in the best state of its lanes.
_STATES = [
    t.LaneState.UNKNOWN,
    t.LaneState.DOWN,
    t.LaneState.ERROR,
    t.LaneState.DISCONNECTING,
    t.LaneState.CONNECTING,
    t.LaneState.UP,
]

#: What the state of a volume's path would be of a lane; every other one is down.
_AS_LANE = {
    PathState.CONNECTED: t.LaneState.UP,
    PathState.CONNECTING: t.LaneState.CONNECTING,
    PathState.RECONNECTING: t.LaneState.CONNECTING,
}


def _overall(
    lanes: tuple[t.PeerLane, ...], paths: tuple[VolumePath, ...]
) -> tuple[t.LaneState, str]:
    """The best state and the first error of the lanes, without any of the volumes' paths."""
    found = [(x.state, x.last_error) for x in lanes]
    found = found or [(_AS_LANE.get(p.state, t.LaneState.DOWN), p.last_error) for p in paths]
    states = [state for state, _ in found]
    best = max(states, key=_STATES.index, default=t.LaneState.UNKNOWN)
    return best, next((error for _, error in found if error), "")


def peer(m: pb.Peer) -> t.Peer:
    lanes = tuple(map(lane, m.path))
    paths = tuple(map(volume_path, m.volume_path))
    state, last_error = _overall(lanes, paths)
    return t.Peer(
        local=host(m.local),
        remote=host(m.remote),
        kind=word(t.PeerKind, m.kind),
        authenticated=m.authenticated,
        state=state,
        incarnation=m.incarnation,
        lane_count=m.lanes,
        rtt=seconds(m.rtt_ns),
        queued=m.queued,
        queued_bytes=m.queued_bytes,
        unacked=m.unacked,
        unacked_bytes=m.unacked_bytes,
        held=m.held,
        congested_ports=m.congested_ports,
        last_error=last_error,
        lanes=lanes,
        volume_paths=paths,
    )


def peers(m: pb.ListPeersResponse) -> tuple[t.Peer, ...]:
    return tuple(map(peer, m.peer))


def socket(m: pb.SocketInfo) -> t.SocketInfo:
    return t.SocketInfo(
        local=end(m.local),
        uid=m.uid,
        pid=m.pid,
        label=m.label,
        send_buffer=m.send_buffer_bytes,
        send_queued_bytes=m.send_queued_bytes,
        recv_buffer=m.recv_buffer_bytes,
        recv_queued_bytes=m.recv_queued_bytes,
        recv_hard_limit=m.recv_hard_limit_bytes,
        recv_queued=m.recv_queued,
        congested=m.congested,
        accepted=m.accepted,
        delivered=m.delivered,
        cancelled=m.cancelled,
        failed=m.failed,
        unknown=m.unknown,
        in_flight=m.in_flight,
        received=m.received,
        waiting_sends=m.waiting_sends,
        inode=m.inode,
        ring_bytes=m.ring_bytes,
        ring_max=m.ring_max_bytes,
        program=m.program,
    )


def sockets(m: pb.ListSocketsResponse) -> tuple[t.SocketInfo, ...]:
    return tuple(map(socket, m.socket))


def queued(m: pb.QueuedDatagram) -> t.QueuedDatagram:
    return t.QueuedDatagram(
        queue=word(t.QueueKind, m.kind),
        local=end(m.local),
        remote=end(m.remote),
        seq=m.seq,
        bytes=m.bytes,
        lane=m.lane,
    )


def queue(m: pb.ListQueueResponse) -> t.QueueList:
    return t.QueueList(tuple(map(queued, m.datagram)), m.truncated)


def counters(m: pb.GetCountersResponse) -> tuple[t.Counter, ...]:
    return tuple(t.Counter(c.name, c.value, c.help) for c in m.counter)


def culprit(m: pb.Culprit) -> t.Culprit:
    return t.Culprit(end(m.source), m.queued_datagrams, m.queued_bytes)


def congested(m: pb.CongestedPort) -> t.CongestedPort:
    return t.CongestedPort(
        endpoint=end(m.endpoint),
        local=m.local,
        congested_for=seconds(m.since_ns),
        queued_bytes=m.queued_bytes,
        reader_uid=m.reader_uid,
        reader_pid=m.reader_pid,
        waiting_senders=m.waiting_senders,
        blocked=m.blocked,
        culprits=tuple(map(culprit, m.culprit)),
    )


def congestion(m: pb.ListCongestionResponse) -> t.CongestedPorts:
    ports = t.CongestedPorts(map(congested, m.port))
    ports.left_out = m.left_out
    return ports


def port_history(m: pb.PortHistory) -> t.PortHistory:
    return t.PortHistory(
        endpoint=end(m.endpoint),
        local=m.local,
        congested=m.congested,
        congested_for=seconds(m.congested_ns),
        times=m.times,
        slots=tuple(t.PortSlot(i, ms / 1e3) for i, ms in zip(m.slot, m.slot_ms, strict=False)),
        reader_uid=m.reader_uid,
        reader_pid=m.reader_pid,
        reader_program=m.reader_program,
        culprits=tuple(map(culprit, m.culprit)),
        congested_ports=m.congested_ports,
    )


def history(m: pb.CongestionHistory) -> t.CongestionHistory:
    return t.CongestionHistory(
        end=when(m.end_unix_ns),
        slot=seconds(m.slot_ns),
        slots=m.slots,
        kept=seconds(m.kept_ns),
        ports=tuple(map(port_history, m.port)),
        others=port_history(m.others),
    )


def congestion_map(m: pb.CongestionMap) -> t.CongestionMap:
    ports = (
        m.first_port + 8 * i + bit
        for i, byte in enumerate(m.bitmap)
        for bit in range(8)
        if byte >> bit & 1
    )
    return t.CongestionMap(
        node=host(m.address),
        local=m.local,
        seen_from=host(m.seen_from),
        ports=tuple(port for port in ports if port < PORTS),
    )


def congestion_maps(m: pb.ListCongestionMapsResponse) -> t.CongestionMaps:
    return t.CongestionMaps(tuple(map(congestion_map, m.map)), m.left_out)


def notice(m: pb.CongestionNotice) -> t.CongestionNotice:
    return t.CongestionNotice(when(m.unix_ns), end(m.endpoint), m.local, m.congested)


def logged(m: pb.LoggedError) -> t.LoggedError:
    return t.LoggedError(
        severity=t.ProblemSeverity.WARNING if m.warning else t.ProblemSeverity.ERROR,
        message=m.message,
        subject=m.subject,
        error=m.error,
        first=when(m.first_unix_ns),
        last=when(m.last_unix_ns),
        count=m.count,
    )


def errors(m: pb.ListErrorsResponse) -> t.ErrorLog:
    return t.ErrorLog(tuple(map(logged, m.error)), m.forgotten)


def pong(m: pb.PingResponse) -> t.Pong:
    return t.Pong(host(m.local), seconds(m.rtt_ns))


def _outcome(kind: int) -> OutcomeKind | None:
    if kind == pb.OUTCOME_KIND_UNSPECIFIED:
        return None
    try:
        return OutcomeKind(kind)
    except ValueError:  # a kind newer than this package
        return OutcomeKind.UNKNOWN


def trace_event(m: pb.TraceEvent) -> t.TraceEvent:
    return t.TraceEvent(
        stage=word(t.TraceStage, m.stage),
        time_ns=m.unix_ns,
        source=end(m.source),
        destination=end(m.destination),
        lane=m.lane,
        here=m.here,
        seq=m.sequence,
        incarnation=m.incarnation,
        datagrams=m.datagrams,
        member=m.member,
        bytes=m.bytes,
        posted_ns=m.posted_unix_ns,
        accepted_ns=m.accepted_unix_ns,
        received_ns=m.received_unix_ns,
        outcome=_outcome(m.outcome),
        reason=m.reason,
    )


def trace(m: pb.TraceReport) -> t.TraceReport:
    return t.TraceReport(
        clock=m.start.clock,
        local_addresses=tuple(map(host, m.start.local_address)),
        events=tuple(map(trace_event, m.event)),
        dropped=m.dropped,
    )
