"""rdsd: ordered, reliable datagrams to any port on any node, through the local daemon.

``rdsd.Client`` and ``rdsd.Socket`` are for threads, ``rdsd.aio`` has the same
surface for asyncio. Every error derives from RdsError, an OSError whose errno
is the one Linux RDS sockets use.
"""

from ._errors import (
    ERRNO_TABLE,
    AddressInUse,
    AddressNotAvailable,
    BatchError,
    Cancelled,
    Closed,
    Congested,
    ConnectionReset,
    DaemonUnavailable,
    DestinationRequired,
    ErrnoRow,
    FamilyMismatch,
    InvalidArgument,
    NotBound,
    NotFound,
    NotSupported,
    OutOfBudget,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    RdsError,
    Refused,
    TimedOut,
    TooLarge,
    TooMany,
    TransportFailed,
    Unreachable,
    WouldBlock,
    error_from_errno,
)
from ._front_end import FrontEnd
from ._grpc import from_grpc
from ._slots import AsyncSlot, Borrowed, Lease, Slot
from ._sync import Client, CongestionWatch, Socket
from ._target import Timeout
from ._types import (
    Address,
    AddressLike,
    CancelResult,
    CongestionChange,
    CongestionEvent,
    Datagram,
    Outcome,
    OutcomeKind,
    Payload,
)

__version__ = "0.1.0"

__all__ = [
    "ERRNO_TABLE",
    "Address",
    "AddressInUse",
    "AddressLike",
    "AddressNotAvailable",
    "AsyncSlot",
    "BatchError",
    "Borrowed",
    "CancelResult",
    "Cancelled",
    "Client",
    "Closed",
    "Congested",
    "CongestionChange",
    "CongestionEvent",
    "CongestionWatch",
    "ConnectionReset",
    "DaemonUnavailable",
    "Datagram",
    "DestinationRequired",
    "ErrnoRow",
    "FamilyMismatch",
    "FrontEnd",
    "InvalidArgument",
    "Lease",
    "NotBound",
    "NotFound",
    "NotSupported",
    "OutOfBudget",
    "Outcome",
    "OutcomeKind",
    "Payload",
    "PermissionDenied",
    "ProtocolError",
    "RateLimited",
    "RdsError",
    "Refused",
    "Slot",
    "Socket",
    "TimedOut",
    "Timeout",
    "TooLarge",
    "TooMany",
    "TransportFailed",
    "Unreachable",
    "WouldBlock",
    "error_from_errno",
    "from_grpc",
]
