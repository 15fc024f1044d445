"""The plain values of administration, shared by both fronts. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ._types import Address, OutcomeKind
from ._volumes_types import VolumePath
from ._words import Word


class ProblemSeverity(Word):
    """How bad a problem, or a line of the log, is."""

    UNSPECIFIED = ""
    OK = "ok"
    """Of a status: no problem at all."""
    NOTE = "note"
    """Worth knowing; nothing fails."""
    WARNING = "warning"
    """Something waits, or is refused, or will be."""
    ERROR = "error"
    """Something does not work."""


class PeerKind(Word):
    """What the other end of a connection is."""

    UNKNOWN = "unknown"
    """It has not said yet."""
    RDSD = "rdsd"
    KERNEL_LEGACY = "kernel-legacy"
    """Linux before lanes by source port: one lane."""
    KERNEL = "kernel"
    """Linux with lanes by source port."""


class LaneState(Word):
    """The state of a lane to a peer, or of the best one it has."""

    UNKNOWN = "unknown"
    """A peer without lanes."""
    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"
    DISCONNECTING = "disconnecting"
    ERROR = "error"
    """The last attempt failed; another one comes."""


class QueueKind(Word):
    """Where a datagram waits."""

    ALL = ""
    """Asked for: every one of them."""
    SEND = "send"
    """Waiting to be sent."""
    RETRANS = "retrans"
    """Sent, not acknowledged."""
    RECV = "recv"
    """Received, not read."""


class TraceStage(Word):
    """What an event of a trace tells. The sender's node tells the first four, the
    receiver's the others."""

    UNKNOWN = ""
    """Of a newer daemon."""
    LEFT = "left"
    """Given to the link; again with the same sequence: sent again."""
    REFUSED = "refused"
    """The receiver had no room: it will be sent with another sequence."""
    DONE = "done"
    """Has its outcome."""
    NOT_ACCEPTED = "not-accepted"
    """A send that waited ended without being accepted."""
    PLACED = "placed"
    """Where its reader finds it."""
    NOT_PLACED = "not-placed"
    """For the reason."""
    READ = "read"
    """Put into the reader's stream, or released by a reader with rings."""
    DROPPED = "dropped"
    """Its socket was closed before it was read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be, and what mends it. Codes stay what they are:
    docs/operations.md has all of them."""

    code: str
    """Such as "peer-down" or "port-congested"."""
    severity: ProblemSeverity
    subject: str
    """What it is about: "peer 10.0.0.2", "limits.max_peers"; empty: the node."""
    text: str
    """What is so."""
    remedy: str
    """A command, or a line of the configuration, and when to use it."""
    since: float
    """For so long; 0: not known, or since the daemon started."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One configured limit and what is used of it."""

    name: str
    """Such as "memory", "peers", "sockets" or "handshakes"."""
    used: int
    limit: int
    refused: int
    """How often it said no."""


@dataclass(frozen=True, slots=True)
class Status:
    """A daemon as a whole."""

    version: str
    instance: int
    """Changes with every start of the daemon."""
    state: str
    """Either "serving" or "draining"."""
    uptime: float
    local_addresses: tuple[str, ...]
    """Those it speaks RDS from."""
    rds_port: int
    """TCP port of its RDS listener."""
    peers: int
    """It knows of."""
    peers_up: int
    """Of these, with a lane that is up."""
    sockets: int
    """Bound by applications."""
    memory_used: int
    memory_budget: int
    """limits.memory_bytes of the configuration."""
    config_file: str
    """Empty: none, defaults alone."""
    budgets: tuple[Budget, ...]
    http_address: str
    """Of its page, "127.0.0.1:16386" or "unix:/run/rdsd/http.sock"; empty: off."""
    healthy: bool
    """No problem is a warning or an error."""
    severity: ProblemSeverity
    """Of the worst problem."""
    problems: tuple[Problem, ...]
    """The worst first."""


