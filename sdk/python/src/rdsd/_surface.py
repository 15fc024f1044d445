"""What both fronts do alike before they call the core."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import cast

from . import _process
from ._core import BindOptions
from ._errors import (
    BatchError,
    Congested,
    DaemonUnavailable,
    DestinationRequired,
    InvalidArgument,
    NotSupported,
    RdsError,
    TimedOut,
    TooLarge,
    WouldBlock,
    fresh,
    make,
)
from ._target import Timeout, seconds
from ._types import Address, AddressLike, Payload, to_address

Window = tuple[int, int]

DEFAULT_WINDOW: Window = (4096, 4 << 20)

#: Seconds bind waits by default: long for a local daemon, short for a person.
BIND_TIMEOUT = 10.0

#: What calls of a closed client say.
CLOSED = "the client is closed"

#: Why a request has no answer that has left from a port which somebody else has now.
PORT_LOST = "the daemon was restarted, and somebody else has the port the reply was to come to"

MAX_DATAGRAM = 1 << 20  # bytes

#: The longest a call over rings keeps looking before it sleeps, seconds.
MAX_SPIN = 0.01

#: try_send does not wait for room, only for the daemon's answer; seconds.
TRY_TIMEOUT = 5.0


def bind_options(
    local: AddressLike,
    *,
    send_buffer: int,
    recv_buffer: int,
    label: str,
    recv_window: Window,
    outcomes: bool,
    reconnect: bool,
    congestion_mask: int,
    spin: Timeout,
) -> BindOptions:
    datagrams, size = recv_window
    datagrams = _positive("recv_window", datagrams, 1, 1 << 20)
    size = _positive("recv_window", size, 1, 32 << 20)
    send_buffer = _positive("send_buffer", send_buffer, 0, 1 << 62)
    recv_buffer = _positive("recv_buffer", recv_buffer, 0, 1 << 62)
    congestion_mask = _positive("congestion_mask", congestion_mask, 0, (1 << 64) - 1)
    check_label(label)
    return BindOptions(
        local=to_address(local),
        send_buffer=send_buffer,
        recv_buffer=recv_buffer,
        label=label,
        recv_window_datagrams=datagrams,
        recv_window_bytes=size,
        outcomes=outcomes,
        reconnect=reconnect,
        congestion_mask=congestion_mask,
        spin=None if spin is None else _spin(spin),
    )


def _spin(spin: Timeout) -> float:
    try:
        value = seconds(spin)
    except InvalidArgument:
        raise make(InvalidArgument, "spin is not a number") from None
    return MAX_SPIN if value is None else min(value, MAX_SPIN)


def check_label(label: str) -> None:
    """A label is at most 64 bytes of text, the same over every front end."""
    try:
        size = len(label.encode())
    except UnicodeEncodeError:
        raise make(InvalidArgument, f"label {label[:64]!r}: want text that is UTF-8") from None
    if "\0" in label:
        raise make(InvalidArgument, f"label {label[:64]!r}: want text without null characters")
    if size > 64:
        shown = label if size <= 200 else label[:40] + "..."
        raise make(InvalidArgument, f"label {shown!r} has {size} bytes; want at most 64")


def outgoing(
    datagrams: Iterable[tuple[AddressLike, Payload]],
) -> list[tuple[Address, bytes]]:
    """Addresses parsed and payloads made immutable."""
    out: list[tuple[Address, bytes]] = []
    last = where = None
    for addr, payload in datagrams:
        if addr is not last or where is None:
            last, where = addr, destination(addr)
        out.append((where, payload if type(payload) is bytes else as_bytes(payload)))
    return out


def run(
    dst: AddressLike, data: Payload | Sequence[Payload], lengths: int | Sequence[int] | None
) -> list[tuple[Address, bytes]]:
    """The datagrams of a send_run."""
    where = destination(dst)
    return [(where, payload) for payload in payloads(data, lengths)]


def payloads(data: Payload | Sequence[Payload], lengths: int | Sequence[int] | None) -> list[bytes]:
    """The payloads that the arguments of a send_run mean."""
    if lengths is None:
        if isinstance(data, list | tuple):
            return [as_bytes(payload) for payload in data]
        raise make(InvalidArgument, "send_run: want a list of payloads, or a buffer and lengths")
    whole = as_bytes(cast(Payload, data))
    if isinstance(lengths, int):
        if lengths < 1 or len(whole) % lengths:
            text = f"{len(whole)} bytes in datagrams of {lengths}: want a whole number of them"
            raise make(InvalidArgument, text)
        return [whole[at : at + lengths] for at in range(0, len(whole), lengths)]
    ends = list(accumulate(lengths))
    if any(n < 0 for n in lengths) or (ends[-1] if ends else 0) != len(whole):
        raise make(InvalidArgument, f"lengths that do not add up to the {len(whole)} bytes given")
    return [whole[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def check_slot(size: int) -> int:
    size = _whole("size", size)
    if size > MAX_DATAGRAM:
        raise make(TooLarge, f"{size} bytes: a datagram has at most {MAX_DATAGRAM}")
    return _positive("size", size, 0, MAX_DATAGRAM)


def only_error(error: BatchError) -> RdsError:
    """The error of the one datagram of a single send."""
    return fresh(error.errors[0][1])


def undecided(error: BaseException) -> bool:
    """Whether a send that ended with this error may have been accepted."""
    return error.undecided if isinstance(error, RdsError) else True


def too_late(error: RdsError) -> RdsError:
    """Why a send failed whose timeout is 0: what would have to wait has no time for it."""
    if isinstance(error, BatchError):
        return BatchError([(i, too_late(e)) for i, e in error.errors], error.tags)
    waits = isinstance(error, WouldBlock | Congested | DaemonUnavailable)
    return make(TimedOut) if waits and not error.undecided else error


def check_limit(limit: int) -> int:
    return _positive("limit", limit, 1, (1 << 31) - 1)


def fork_text(pid: int) -> str:
    return (
        f"opened by process {pid}, and this is its child: a client does not survive a fork, "
        "open another one here"
    )


class ForkGuard:
    """Notices use in a child process.

    The threads that serve a client do not survive a fork: used in the child it
    would wait for ever. It raises instead; the child opens a client of its own.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = _process.pid

    def check(self) -> None:
        if _process.pid != self._pid:
            raise make(NotSupported, fork_text(self._pid))

    @property
    def forked(self) -> bool:
        return _process.pid != self._pid


def destination(addr: AddressLike) -> Address:
    where = to_address(addr)
    if where.host in ("0.0.0.0", "::"):
        raise make(DestinationRequired)
    return where


def as_bytes(payload: Payload) -> bytes:
    """The bytes of anything with a buffer."""
    if isinstance(payload, bytes):
        return payload
    try:
        with memoryview(payload) as view:
            return view.tobytes()
    except TypeError:
        raise make(
            InvalidArgument,
            f"payload of type {type(payload).__name__}: want bytes, or something with a buffer",
        ) from None


def _positive(name: str, value: int, least: int, most: int) -> int:
    value = _whole(name, value)
    if not least <= value <= most:
        raise make(InvalidArgument, f"{name} {value}: want {least} to {most}")
    return value


def _whole(name: str, value: int) -> int:
    """As an int itself: messages and the extension do not take what only behaves like one."""
    try:
        return int(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} {value!r}: want a whole number") from None
