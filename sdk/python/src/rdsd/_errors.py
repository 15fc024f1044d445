"""Typed errors: one class for each errno of the RDS interface.

Every error derives from OSError and carries the Linux errno the daemon, the
kernel's own RDS sockets and the Go SDK use for the same cause. The table is
``rdsd/v1/errno.json``, a copy of the one the daemon reads.
"""

from __future__ import annotations

import copy
import errno as _errno
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources


class RdsError(OSError):
    """Base of every error of this package. ``errno`` is a Linux number."""

    errno: int
    strerror: str
    undecided: bool = False
    """A send ended without the daemon's answer: the datagram may have been
    accepted, and must not be taken for refused."""

    def __str__(self) -> str:
        # Only of what somebody else raises, a test's fake perhaps, there may be none.
        said: str | None = self.strerror
        text = super().__str__() if said is None else said
        return f"{text} (it may have been accepted)" if self.undecided else text


class WouldBlock(RdsError, BlockingIOError):
    """EAGAIN: the send buffer is full."""


class Congested(RdsError):
    """ENOBUFS: the destination port is congested; watch_congestion says when it clears."""


class TooLarge(RdsError):
    """EMSGSIZE: larger than the send buffer or 1 MiB."""


class TimedOut(RdsError, TimeoutError):
    """ETIMEDOUT: the deadline passed."""


class Cancelled(RdsError):
    """ECANCELED: cancelled before it left."""


class TransportFailed(RdsError):
    """EIO: the transport failed."""


class NotBound(RdsError):
    """ENOTCONN: the socket is not bound."""


class InvalidArgument(RdsError, ValueError):
    """EINVAL: an argument is wrong; the text says which."""


class AddressInUse(RdsError):
    """EADDRINUSE: another socket owns this address and port."""


class AddressNotAvailable(RdsError):
    """EADDRNOTAVAIL: not an address of this daemon."""


class PermissionDenied(RdsError, PermissionError):
    """EACCES: this user may not do that."""


class OutOfBudget(RdsError):
    """ENOMEM: a configured budget of the daemon is spent."""


class FamilyMismatch(RdsError):
    """EOPNOTSUPP: IPv4 and IPv6 do not mix."""


class DestinationRequired(RdsError):
    """EDESTADDRREQ: a destination address and port are needed."""


class Unreachable(RdsError):
    """EHOSTUNREACH: the peer is not reachable or not allowed."""


class Refused(RdsError, ConnectionRefusedError):
    """ECONNREFUSED: the peer has no such port."""


class ConnectionReset(RdsError, ConnectionResetError):
    """ECONNRESET: the connection was reset."""


class DaemonUnavailable(RdsError, BrokenPipeError):
    """ESHUTDOWN: no daemon answers, or it is shutting down or restarted."""


class Closed(RdsError):
    """EBADF: the socket is closed."""


class ProtocolError(RdsError):
    """EPROTO: the other side broke the protocol."""


class TooMany(RdsError):
    """EMFILE: a configured number is reached."""


class NotFound(RdsError, FileNotFoundError):
    """ENOENT: no such object."""


class RateLimited(RdsError):
    """EUSERS: too many calls from this user."""


class NotSupported(RdsError):
    """ENOSYS: not supported."""


class Exists(RdsError, FileExistsError):
    """EEXIST: a volume, mapping or path of that name is there already."""


class Busy(RdsError):
    """EBUSY: the volume is in use."""


class Owned(RdsError, PermissionError):
    """EPERM: another session writes this volume, or bears this name."""


class ReadOnly(RdsError):
    """EROFS: the volume may only be read."""


class NoSpace(RdsError):
    """ENOSPC: the store of the volume is full."""


class Already(RdsError):
    """EALREADY: the path or volume is in that state already."""


class Gone(RdsError):
    """ENODEV: the volume is not there any more."""


class Stale(RdsError):
    """ESTALE: the volume or session is not what it was: others changed it, or took its place."""


