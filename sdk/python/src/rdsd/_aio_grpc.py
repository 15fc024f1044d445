"""One gRPC stream of the front for asyncio: the socket's task reads, one beside it writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import grpc
import grpc.aio

from ._core import SocketCore, State
from ._errors import DaemonUnavailable, ProtocolError, RdsError, TimedOut, TransportFailed, make
from ._grpc import from_grpc
from .v1 import rdsd_pb2 as pb
from .v1 import rdsd_pb2_grpc as rpc

_RACES = 10


class _WriteRace(TransportFailed):
    """grpc.aio replaces the status of a stream by its own INTERNAL when the daemon
    refuses the stream while the Bind is being written. Asking again brings the
    daemon's reason out."""


class GrpcStream:
    """See Stream in _aio_stream."""

    front_end = "grpc"

    def __init__(self, channel: grpc.aio.Channel, target: str, core: SocketCore) -> None:
        self._stub: rpc.DatagramsAsyncStub = rpc.DatagramsStub(channel)
        self._target = target
        self._core = core
        self._writable = asyncio.Event()  # something to write, or closing
        core.sender.by_credit = True

    # -- as Stream has it ------------------------------------------------------

    async def run(self) -> RdsError | None:
        error = await self._once()
        for _ in range(_RACES):
            if not isinstance(error, _WriteRace) or self._core.error is not None:
                break
            self._core.stream_void()
            self._core.stream_opened()
            error = await self._once()
        return error

    def kick(self) -> None:
        self._writable.set()

    # -- inside ------------------------------------------------------------------

    async def _once(self) -> RdsError | None:
        """One stream from start to end; returns why it ended, None when without error."""
        call = None
        writer = None
        try:
            call = self._stub.Open()
            writer = asyncio.create_task(self._write(call), name="rdsd-write")
            message = await asyncio.wait_for(call.read(), self._core.answer_by(0.0))
            while isinstance(message, pb.ServerMessage):  # else EOF
                self._core.receive(message)
                if self._core.has_output:
                    self._writable.set()
                message = await call.read()
            if (code := await call.code()) is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code,
                    await call.initial_metadata(),
                    await call.trailing_metadata(),
                    await call.details(),
                )
        except grpc.aio.AioRpcError as error:
            lost = from_grpc(error, self._target)
            if self._core.state is State.BINDING and error.code() is grpc.StatusCode.INTERNAL:
                return _WriteRace(lost.errno, lost.strerror)
            return lost
        except ProtocolError as error:
            return error
        except TimeoutError:
            return make(TimedOut, f"the daemon at {self._target} did not answer")
        except (ValueError, grpc.aio.UsageError) as error:  # the channel is closed
            return make(DaemonUnavailable, str(error))
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            if call is not None:
                call.cancel()
        return None

    async def _news(self) -> None:
        """Until there is something to write, or a posted batch is slow."""
        if (again := self._core.look_again) is None:
            await self._writable.wait()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._writable.wait(), max(0.0, again - time.monotonic()))

    async def _write(self, call: Any) -> None:
        """Writes what the core has until the socket closes; the reader sees a lost stream."""
        try:
            while self._core.error is None:
                self._writable.clear()
                while (message := self._core.poll(time.monotonic())) is not None:
                    await call.write(message)
                await self._news()
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return
