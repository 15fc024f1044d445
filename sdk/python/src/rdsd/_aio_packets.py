"""One control socket connection of the front for asyncio: the event loop reads and writes."""

from __future__ import annotations

import asyncio
import math
import time

from ._core import SocketCore, State
from ._errors import ProtocolError, RdsError, TimedOut, make
from ._packets import BURST, BUSY_PAUSE, PacketPipe, lost, new_socket, try_connect


class PacketStream:
    """See Stream in _aio_stream."""

    front_end = "seqpacket"

    def __init__(self, path: str, core: SocketCore) -> None:
        self._path = path
        self._core = core
        core.sender.by_credit = False  # results are read by callers that wait
        self._sock = new_socket()
        self._pipe = PacketPipe(self._sock)
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[RdsError | None] = self._loop.create_future()
        self._kicked = False  # _write is about to run
        self._awaits_room = False

    # -- as Stream has it ------------------------------------------------------

    async def connect(self) -> None:
        """Connects; Absent when no daemon listens there."""
        try:
            until = self._core.answer_by(time.monotonic()) or math.inf
            while not try_connect(self._sock, self._path):
                if self._core.error is not None or time.monotonic() > until:
                    raise make(TimedOut, f"the daemon at {self._path} takes no connection")
                await asyncio.sleep(BUSY_PAUSE)
        except BaseException:
            self._sock.close()
            raise

    async def run(self) -> RdsError | None:
        fd = self._sock.fileno()
        self._loop.add_reader(fd, self._readable)
        until = self._core.answer_by(self._loop.time())
        watchdog = None if until is None else self._loop.call_at(until, self._still_binding)
        try:
            self._write()
            return await self._over
        finally:
            if watchdog is not None:
                watchdog.cancel()
            self._end(None)
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._pipe.shutdown()
            self._sock.close()

    def kick(self) -> None:
        """Writes soon: what tasks that run now have to send leaves together."""
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._write)

    # -- inside ------------------------------------------------------------------

    def _write(self) -> None:
        self._kicked = False
        if self._over.done():
            return
        if self._core.error is not None:  # the end of the connection says that it is closed
            self._pipe.finish()
            return
        pipe = self._pipe
        while pipe.takes and (message := self._core.poll(time.monotonic())) is not None:
            pipe.write(message)
        if pipe.blocked and not self._awaits_room:
            self._awaits_room = True
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _readable(self) -> None:
        core, pipe = self._core, self._pipe
        if self._over.done():
            return
        try:
            for _ in range(BURST):
                message = pipe.read()
                if message is None:
                    break
                if core.error is None:
                    core.receive(message)
        except EOFError:
            self._end(None)
        except ProtocolError as error:
            self._end(error)
        except OSError as error:
            self._end(lost(error))
        if core.has_output:
            self._write()

    def _writable(self) -> None:
        self._pipe.resume()
        if not self._pipe.blocked or self._over.done():
            self._awaits_room = False
            self._loop.remove_writer(self._sock.fileno())
            self._write()

    def _still_binding(self) -> None:
        if self._core.state is State.BINDING:
            self._end(make(TimedOut, f"the daemon at {self._path} did not answer"))

    def _end(self, error: RdsError | None) -> None:
        if not self._over.done():
            self._over.set_result(error)
