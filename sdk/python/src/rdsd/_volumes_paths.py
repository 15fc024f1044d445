"""Paths of volumes in words, read as the Go SDK and the command do (ParsePathSpec)."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address

from ._errors import InvalidArgument, make

TRANSPORTS = ("tcp", "ib")


def parse_path(text: str) -> tuple[str, str, str]:
    """Source, destination and transport of SRC,DST or DST with tcp: or ib: before it. A path of
    the kernel's (add_path of rtrs-client) is SRC@DST, where each end has ip: or gid: before it,
    and is over RDMA."""
    transport, rest = "", text
    # Only one of them, and only at the beginning: an end may be a host of that name with a port.
    for known in TRANSPORTS:
        if not transport and rest.startswith(known + ":"):
            transport, rest = known, rest[len(known) + 1 :]
    src, dst = "", rest
    for sign in (",", "@"):  # rtrs-client takes both
        if sign in rest:
            src, _, dst = rest.partition(sign)
            break
    ends = []
    for end in (src.strip(), dst.strip()):
        kernel = end.startswith(("ip:", "gid:"))
        # A kernel has these words for RDMA alone.
        if kernel and transport == "tcp":
            raise _bad(text, "ip: and gid: are of paths over RDMA, and this one is over TCP")
        transport = "ib" if kernel else transport
        if end.startswith("gid:"):
            end = _gid(text, end)
        ends.append(end.removeprefix("ip:") if kernel else end)
    src, dst = ends
    # What is left is the daemon's to judge: here only what cannot be an end at all.
    if not dst:
        raise _bad(text, "the destination is missing")
    if "," in dst or "@" in dst:
        raise _bad(text, "one path is a source and a destination; give each further one by itself")
    if any(c in " /" for c in src + dst):
        raise _bad(text, "neither an address nor a host name has blanks or slashes")
    return src, dst, transport


def _gid(text: str, end: str) -> str:
    # A GID of RoCEv2 is an IPv6 address, or an IPv4 one mapped into it (InfiniBand
    # Architecture, annex A17); the path is made between the addresses.
    try:
        address = IPv6Address(end.removeprefix("gid:"))
    except AddressValueError:
        address = IPv6Address(0)
    if address.is_unspecified:
        raise _bad(
            text,
            f"a GID is an IPv6 address, or ::ffff:10.0.0.7 of an IPv4 one; {end} is none",
        )
    return str(address.ipv4_mapped or address)


def _bad(text: str, why: str) -> Exception:
    return make(InvalidArgument, f"path {text!r}: {why}")
