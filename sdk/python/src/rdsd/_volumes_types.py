"""The plain values of volumes, shared by both fronts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

from ._errors import RdsError
from ._words import Word


class VolumeKind(Word):
    """What holds the bytes of an export."""

    UNSPECIFIED = ""
    FILE = "file"
    BLOCK_DEVICE = "block"
    MEMORY = "memory"
    """Gone when the daemon ends."""


class VolumeAccess(Word):
    """How a volume is opened."""

    UNSPECIFIED = ""
    READ_ONLY = "ro"
    """Any number at a time."""
    READ_WRITE = "rw"
    """One writer, unless the export is shared."""
    MIGRATION = "migration"
    """Writes, beside one other writer."""


class VolumeAttach(Word):
    """What a mapping gives to the programs of this node."""

    UNSPECIFIED = ""
    SOCKET = "socket"
    """An NBD export on a Unix socket."""
    NBD = "nbd"
    """A kernel device, /dev/nbdN."""


class VolumePolicy(Word):
    """How requests are spread over the paths of a session. A daemon may have others; they
    are asked for, and told, by name."""

    UNSPECIFIED = ""
    ROUND_ROBIN = "round-robin"
    MIN_INFLIGHT = "min-inflight"
    MIN_LATENCY = "min-latency"


class VolumeOnLoss(Word):
    """What requests do while no path is up."""

    UNSPECIFIED = ""
    WAIT = "wait"
    ERROR = "error"
    """Wait for the loss timeout, then fail."""


class VolumeUnfenced(Word):
    """What becomes of requests in flight on a lost path to a kernel's server, which cannot be
    asked to end them."""

    UNSPECIFIED = ""
    AFTER = "after"
    """They go to another path when the server has ended the lost one by itself."""
    NOW = "now"
    """They go to another path at once: an old write may go over a newer one."""
    WAIT = "wait"
    """They wait until the same path is back."""


class VolumeRole(Word):
    """What this node is in a session."""

    UNSPECIFIED = ""
    CLIENT = "client"
    """It maps."""
    SERVER = "server"
    """It exports."""


class VolumeOrigin(Word):
    """Where an export comes from."""

    UNSPECIFIED = ""
    CONFIG = "config"
    CALL = "call"
    ROOT = "root"
    """Found below an export root."""


class ExportState(Word):
    """The state of an export."""

    UNSPECIFIED = ""
    OPEN = "open"
    CLOSED = "closed"
    """The store is opened when a client comes."""
    FAILED = "failed"
    """The store could not be opened."""


class MappingState(Word):
    """The state of a mapping, in the words of the kernel's RNBD client."""

    UNSPECIFIED = ""
    INIT = "init"
    """Has not been open yet."""
    OPEN = "open"
    CLOSED = "closed"
    """No path, or the other node has closed it; opened again by itself."""
    UNMAPPED = "unmapped"


class PathState(Word):
    """The state of a path of a session."""

    UNSPECIFIED = ""
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    """Lost, or never there; tried again."""
    DISCONNECTED = "disconnected"
    """By an administrator, or given up."""
    CLOSING = "closing"
    FENCING = "fencing"
    """What was under way before is being ended; connected next."""
    REMOVED = "removed"


class Severity(Word):
    """How bad a finding is."""

    UNSPECIFIED = ""
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class VolumeEventKind(Word):
    """What an event is about."""

    UNSPECIFIED = ""
    GAP = "gap"
    """``count`` events are missing here."""
    SESSION = "session"
    PATH = "path"
    MAPPING = "mapping"
    EXPORT = "export"
    FAILOVER = "failover"
    """``count`` requests moved to another path."""
    RESIZE = "resize"
    ERROR = "error"


class PathSpec(NamedTuple):
    """A path from an address of this node to one of another.

    Both are addresses or host names, perhaps with a port; an empty ``src`` is chosen by
    the system. A path that is there already is named by its ends: src, ports, or both may
    be left out where what is left fits one path only.
    """

    src: str
    dst: str
    transport: str = ""
    """"tcp" or "ib" (RDMA); empty: TCP, and of a path that is there already, either."""


#: What every call takes as a path: a PathSpec, ("SRC", "DST"), "SRC,DST" or "DST", in words with
#: "tcp:" or "ib:" before it. A kernel's words are understood too: "ip:SRC@ip:DST", and "gid:"
#: before the GID of an end.
PathLike: TypeAlias = str | tuple[str, str] | PathSpec


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A volume: its size, its limits and what it can do. Lengths are in bytes."""

    size: int
    logical_block: int
    """Every offset and length is a multiple of it."""
    physical_block: int
    """What can be written without reading first."""
    max_io: int
    """Largest read or write that travels whole."""
    max_segments: int
    max_discard: int
    """0: no discard."""
    discard_granularity: int
    discard_alignment: int
    max_write_zeroes: int
    """0: not supported."""
    fast_zero: bool
    rotational: bool
    read_only: bool
    write_cache: bool
    """A completed write is durable only after a flush."""
    fua: bool
    multi_conn: bool
    """A flush covers what completed for any of its users."""


@dataclass(frozen=True, slots=True)
class VolumeOp:
    """What happened to the requests of one operation. Times are seconds; the latencies are
    at most a quarter too high."""

    op: str
    """read, write, flush, discard or write zeroes."""
    submitted: int
    completed: int
    errors: int
    """Of the completed."""
    bytes: int
    """Of those without error."""
    time: float
    """Sum of all."""
    p50: float
    p99: float
    p999: float


@dataclass(frozen=True, slots=True)
class VolumeUser:
    """A session that has an export open."""

    session: str
    peer: str
    access: VolumeAccess
    open_for: float
    """Seconds."""
    kernel: bool
    """A kernel's, which learns another size of the volume only when it opens it again."""