_CLASSES: dict[str, type[RdsError]] = {
    "EAGAIN": WouldBlock,
    "ENOBUFS": Congested,
    "EMSGSIZE": TooLarge,
    "ETIMEDOUT": TimedOut,
    "ECANCELED": Cancelled,
    "EIO": TransportFailed,
    "ENOTCONN": NotBound,
    "EINVAL": InvalidArgument,
    "EADDRINUSE": AddressInUse,
    "EADDRNOTAVAIL": AddressNotAvailable,
    "EACCES": PermissionDenied,
    "ENOMEM": OutOfBudget,
    "EOPNOTSUPP": FamilyMismatch,
    "EDESTADDRREQ": DestinationRequired,
    "EHOSTUNREACH": Unreachable,
    "ECONNREFUSED": Refused,
    "ECONNRESET": ConnectionReset,
    "ESHUTDOWN": DaemonUnavailable,
    "EBADF": Closed,
    "EPROTO": ProtocolError,
    "EMFILE": TooMany,
    "ENOENT": NotFound,
    "EUSERS": RateLimited,
    "ENOSYS": NotSupported,
    "EEXIST": Exists,
    "EBUSY": Busy,
    "EPERM": Owned,
    "EROFS": ReadOnly,
    "ENOSPC": NoSpace,
    "EALREADY": Already,
    "ENODEV": Gone,
    "ESTALE": Stale,
}


@dataclass(frozen=True)
class ErrnoRow:
    """One line of errno.json: an errno, its class, and its gRPC status code by name."""

    errno: int
    symbol: str
    name: str
    grpc_code: str
    default_for: tuple[str, ...]
    text: str
    error: type[RdsError]


def _load() -> tuple[ErrnoRow, ...]:
    raw = json.loads(resources.files("rdsd.v1").joinpath("errno.json").read_bytes())
    return tuple(
        ErrnoRow(
            errno=row["errno"],
            symbol=row["symbol"],
            name=row["name"],
            grpc_code=row["grpc_code"],
            default_for=tuple(row["default_for"]),
            text=row["text"],
            error=_CLASSES[row["symbol"]],
        )
        for row in raw
    )


#: The whole table, in the order of the documentation.
ERRNO_TABLE = _load()

_BY_ERRNO = {row.errno: row for row in ERRNO_TABLE}
_BY_CODE = {code: row for row in ERRNO_TABLE for code in row.default_for}
_BY_CLASS = {row.error: row for row in ERRNO_TABLE}


def error_from_errno(number: int, text: str = "") -> RdsError:
    """The typed error of a Linux errno; RdsError itself for one outside the table."""
    row = _BY_ERRNO.get(number)
    if row is None:
        name = _errno.errorcode.get(number, "unknown error")
        return RdsError(number, text or f"{name} ({number})")
    return row.error(number, text or row.text)


def errno_from_code(grpc_code: str) -> int:
    """The errno a bare gRPC status code stands for (EIO when the table has none)."""
    row = _BY_CODE.get(grpc_code)
    return row.errno if row else _errno.EIO


def make(cls: type[RdsError], text: str = "") -> RdsError:
    """An error of this class with its errno, and the table's text unless one is given."""
    row = _BY_CLASS[cls]
    return cls(row.errno, text or row.text)


class BatchError(RdsError):
    """Some datagrams of a send_batch were not accepted.

    ``errno`` is that of the first one. ``errors`` lists (index in the batch,
    error) in order; every datagram not listed was accepted. ``tags[i]`` is the
    tag of datagram i if it was accepted.
    """

    accepted: int
    errors: Sequence[tuple[int, RdsError]]
    tags: Sequence[int]

    def __init__(self, errors: Sequence[tuple[int, RdsError]], tags: Sequence[int]) -> None:
        index, first = errors[0]
        what = f"{len(errors)} of {len(tags)} datagrams not accepted"
        # strerror: whether one may have been accepted is said once, at the end.
        super().__init__(first.errno, f"{what}; first number {index}: {first.strerror}")
        self.undecided = any(e.undecided for _, e in errors)
        self.errors = errors
        self.tags = tags
        self.accepted = len(tags) - len(errors)

    def __reduce__(self) -> tuple[type[BatchError], tuple[object, ...]]:
        return (BatchError, (self.errors, self.tags))


def fresh(error: RdsError) -> RdsError:
    """The same error again: one that ends many calls is raised anew by each, with its own
    traceback."""
    return copy.copy(error)
