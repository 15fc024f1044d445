"""Which process this is, without a system call: iterators ask before each datagram. Whether its
interpreter is ending."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

pid = os.getpid()

#: While the interpreter ends (finalizers run, atexit is over) its daemon threads are gone, wherever
#: they were and perhaps with a lock, and none begins: who waits for one waits for ever.
ending = sys.is_finalizing

#: What calls say that cannot be made then.
ENDING = "the interpreter is ending, and its threads are gone"


def _forked() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


class OfOneProcess:
    """What belongs to the process that made it: a copy would have the same socket or channel, and
    another process, which multiprocessing would send it to, has neither."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is of one process, neither copied nor sent to another: "
            "give that the target and open a client there"
        )