@dataclass(frozen=True, slots=True)
class Export:
    """A volume this node offers."""

    name: str
    kind: VolumeKind
    path: str
    read_only: bool
    shared: bool
    allow_addresses: tuple[str, ...]
    allow_sessions: tuple[str, ...]
    persist: bool
    origin: VolumeOrigin
    state: ExportState
    state_for: float
    """Seconds."""
    error: str
    """Of the store, the last; why it could not be opened."""
    info: VolumeInfo | None
    """Of the store when it was last open; None before."""
    users: tuple[VolumeUser, ...]
    ops: tuple[VolumeOp, ...]
    """Since the store was opened."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A volume of another node that is a block device here."""

    id: str
    device: str
    """What programs open: "/dev/nbd3", or the path of the Unix socket; "": there is none yet."""
    uri: str
    """Of a socket: "nbd+unix:///disk?socket=/run/rdsd/volumes/v1.sock"."""
    attach: VolumeAttach
    node: str
    name: str
    state: MappingState
    state_for: float
    """Seconds."""
    last_error: str
    info: VolumeInfo | None
    """None before it has been open."""
    access: VolumeAccess
    session: str
    session_id: str
    paths: tuple[PathSpec, ...]
    """As asked for."""
    policy: str
    queue_depth: int
    """As asked for."""
    io_timeout: float
    """Seconds."""
    loss_timeout: float
    """Seconds."""
    on_loss: VolumeOnLoss
    unfenced: VolumeUnfenced
    unfenced_after: float
    """Seconds."""
    max_reconnect_attempts: int
    """-1: without end."""
    persist: bool
    users: int
    """Connections to its socket; 1 of an attached kernel device."""
    waiting: int
    """Requests of its session that wait for a path or a permit."""
    path_count: int
    """Of its session."""
    paths_up: int
    address: PathSpec | None
    """Of a connected path."""
    ops: tuple[VolumeOp, ...]


class VolumeList(NamedTuple):
    """What list returns."""

    exports: tuple[Export, ...]
    """By name."""
    mappings: tuple[Mapping, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class RemoteVolume:
    """What another node says of a volume."""

    node: str
    name: str
    info: VolumeInfo
    queue_depth: int


@dataclass(frozen=True, slots=True)
class VolumeSession:
    """One end of a session between two nodes."""

    id: str
    name: str
    uuid: str
    role: VolumeRole
    peer: str
    """Address and port of the other node."""
    up: bool
    """A path is connected."""
    state_for: float
    """Seconds."""
    policy: str
    on_loss: VolumeOnLoss
    volumes: tuple[str, ...]
    """Ids of mappings, names of exports."""
    paths: int
    paths_up: int
    queue_depth: int
    in_flight: int
    waiting: int
    """Requests that wait for a permit or a path."""
    max_io: int
    memory: int
    """Bytes of chunks that are in memory, of a server."""
    kernel: bool
    """The other end is a kernel."""
    unfenced: VolumeUnfenced
    """Of a client, as what follows."""
    unfenced_after: float
    """Seconds."""
    unfenced_failovers: int
    """Lost paths whose requests went to another one without a fence."""
    max_reconnect_attempts: int
    """-1: without end."""


@dataclass(frozen=True, slots=True)
class VolumePath:
    """A path of a session, with its statistics as in the kernel's sysfs."""

    session: str
    session_id: str
    role: VolumeRole
    src: str
    """Address and port of the client."""
    dst: str
    """Address and port of the server."""
    state: PathState
    state_for: float
    """Seconds."""
    epoch: int
    """How often it has been connected."""
    connections: int
    cur_latency: float
    """Seconds, of the last heartbeat; 0: none yet."""
    reconnects: int
    reconnects_failed: int
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int
    in_flight: int
    failovers: int
    """Requests it took over from others."""
    last_error: str
    transport: str
    device: str
    """RDMA device of this node, the kernel's hca_name; empty: none."""
    port: int
    """Of the device, the kernel's hca_port; 0: none."""


@dataclass(frozen=True, slots=True)
class VolumeFinding:
    """One answer of check."""

    severity: Severity
    what: str
    """The id of a mapping, the name of an export, "kernel", ..."""
    text: str
    remedy: str
    """What would be right; empty when nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class VolumeEvent:
    """Something that happened. What does not apply to its kind is empty."""

    number: int
    """From 1, rising by one; anew with each start of the daemon."""
    time: datetime
    kind: VolumeEventKind
    role: VolumeRole
    session: str
    path: PathSpec | None
    mapping: str
    """Id."""
    export: str
    """Name."""
    state: str
    """Afterwards."""
    count: int
    size: int
    """Bytes."""
    took: float
    """Seconds."""
    error: RdsError | None
    text: str
    """The whole in words."""
    instance: int = 0
    """Of the daemon, another with each start; 0 of a daemon that does not tell it."""
