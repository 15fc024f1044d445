"""Where the daemon is, and how long to wait for it."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import TypeAlias
from urllib.parse import quote, unquote

from ._errors import InvalidArgument, make

#: Seconds, a timedelta, or None to wait for ever.
Timeout: TypeAlias = float | timedelta | None

#: Longer timeouts, in seconds, are for ever: 30 years. Some calls of the operating
#: system's cannot be given 300.
LONGEST = 1e9

DEFAULT_TARGET = "unix:///run/rdsd/rdsd.sock"


def resolve_target(target: str | None) -> str:
    """The gRPC target: the argument, else $RDSD_SOCKET, else the default socket.

    A path or a bare name means a Unix socket, @name an abstract one; anything
    with a scheme, or host:port, is passed on to gRPC as it is.
    """
    chosen = target or os.environ.get("RDSD_SOCKET") or DEFAULT_TARGET
    if chosen.startswith("unix:") or "://" in chosen:
        return chosen
    if chosen.startswith("/"):
        # gRPC reads it as a URL, in which "#", "?" and "%" mean something else.
        return "unix://" + quote(chosen)
    if chosen.startswith("@"):
        return "unix-abstract:" + chosen[1:]
    if "/" in chosen or ":" not in chosen:
        return "unix:" + chosen
    return chosen


def unix_path(target: str) -> str | None:
    """The path of the Unix socket a target names, @name of an abstract one; None when it
    names something else."""
    if target.startswith("unix://"):
        return unquote(target.removeprefix("unix://"))
    if target.startswith("unix-abstract:"):
        return "@" + target.removeprefix("unix-abstract:")
    return target.removeprefix("unix:") if target.startswith("unix:") else None


#: What is wrong with a Unix socket where no daemon answers, and what would be right.
NO_SOCKET = (
    "there is no such socket; start the daemon (rdsd serve), or name its socket "
    "by the client's target or $RDSD_SOCKET"
)
ENDED = "its daemon has ended; start it again (rdsd serve)"
NOT_ALLOWED = "this user may not connect to it; the daemon's api.socket_group says who may"


def seconds(timeout: Timeout) -> float | None:
    """Seconds to wait, never negative; None is for ever."""
    if timeout is None:
        return None
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if math.isnan(value):
        raise make(InvalidArgument, "timeout is not a number")
    if value > LONGEST:
        return None
    return max(0.0, value)
