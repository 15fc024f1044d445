"""The plain values of the API, shared by both fronts."""

from __future__ import annotations

import enum
import ipaddress
import operator
import socket
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ._errors import InvalidArgument, make

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Address(NamedTuple):
    """An RDS endpoint: an IP address in text and an RDS port, 0..65535."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_IP: TypeAlias = str | ipaddress.IPv4Address | ipaddress.IPv6Address

#: What every call takes as an address: ("10.0.0.1", 4000), "10.0.0.1:4000" or "[fd00::1]:4000".
AddressLike: TypeAlias = str | tuple[_IP, int]

#: What every call takes as a payload: anything with the buffer protocol.
Payload: TypeAlias = "Buffer"

#: Where a payload is received into: a bytearray, a writable memoryview, an array.
RoomForPayload: TypeAlias = "Buffer"


class Datagram(NamedTuple):
    """One datagram: ``addr`` is its source when received, its destination in send_batch."""

    addr: Address
    payload: bytes


class CancelResult(NamedTuple):
    """What cancel_sent_to did."""

    cancelled: int
    """Datagrams that will never leave this node."""
    in_flight: int
    """Had begun to leave; their true outcome follows."""


class OutcomeKind(enum.Enum):
    """What became of an accepted datagram."""

    DELIVERED = 1
    """Placed where the receiver reads it; to a kernel peer: acknowledged by its TCP."""
    CANCELLED = 2
    """Never left this node."""
    FAILED = 3
    """Refused by the peer: not delivered."""
    UNKNOWN = 4
    """Left this node; nobody can say whether it was delivered."""


class Outcome(NamedTuple):
    """The one outcome of one accepted datagram; ``tag`` is what its send returned."""

    tag: int
    kind: OutcomeKind
    reason: str


class CongestionChange(NamedTuple):
    """A destination became congested or clear."""

    addr: Address
    congested: bool


class CongestionEvent(NamedTuple):
    """What watch_congestion yields.

    ``freed`` has bit (port mod 64) set for each watched group of ports freed
    since the last event; ``changes`` lists destinations this socket sends to.
    """

    freed: int
    changes: tuple[CongestionChange, ...]


def to_address(value: AddressLike) -> Address:
    """Parses what the caller gave; raises InvalidArgument that names it."""
    try:
        if type(value) is Address and _is_whole(value):
            pack_host(value.host)  # anybody makes them, and what is no address ends the stream
            return value
        if isinstance(value, str):
            return _parse(value)
        host, port = value
        return _checked(str(host), port)
    except InvalidArgument:
        raise
    except (TypeError, ValueError):
        raise make(
            InvalidArgument,
            f'address {value!r}: want ("10.0.0.1", 4000), "10.0.0.1:4000" or "[fd00::1]:4000"',
        ) from None


def canonical(value: AddressLike) -> Address:
    """As to_address, in the form that the daemon gives to sources."""
    return _checked(*to_address(value))


def _is_whole(value: Address) -> bool:
    """Whether its parts are of their types, and the port is one."""
    return type(value.host) is str and type(value.port) is int and 0 <= value.port <= 65535


@lru_cache(maxsize=4096)
def _parse(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets before its port")
    return _checked(host, int(port))


@lru_cache(maxsize=4096, typed=True)  # 5.0 is no port, and equal to one
def _checked(host: str, port: int) -> Address:
    port = int(operator.index(port))
    if not 0 <= port <= 65535:
        raise make(InvalidArgument, f"port {port} of {host}: want 0 to 65535")
    ip = ipaddress.ip_address(host)
    # The daemon takes an IPv4 address in IPv6 for the IPv4 one: so do answers come from it.
    return Address(str(getattr(ip, "ipv4_mapped", None) or ip), port)


@lru_cache(maxsize=4096)
def pack_host(host: str) -> bytes:
    """4 or 16 bytes in network order."""
    return ipaddress.ip_address(host).packed


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> str:
    """The text of 4 or 16 bytes; ValueError otherwise."""
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    if len(packed) == 16:
        return str(ipaddress.IPv6Address(packed))
    raise ValueError(f"an address of {len(packed)} bytes")
