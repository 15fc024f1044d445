"""Requests, and the ports that they leave from.

A request must not be given the answer to another one, above all not the late
answer to one that gave up. Payloads are the application's and a responder may be
anybody, so only the port that a request leaves from, with the source of the
answer, tells whose an answer is. A socket has a few reply ports beside its own:
sockets with the same options that receive answers and drop everything else. One
serves requests to many destinations, one at a time to each. It is used again for
a destination only when the answer has come. A port whose request ended otherwise
is spoiled: it takes no request any more and is closed with its last one, so that
a late answer ends as "no such port" at the responder and fills no buffer that
nobody reads. So is a port that is lost: after a restart of the daemon somebody who
asks for any may be given its number first. What waited to leave from it leaves from
another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from . import _process
from ._core import TRANSIENT, BindOptions
from ._errors import (
    AddressInUse,
    Closed,
    OutOfBudget,
    RdsError,
    TimedOut,
    TooMany,
    make,
)
from ._surface import BIND_TIMEOUT
from ._threads import held, start
from ._types import Address, Datagram, Payload

if TYPE_CHECKING:
    from . import _aio_socket, _sync_socket

S = TypeVar("S")

MAX_PORTS = 32  # of one socket
KEEP_PORTS = 4  # of these, without a request

BACKOFF_FIRST, BACKOFF_LIMIT = 0.02, 2.0  # seconds


@dataclass(eq=False, slots=True)
class Port(Generic[S]):
    """A socket that requests leave from."""

    sock: S
    asked: dict[Address, object] = field(default_factory=dict)  # by which request
    spoiled: bool = False


@dataclass(eq=False, slots=True)
class _Attempt:
    """To bind a port."""

    done: bool = False
    error: BaseException | None = None


class ReplyPorts(Generic[S]):
    """Which port a request takes; whoever owns it guards it and does the waiting."""

    def __init__(self) -> None:
        self.ports: list[Port[S]] = []
        self.binding: object = None  # the request that has the turn to add a port
        self.closed = False

    def pick(self, me: object, dst: Address, lost: Callable[[S], bool]) -> Port[S] | None:
        """Puts the request me on a port that has none to dst."""
        if self.closed:
            raise make(Closed)
        for port in self.ports:
            if not port.spoiled and dst not in port.asked and not lost(port.sock):
                port.asked[dst] = me
                return port
        return None

    def take_turn(self, me: object) -> bool:
        """Whether the caller is to bind a port: one at a time, as it may do for all who wait."""
        if self.binding is not None or len(self.ports) >= MAX_PORTS:
            return False
        self.binding = me
        return True

    def release(self, me: object, late: bool, lost: Callable[[S], bool]) -> list[S]:
        """Ends a request, wherever it was; late: its answer may still come. What to close."""
        if self.binding is me:
            self.binding = None
        for port in self.ports:
            for dst in [dst for dst, by in port.asked.items() if by is me]:
                del port.asked[dst]
                port.spoiled |= late
        idle = [p for p in self.ports if not p.asked]
        kept = [p for p in idle if not p.spoiled and not lost(p.sock)][:KEEP_PORTS]
        out = [p for p in idle if p not in kept]
        self.ports = [p for p in self.ports if p not in out]
        return [p.sock for p in out]

    def close(self) -> list[S]:
        self.closed = True
        out, self.ports = [p.sock for p in self.ports], []
        return out

    def may_wait(self, error: RdsError, options: BindOptions) -> bool:
        """Whether a port that could not be bound may be had later."""
        if isinstance(error, TimedOut):  # of the attempt, not of the caller
            return True
        if isinstance(error, TooMany | OutOfBudget | AddressInUse):
            return bool(self.ports)
        return options.reconnect and isinstance(error, TRANSIENT)


def port_options(options: BindOptions, local: Address) -> BindOptions:
    return replace(
        options, local=Address(local.host, 0), outcomes=False, congestion_mask=0, replies=True
    )


class Requests:
    """The requests of a socket of the front for threads."""

    def __init__(
        self,
        bind: Callable[[BindOptions, float | None], _sync_socket.Socket],
        options: BindOptions,
    ) -> None:
        self._bind = bind
        self._options = options
        # For with: a Python function would leave it locked, interrupted at its end.
        self._lock = threading.RLock()  # never taken twice: see held
        self._changed = threading.Condition(self._lock)
        self._ports: ReplyPorts[_sync_socket.Socket] = ReplyPorts()  # guarded by _lock

    def request(self, dst: Address, payload: Payload, limit: float | None) -> Datagram:
        if _process.ending():
            raise make(Closed, _process.ENDING)
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            me, sent, late = object(), False, False
            try:  # from here on: a KeyboardInterrupt may come between any two steps
                port = self._acquire(me, dst, deadline)
                sent = late = True
                answer = port.sock._exchange(dst, payload, _left(deadline))
                late = False
                return answer
            except AddressInUse:
                if not sent:
                    raise
                late = False  # the port is lost, and this has not left
            except Closed:
                raise make(Closed) from None
            finally:
                with self._lock:
                    out = self._ports.release(me, late, lambda sock: sock.closed)
                    self._changed.notify_all()
                _close_aside(out)

    def held(self) -> bool:
        """Whether this thread is in the midst of a call that changes them or one of their ports."""
        return held(self._lock) or any(port.sock._in_a_call() for port in self._ports.ports)

    def end(self) -> list[_sync_socket.Socket]:
        """Ends all requests that have not left; the ports of the others, to be closed."""
        with self._lock:
            out = self._ports.close()
            self._changed.notify_all()
        return out

    def _acquire(
        self, me: object, dst: Address, deadline: float | None
    ) -> Port[_sync_socket.Socket]:
        pause = BACKOFF_FIRST
        while True:
            with self._lock:
                if (port := self._ports.pick(me, dst, lambda sock: sock.closed)) is not None:
                    return port
                left = _left(deadline)
                turn = self._ports.take_turn(me)
                if not turn and left != 0.0:
                    self._changed.wait(left)
                    continue
            error = self._add(me, left) if turn else None
            if turn and error is None:
                continue
            with self._lock:
                if error is not None and not self._ports.may_wait(error, self._options):
                    raise error
                if left == 0.0:
                    raise make(TimedOut, _why(error))
                # The others wait for this one.
                self._changed.wait(
                    pause * random.uniform(0.5, 1) if left is None else min(left, pause)
                )
                pause = min(2 * pause, BACKOFF_LIMIT)

    def _add(self, me: object, left: float | None) -> RdsError | None:
        """Has a port bound; why there is none. None too when the socket is closed meanwhile:
        the daemon may not answer, so a thread waits for it, and close for neither."""
        attempt = _Attempt()
        work = threading.Thread(
            target=self._bind_port, args=(me, attempt, left), name="rdsd-port", daemon=True
        )
        try:
            start(work)
        except RuntimeError:  # the process may have no more threads
            self._bind_port(me, attempt, left)
        with self._lock:
            while not attempt.done and not self._ports.closed:
                self._changed.wait()
        if attempt.error is None or isinstance(attempt.error, RdsError):
            return attempt.error
        raise attempt.error

    def _bind_port(self, me: object, attempt: _Attempt, left: float | None) -> None:
        sock = None
        try:
            sock = self._bind(
                self._options, BIND_TIMEOUT if left is None else min(left, BIND_TIMEOUT)
            )
        except BaseException as error:
            attempt.error = error
        finally:
            with self._lock:
                attempt.done = True
                if self._ports.binding is me:  # and not another's, after an interrupt of this one
                    self._ports.binding = None
                if sock is not None and not self._ports.closed:
                    self._ports.ports.append(Port(sock))
                    sock = None
                self._changed.notify_all()
        if sock is not None:
            _close_aside([sock])


class AioRequests:
    """The requests of a socket of the front for asyncio; one loop uses it."""

    def __init__(
        self,
        bind: Callable[[BindOptions, float | None], Awaitable[_aio_socket.Socket]],
        options: BindOptions,
    ) -> None:
        self._bind = bind
        self._options = options
        self._changed = asyncio.Event()
        self._ports: ReplyPorts[_aio_socket.Socket] = ReplyPorts()
        self._closing: set[asyncio.Task[None]] = set()
        self._binds: set[asyncio.Task[RdsError | None]] = set()
        self._over = asyncio.get_running_loop().create_future()

    async def request(self, dst: Address, payload: Payload, limit: float | None) -> Datagram:
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            me, sent, late = object(), False, False
            try:
                port = await self._acquire(me, dst, deadline)
                sent = late = True
                answer = await port.sock._exchange(dst, payload, _left(deadline))
                late = False
                return answer
            except AddressInUse:
                if not sent:
                    raise
                late = False  # the port is lost, and this has not left
            except Closed:
                raise make(Closed) from None
            finally:
                self._close(self._ports.release(me, late, lambda sock: sock.closed))
                self._tell()

    async def close(self) -> None:
        """Ends all requests."""
        self._close(self._ports.close())
        for bind in self._binds:
            bind.cancel()
        if not self._over.done():
            self._over.set_result(None)
        self._tell()
        if ending := self._closing | self._binds:
            await asyncio.wait(ending)

    async def _acquire(
        self, me: object, dst: Address, deadline: float | None
    ) -> Port[_aio_socket.Socket]:
        pause = BACKOFF_FIRST
        while True:
            if (port := self._ports.pick(me, dst, lambda sock: sock.closed)) is not None:
                return port
            left, error, changed = _left(deadline), None, self._changed
            if self._ports.take_turn(me):
                error = await self._add(me, left)
                if error is None:
                    continue
                if not self._ports.may_wait(error, self._options):
                    raise error
            if left == 0.0:
                raise make(TimedOut, _why(error))
            if error is not None:
                changed = self._changed
                left = pause * random.uniform(0.5, 1) if left is None else min(left, pause)
                pause = min(2 * pause, BACKOFF_LIMIT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)

    async def _add(self, me: object, left: float | None) -> RdsError | None:
        """Binds a port; why there is none. None too when the socket is closed meanwhile: then
        nobody waits for a daemon that may not answer."""
        bind = asyncio.ensure_future(self._bind_port(left))
        self._binds.add(bind)
        bind.add_done_callback(self._binds.discard)
        try:
            await asyncio.wait([bind, self._over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            bind.cancel()
            if self._ports.binding is me:
                self._ports.binding = None
            self._tell()
        return bind.result() if bind.done() and not bind.cancelled() else None

    async def _bind_port(self, left: float | None) -> RdsError | None:
        try:
            sock = await self._bind(
                self._options, BIND_TIMEOUT if left is None else min(left, BIND_TIMEOUT)
            )
        except RdsError as error:
            return error
        if self._ports.closed:
            self._close([sock])
        else:
            self._ports.ports.append(Port(sock))
        return None

    def _tell(self) -> None:
        """Whoever waits for a port looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _close(self, socks: list[_aio_socket.Socket]) -> None:
        """Lets go of ports; nobody but close waits for it."""
        for sock in socks:
            task = asyncio.ensure_future(sock.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _why(error: RdsError | None) -> str:
    if error is not None:
        return f"the deadline passed: no port for the reply: {error}"
    return "the deadline passed: all ports for replies are in use"


def _close_aside(socks: list[_sync_socket.Socket]) -> None:
    """Closes ports in a thread: a daemon that hangs must not hold up the caller."""
    if socks:
        threading.Thread(
            target=lambda: [sock.close() for sock in socks], name="rdsd-close", daemon=True
        ).start()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
