"""Which way to the daemon a socket takes: rings, the control socket, or gRPC.

On the daemon's node all three lead to the same socket, the first by far the
fastest; from elsewhere only gRPC does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Literal, TypeAlias, get_args

from ._errors import InvalidArgument, NotSupported, make
from ._target import unix_path

#: How to reach the daemon; "auto" is the fastest way that is there.
FrontEnd: TypeAlias = Literal["auto", "rings", "seqpacket", "grpc"]

VARIABLE = "RDSD_FRONT_END"

#: Stands behind the daemon's gRPC socket in the path of its control socket.
CONTROL_SUFFIX = ".rings"


def choose(named: str | None, target: str) -> tuple[str, ...]:
    """The front ends to try, in order: named, else $RDSD_FRONT_END, else auto."""
    wish = named or os.environ.get(VARIABLE) or "auto"
    if wish not in get_args(FrontEnd):
        raise make(
            InvalidArgument,
            f'front end {wish!r}: want "auto", "rings", "seqpacket" or "grpc"',
        )
    local = unix_path(target) is not None
    if wish == "auto":
        if not local:
            return ("grpc",)
        rings = () if why_no_rings() else ("rings",)
        return (*rings, "seqpacket", "grpc")
    if wish != "grpc" and not local:
        raise make(
            InvalidArgument,
            f"front end {wish!r} with the target {target}: want the path of a Unix socket",
        )
    if wish == "rings" and (reason := why_no_rings()):
        raise make(NotSupported, reason)
    return (wish,)


def control_path(target: str) -> str:
    """The path of the control socket beside the gRPC socket."""
    return (unix_path(target) or "") + CONTROL_SUFFIX


def why_no_rings() -> str:
    """Why this installation has no rings, empty when it has."""
    if sys.byteorder != "little" or sys.maxsize < 1 << 32:
        return "rings need a 64-bit little-endian machine"
    try:
        import_module("rdsd._rings")
    except ImportError as error:
        return f"this installation of rdsd has no rings: {error}"
    return ""
