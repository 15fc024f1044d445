"""Calls and watches of the daemon's services, for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio

from . import _process
from ._errors import Closed, DaemonUnavailable, TimedOut, make
from ._grpc import from_grpc
from ._service import ServiceCall
from ._surface import CLOSED, ForkGuard
from ._target import Timeout, seconds

T = TypeVar("T")


class Service(_process.OfOneProcess):
    """A service of one daemon; stub is the generated one."""

    def __init__(self, stub: Any, target: str, guard: ForkGuard) -> None:
        self._stub = stub
        self._target = target
        self._guard = guard

    async def _do(self, call: ServiceCall[T], timeout: Timeout) -> T:
        self._guard.check()
        method = getattr(self._stub, call.method)
        try:
            answer = await method(call.request, timeout=seconds(timeout))
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error, self._target) from None
        except grpc.aio.UsageError:  # the channel is closed
            raise make(Closed, CLOSED) from None
        except asyncio.CancelledError:
            _check_asked_for()
            raise
        return call.decode(answer)


class Watch(Generic[T]):
    """An async iterator over what a service reports; close it when done.

    It ends with DaemonUnavailable when the daemon does, and stops when closed.
    """

    def __init__(self, stub: Any, target: str, call: ServiceCall[T]) -> None:
        self._target = target
        self._decode = call.decode
        self._closed = False
        try:
            self._call: Any = getattr(stub, call.method)(call.request)
        except grpc.aio.UsageError:  # the channel is closed
            raise make(Closed, CLOSED) from None

    async def _begin(self, limit: float | None) -> None:
        """Until the daemon watches, which it says by its header; why not, the first anext says."""
        try:
            async with asyncio.timeout(limit):
                await self._call.initial_metadata()
        except TimeoutError:
            self.close()
            raise make(TimedOut, f"the daemon at {self._target} did not answer") from None
        except asyncio.CancelledError:
            self.close()
            _check_asked_for()
            raise
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Waits for the next one. Cancelling it ends the watch."""
        if self._closed:
            raise StopAsyncIteration
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            if self._closed:  # by close(), not by whoever awaits
                raise StopAsyncIteration from None
            self.close()
            _check_asked_for()
            raise
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error, self._target) from None
        if message is grpc.aio.EOF:
            raise make(DaemonUnavailable, "the daemon ended the watch")
        return self._decode(message)

    def close(self) -> None:
        """Ends the watch; whoever waits in it is told. Again: nothing."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Closing awaits nothing, so a plain with does as well.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_asked_for() -> None:
    """Raises Closed where nobody has cancelled the task: that is gRPC's word to it for a call
    whose channel was closed."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise make(Closed, CLOSED) from None
