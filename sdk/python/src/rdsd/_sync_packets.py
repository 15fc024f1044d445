"""One control socket connection of the front for threads.

Waking another thread costs more than all the rest, so a caller who waits reads
the connection itself: it *drives*. One caller drives at a time; the others
wait for their events, which whoever reads sets. The socket's own thread reads
when nobody drives: at once while callers wait, else after a pause, so that
calls that follow each other do not wake it. Everything but polling happens
under the socket's lock.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from typing import Any

from ._calls import Call
from ._core import SocketCore, State
from ._errors import DaemonUnavailable, ProtocolError, RdsError, TimedOut, make
from ._packets import BURST, BUSY_PAUSE, PacketPipe, lost, new_socket, try_connect

#: The socket's thread reads once no caller has driven for so long; seconds.
QUIET = 0.05

#: The longest poll, milliseconds: it takes an int, and who waits for longer polls again.
LONGEST_POLL = 3_600_000.0

_IN = select.POLLIN
_BOTH = select.POLLIN | select.POLLOUT


class PacketStream:
    """See Stream in _sync."""

    front_end = "seqpacket"

    def __init__(
        self,
        path: str,
        core: SocketCore,
        lock: threading.RLock,
        changed: threading.Condition,
    ) -> None:
        self._path = path
        self._core = core
        core.sender.by_credit = False  # results are read by callers that wait
        # For with: a Condition's own __enter__ would leave it locked, interrupted at its end.
        self._lock = lock  # guards everything here
        self._changed = changed  # of it
        self._sock = new_socket()
        self._pipe: PacketPipe | None = None  # None: not connected
        self._over = False
        self._error: RdsError | None = None
        self._waiting = 0  # callers that wait for their events
        self._driver = 0  # the caller that reads: its thread
        self._drive: object = None  # its call
        self._drive_began = 0.0  # when
        self._drive_ended = 0.0  # when the last one stopped
        self._doorbells: list[int] = []  # [of the driver, of the socket's thread]
        self._poll = select.poll()  # of the driver

    # -- as Stream has it ------------------------------------------------------

    def connect(self) -> None:
        """Connects; Absent when no daemon listens there. In the socket's thread."""
        try:
            until = self._core.answer_by(time.monotonic()) or math.inf
            while not try_connect(self._sock, self._path):
                if self._core.error is not None or time.monotonic() > until:
                    raise make(TimedOut, f"the daemon at {self._path} takes no connection")
                time.sleep(BUSY_PAUSE)
            for _ in range(2):
                self._doorbells.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        except BaseException:
            self._sock.close()
            for fd in self._doorbells:
                os.close(fd)
            raise

    def run(self) -> RdsError | None:
        poll = self._poller(self._doorbells[1])
        until = self._core.answer_by(time.monotonic())
        try:
            with self._lock:
                self._poll = self._poller(self._doorbells[0])
                self._pipe = PacketPipe(self._sock)
                self.kick()
            while True:
                with self._lock:
                    while self._others_read():
                        pass
                    if self._over:
                        return self._error
                    blocked = self._pipe.blocked
                    binding = self._core.state is State.BINDING
                if binding and until is not None and time.monotonic() > until:
                    return make(TimedOut, f"the daemon at {self._path} did not answer")
                self._await(poll, self._doorbells[1], blocked, until if binding else None)
                with self._lock:
                    if not self._driver:
                        self._serve()
        finally:
            self._close()

    def kick(self) -> None:
        """Writes what the core has. The caller holds the lock."""
        pipe = self._pipe
        if pipe is None or self._over:
            return
        if self._core.error is not None:  # the end of the connection says that it is closed
            pipe.finish()
            return
        try:
            while pipe.takes and (message := self._core.poll(time.monotonic())) is not None:
                pipe.write(message)
        except BaseException:
            self._torn()
            raise
        if pipe.blocked:  # whoever polls must now look for room too
            self._ring(1)
            if self._driver != threading.get_ident():
                self._ring(0)

    def drive(self, call: Call[Any], deadline: float | None) -> None:
        """Reads until the call is done, its deadline passed, or the stream ended; returns at
        once when another caller does."""
        me = object()
        try:  # from here on: a KeyboardInterrupt may come between any two steps
            with self._lock:
                if call.done or self._over or self._driver or self._pipe is None:
                    return
                self._drive = me
                self._driver = threading.get_ident()
                self._drive_began = time.monotonic()
                call.wake = self._rouse_driver
                blocked = self._pipe.blocked
            poll, doorbell = self._poll, self._doorbells[0]
            while True:
                self._await(poll, doorbell, blocked, deadline)
                with self._lock:
                    self._serve(call)
                    if call.done or self._over:
                        return
                    blocked = self._pipe.blocked
                if deadline is not None and time.monotonic() >= deadline:
                    return
        finally:
            if self._drive is me:
                with self._lock:  # and no function, before which another may come
                    self._drive, self._driver = None, 0
                    now = self._drive_ended = time.monotonic()
                    if self._over or self._waiting or now - self._drive_began >= QUIET:
                        self._changed.notify_all()

    def waiting(self, change: int) -> None:
        """So many more callers wait for events. The caller holds the lock."""
        self._waiting += change
        if change > 0 and not self._driver:
            self._changed.notify_all()  # the socket's thread is to read

    def cancel(self) -> None:
        """Breaks the stream off; run ends."""
        with self._lock:
            if self._pipe is not None:
                self._pipe.shutdown()
            self._end(None)

    def stop(self) -> None:
        """Nothing more to write. The caller holds the lock."""

    # -- inside: under the lock -----------------------------------------------------

    def _others_read(self) -> bool:
        """Waits a while if callers drive; whether the socket's thread is to ask again."""
        if self._over:
            return False
        now = time.monotonic()
        if self._core.error is not None and not self._driver:
            return False
        if self._driver:
            age = now - self._drive_began
            # A driver as old as that tells when it stops.
            self._changed.wait(None if age >= QUIET else QUIET - age)
            return True
        rest = self._drive_ended + QUIET - now
        if self._waiting or rest <= 0:
            return False
        self._changed.wait(rest)
        return True

    def _serve(self, call: Call[Any] | None = None) -> None:
        """Takes what has come, no more than this call waits for, and writes what follows."""
        pipe, core = self._pipe, self._core
        assert pipe is not None
        if self._over:
            return
        try:
            if pipe.blocked:
                pipe.resume()
            for _ in range(BURST):
                message = pipe.read()
                if message is None:
                    break
                if core.error is None:
                    core.receive(message)
                if call is not None and call.done:
                    break
        except EOFError:
            self._end(None)
        except ProtocolError as error:
            self._end(error)
        except OSError as error:
            self._end(lost(error))
        except BaseException:
            self._torn()
            raise
        if core.has_output:
            self.kick()

    def _end(self, error: RdsError | None) -> None:
        if not self._over:
            self._over = True
            self._error = error
            self._ring(0)
            self._ring(1)
            self._changed.notify_all()

    def _torn(self) -> None:
        """A KeyboardInterrupt came between two steps with a message, which may be half sent, or
        read and not looked at: it would be sent twice, or missing. So the socket binds again."""
        self._end(make(DaemonUnavailable, "a call was interrupted between two steps of a message"))

    def _rouse_driver(self) -> None:
        if self._driver != threading.get_ident():
            self._ring(0)

    def _ring(self, which: int) -> None:
        if self._doorbells:
            os.eventfd_write(self._doorbells[which], 1)

    # -- inside: without the lock ---------------------------------------------------

    def _poller(self, doorbell: int) -> select.poll:
        poll = select.poll()
        poll.register(self._sock, _IN)
        poll.register(doorbell, _IN)
        return poll

    def _await(
        self, poll: select.poll, doorbell: int, blocked: bool, deadline: float | None
    ) -> None:
        """Until something came, or can be sent, or the doorbell rang."""
        poll.modify(self._sock, _BOTH if blocked else _IN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000 + 0.5
        for fd, _ in poll.poll(None if left is None else min(left, LONGEST_POLL)):
            if fd == doorbell:
                os.eventfd_read(doorbell)

    def _close(self) -> None:
        with self._lock:
            self._over = True
            self._ring(0)
            while self._driver:
                self._changed.wait()
            self._pipe = None
            doorbells, self._doorbells = self._doorbells, []
        self._sock.close()
        for fd in doorbells:
            os.close(fd)