@dataclass(frozen=True, slots=True)
class PeerLane:
    """One lane to a peer, with a link of its own."""

    index: int
    """From 0."""
    state: LaneState
    next_tx_seq: int
    next_rx_seq: int
    local_endpoint: str
    """Of the transport, "10.0.0.1:16385"; empty without a link."""
    remote_endpoint: str
    up_for: float
    """Since it came up; 0 when not up."""
    reconnects: int
    last_error: str
    sent_bytes: int
    received_bytes: int
    send_credits: int
    """Of rdsd peers."""
    read_paused: bool
    """A full receiver stops the link of a kernel."""
    error_age: float
    """How long ago last_error was; 0 without one."""
    attempts: int
    """In a row that brought no usable link."""
    retry_in: float
    """When it is tried again; 0: now, or it does not wait for that."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The connection between a local address and one of another node."""

    local: str
    remote: str
    kind: PeerKind
    authenticated: bool
    """False until nodes speak TLS."""
    state: LaneState
    """The best of its lanes', or of its volumes' paths if it has nothing else."""
    incarnation: int
    """Of the peer; 0 when unknown."""
    lane_count: int
    """How many both ends have agreed on."""
    rtt: float
    """Last measured; 0 when none."""
    queued: int
    """Datagrams not yet sent."""
    queued_bytes: int
    unacked: int
    """Datagrams sent, not acknowledged."""
    unacked_bytes: int
    held: int
    """Datagrams it refused for lack of room, to be sent again."""
    congested_ports: int
    """Ports of it that are marked congested."""
    last_error: str
    """Of the first lane that has one."""
    lanes: tuple[PeerLane, ...]
    """Those that were used."""
    volume_paths: tuple[VolumePath, ...]
    """Those of volumes between the two, whichever end is the client."""


@dataclass(frozen=True, slots=True)
class SocketInfo:
    """A socket that an application has bound, of any client of the daemon. ``accepted`` is
    the sum of delivered, cancelled, failed, unknown and in_flight."""

    local: Address
    uid: int
    pid: int
    label: str
    send_buffer: int
    send_queued_bytes: int
    """Accounted against the send buffer."""
    recv_buffer: int
    recv_queued_bytes: int
    recv_hard_limit: int
    recv_queued: int
    """Datagrams not read yet."""
    congested: bool
    """Its port is marked so."""
    accepted: int
    """Datagrams, as all that follow."""
    delivered: int
    cancelled: int
    failed: int
    unknown: int
    in_flight: int
    received: int
    """Read by the application."""
    waiting_sends: int
    """Calls that wait for room."""
    inode: int
    """The daemon's number of the socket."""
    ring_bytes: int
    """Memory shared with the client, in use; 0 without rings."""
    ring_max: int
    program: str
    """What the kernel calls the process pid; empty when it cannot be told."""


@dataclass(frozen=True, slots=True)
class QueuedDatagram:
    """One datagram in a queue of the daemon."""

    queue: QueueKind
    local: Address
    remote: Address
    seq: int
    bytes: int
    lane: int


class QueueList(NamedTuple):
    """What queue returns."""

    datagrams: tuple[QueuedDatagram, ...]
    truncated: bool
    """There are more than were asked for."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of the daemon, or of a peer."""

    name: str
    value: int
    help: str
    """What it counts."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A sender of what a congested port has queued."""

    source: Address
    queued_datagrams: int
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class CongestedPort:
    """A port that is congested, as seen from the daemon's node, and who is held up by it.

    Of a port of another node, what its reader has queued, who the reader is and who fills
    it are known if that node runs rdsd, and are 0 otherwise.
    """

    endpoint: Address
    local: bool
    """The reader is on this node."""
    congested_for: float
    queued_bytes: int
    reader_uid: int
    reader_pid: int
    waiting_senders: int
    """Sockets of this node that wait for it."""
    blocked: int
    """Sends refused or blocked by it so far."""
    culprits: tuple[Culprit, ...]
    """Who fills it, largest first."""


class CongestedPorts(tuple[CongestedPort, ...]):
    """What congestion returns."""

    left_out: int = 0
    """About how many more there are."""


@dataclass(frozen=True, slots=True)
class PortSlot:
    """For how long a port was congested in a slot."""

    index: int
    """0 is the oldest."""
    congested_for: float


