"""What both fronts have in common over rings: the library's socket and what is kept beside it.

Importing this fails where the extension module was not built; see _front_end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from . import _process, _rings
from ._core import BindOptions
from ._errors import BatchError, Closed, NotSupported, RdsError, error_from_errno, make
from ._slots import Borrowed, Lease, Room
from ._surface import as_bytes, destination, fork_text
from ._target import seconds, unix_path
from ._types import (
    Address,
    AddressLike,
    CongestionChange,
    CongestionEvent,
    Datagram,
    Outcome,
    OutcomeKind,
    pack_host,
    to_address,
    unpack_host,
)
from ._watching import ALL_PORTS, Watchers

#: What says that a daemon gives no rings, and nothing against a stream.
WITHOUT_RINGS = frozenset(
    (errno.ESHUTDOWN, errno.EPROTONOSUPPORT, errno.ENOSYS, errno.ENOMEM, errno.ENAMETOOLONG)
)

#: How often sockets that nobody calls are looked after, seconds.
TEND_EVERY = 0.25

Run = tuple[int, int, int, str]  # first tag, number, kind, reason


class Ring(_rings.Handle):
    """One socket of the library, with its outcomes and congestion events handed out."""

    def __init__(self) -> None:
        self._pid = _process.pid
        self._decided: deque[Run] = deque()  # unread; taken from with _deciding
        self._deciding = threading.Lock()
        self.watchers = Watchers(0)  # guarded by watching
        # For with: a Condition's own __enter__ would leave it locked, interrupted at its end.
        self.watching = threading.RLock()
        self.watched = threading.Condition(self.watching)
        self.local = Address("", 0)
        self._instance = 0

    def open(self, target: str, options: BindOptions, timeout: float | None) -> None:
        """Binds; raises what the daemon answers."""
        flags = _rings.OUTCOMES if options.outcomes else 0
        if not options.reconnect:
            flags |= _rings.NO_RECONNECT
        if options.replies:
            flags |= _rings.REPLIES
        self._bind(
            unix_path(target) or "",
            options.local,
            options.send_buffer,
            options.recv_buffer,
            options.label,
            flags,
            0 if options.spin is None else int(options.spin * 1e9) or -1,
            timeout,
        )
        self.local = self._info()[0]
        self.watchers.mask = options.congestion_mask
        # From the beginning: what clears before anybody watches is remembered.
        self._watch(True, options.congestion_mask)
        _keeper.add(self)

    def end(self) -> None:
        """Closes it for good; waits for the daemon a moment."""
        _keeper.remove(self)
        self._shutdown()

    def introduce(self, dst: AddressLike) -> None:
        """Has the daemon look at a destination; raises why nothing can be sent there now."""
        self._reserve(dst, 0, None, False).abort()

    @property
    def instance(self) -> int:
        """Of the daemon it is bound to, or was until now."""
        self._instance = self._info()[1] or self._instance
        return self._instance

    @property
    def forked(self) -> bool:
        return _process.pid != self._pid

    def check(self) -> None:
        """Raises in a forked child, before it has what its parent has, or waits for a lock; and
        while the interpreter ends, where one may be held for ever."""
        if _process.pid != self._pid:
            raise _forked(self)
        if _process.ending():
            raise make(Closed, _process.ENDING)

    # -- congestion ----------------------------------------------------------------

    def _refused(self, dst: AddressLike) -> None:
        """A datagram met ENOBUFS; the extension says so."""
        where = to_address(dst)
        with self.watching:
            self.watchers.refused(where)

    def changed(self, event: tuple[Address | None, bool, int]) -> None:
        """Tells the watchers. The caller holds watching."""
        addr, congested, freed = event
        changes = () if addr is None else (CongestionChange(addr, congested),)
        if freed == ALL_PORTS:  # events were missed: whoever waits must try again
            self.watchers.reconnected()
            freed = 0
        if freed or changes:
            self.watchers.reported(CongestionEvent(freed, changes))

    def take_changes(self) -> None:
        """Tells the watchers what is known by now. The caller holds watching."""
        while (event := self._next_congestion(None, False)) is not None:
            self.changed(event)

    # -- outcomes --------------------------------------------------------------------

    def next_outcome(self) -> Outcome | None:
        """One that is there."""
        self.check()
        with self._deciding:
            if not self._decided:
                self._outcomes(self._decided, None, False)
                if not self._decided:
                    return None
            tag, count, kind, reason = self._decided[0]
            if count > 1:
                self._decided[0] = (tag + 1, count - 1, kind, reason)
            else:
                self._decided.popleft()
        return Outcome(tag, OutcomeKind(kind), reason)

    def await_outcomes(self, timeout: float | None) -> None:
        """Until next_outcome has one, perhaps."""
        self._outcomes(self._decided, timeout, True)


class RingRoom(Room):
    """Room in memory that the daemon sends from."""

    def __init__(self, room: _rings.Room) -> None:
        super().__init__(memoryview(room))
        self._room = room

    def _give_up(self) -> None:
        with self._restored():
            self._room.abort()

    def _send_now(self, count: int) -> int:
        with self._restored():
            return self._room.commit(count)

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """While something looks at the room nothing ends, and one may try again."""
        try:
            yield
        except BufferError:
            self._data = memoryview(self._room)
            raise


def lease(pairs: Sequence[tuple[Address, memoryview]]) -> Lease:
    return Lease([_borrowed(Borrowed, pair) for pair in pairs])


# What Borrowed(...) ends in.
_borrowed = tuple.__new__


class Keeper:
    """Looks after sockets that nobody calls, so that they bind again by themselves.

    One thread for all of a process; it ends with the last socket.
    """

    def __init__(self) -> None:
        # Garbage may be collected wherever this is held, and its finalizers may close sockets.
        self._lock = threading.RLock()
        self._rings: weakref.WeakSet[Ring] = weakref.WeakSet()
        self._runs = False

    def add(self, ring: Ring) -> None:
        with self._lock:
            self._rings.add(ring)
            if not self._runs:
                threading.Thread(target=self._run, name="rdsd-keeper", daemon=True).start()
                self._runs = True  # it waits for the lock

    def remove(self, ring: Ring) -> None:
        with self._lock:
            self._rings.discard(ring)

    def _run(self) -> None:
        while True:
            time.sleep(TEND_EVERY)
            with self._lock:
                rings = self._copy()
                if not rings:
                    self._runs = False
                    return
            while rings:  # and none is kept while sleeping
                rings.pop()._tend()

    def _copy(self) -> list[Ring]:
        """The sockets. The caller holds the lock."""
        while True:
            try:
                return list(self._rings)
            except RuntimeError:  # a finalizer has taken one off meanwhile
                continue


_keeper = Keeper()


def _forget_parent() -> None:
    global _keeper
    _keeper = Keeper()
    _rings.set_main_thread()  # the one that has forked


os.register_at_fork(after_in_child=_forget_parent)


def _address_of(name: AddressLike, is_destination: bool) -> bytes:
    """An rdsd_addr."""
    where = destination(name) if is_destination else to_address(name)
    packed = pack_host(where.host)
    family = 4 if len(packed) == 4 else 6
    return packed.ljust(16, b"\0") + where.port.to_bytes(2, "little") + bytes((family, 0))


def _make_address(packed: bytes, port: int) -> Address:
    return Address(unpack_host(packed), port)


def _from_errno(number: int, text: str | None) -> RdsError:
    return error_from_errno(number, text or "")


def _forked(ring: _rings.Handle) -> RdsError:
    return make(NotSupported, fork_text(ring._pid if isinstance(ring, Ring) else 0))


_rings.setup(
    Datagram,
    Address,
    _address_of,
    _make_address,
    as_bytes,
    seconds,
    _from_errno,
    _forked,
    BatchError,
    threading.main_thread().ident or 0,
)