@dataclass(frozen=True, slots=True)
class PortHistory:
    """A port in the last hour. The reader and the culprits are those last known."""

    endpoint: Address
    """Of the ports kept no more: ("", 0)."""
    local: bool
    """The reader is on this node."""
    congested: bool
    """Now."""
    congested_for: float
    """In the hour."""
    times: int
    """How often it became congested, since it is kept."""
    slots: tuple[PortSlot, ...]
    """Those in which it was congested, oldest first."""
    reader_uid: int
    """0 with reader_pid 0: not known."""
    reader_pid: int
    reader_program: str
    culprits: tuple[Culprit, ...]
    """Who filled it, largest first."""
    congested_ports: int
    """Of the ports kept no more: how many of them are congested now."""


@dataclass(frozen=True, slots=True)
class CongestionHistory:
    """The last hour of congestion, in slots of equal length of which the newest is not over.
    What comes and goes within some milliseconds may be missing."""

    end: datetime
    """Of the newest slot, by the daemon's clock."""
    slot: float
    """The length of one."""
    slots: int
    """That are kept; slot 0 is the oldest."""
    kept: float
    """For so long it has been kept: less than the slots after a start."""
    ports: tuple[PortHistory, ...]
    """Longest congested first; bounded."""
    others: PortHistory
    """The ports that are kept no more, together: their times are added."""


@dataclass(frozen=True, slots=True)
class CongestionMap:
    """Which of the 65,536 ports of a node are congested."""

    node: str
    local: bool
    """This node."""
    seen_from: str
    """The address of this node whose peer it is."""
    ports: tuple[int, ...]
    """Rising."""


@dataclass(frozen=True, slots=True)
class CongestionMaps:
    """The maps of nodes that have a congested port, at most 64 of them."""

    maps: tuple[CongestionMap, ...]
    """Those with most ports first."""
    left_out: int
    """Nodes that have a congested port and no map here."""


@dataclass(frozen=True, slots=True)
class CongestionNotice:
    """A port became congested or clear."""

    time: datetime
    endpoint: Address
    local: bool
    """The reader is on this node."""
    congested: bool


@dataclass(frozen=True, slots=True)
class LoggedError:
    """A warning or an error of the daemon's log, however often it was logged: lines that say
    the same of the same thing are one."""

    severity: ProblemSeverity
    message: str
    """What the line says."""
    subject: str
    """Of what: "peer=10.0.0.2 path=0"; may be empty."""
    error: str
    """Why, as the last line said; may be empty."""
    first: datetime
    """By the daemon's clock."""
    last: datetime
    count: int
    """Lines, with those that log.lines_per_second left out."""


@dataclass(frozen=True, slots=True)
class ErrorLog:
    """What the daemon's log has said of errors."""

    errors: tuple[LoggedError, ...]
    """The last one first."""
    forgotten: int
    """Distinct errors that had to make room for others."""


class Pong(NamedTuple):
    """The answer to a ping."""

    local: str
    """Where the ping left from."""
    rtt: float


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One stage of one datagram. Source, destination, incarnation, lane, here and seq name it
    at both nodes. Times are nanoseconds since 1970 by the clock of the daemon that tells
    them, 0 when not known: those of two daemons compare only if their clocks do."""

    stage: TraceStage
    time_ns: int
    source: Address
    destination: Address
    lane: int
    here: bool
    """It stayed at this address: no lane, and seq counts those."""
    seq: int
    """0: it never had one."""
    incarnation: int
    """The sender's; 0: a kernel's."""
    datagrams: int
    """That the message carries."""
    member: int
    """Of them, which one this is, from 0."""
    bytes: int
    """Payload of the message."""
    posted_ns: int
    accepted_ns: int
    received_ns: int
    outcome: OutcomeKind | None
    """Of done."""
    reason: str
    """Of what did not go well."""


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What a daemon has to tell of a trace at a time. The first has no events."""

    clock: str
    """Of the first: daemons that say the same have the same clock."""
    local_addresses: tuple[str, ...]
    """Of the first."""
    events: tuple[TraceEvent, ...]
    dropped: int
    """Events so far that found no room: the caller reads too slowly."""
