"""Calls and watches of the daemon's services, for threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

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

    def _do(self, call: ServiceCall[T], timeout: Timeout) -> T:
        self._guard.check()
        method = getattr(self._stub, call.method)
        try:
            answer = method(call.request, timeout=seconds(timeout))
        except grpc.RpcError as error:
            raise from_grpc(error, self._target) from None
        except ValueError:  # the channel is closed
            raise make(Closed, CLOSED) from None
        return call.decode(answer)


class Watch(Generic[T]):
    """An iterator over what a service reports; close it when done.

    It ends with DaemonUnavailable when the daemon does, and stops when closed.
    """

    def __init__(self, stub: Any, target: str, call: ServiceCall[T], timeout: Timeout) -> None:
        self._target = target
        self._decode = call.decode
        self._closed = False
        _check_threads()
        try:
            self._call: Any = getattr(stub, call.method)(call.request)
        except ValueError:  # the channel is closed
            raise make(Closed, CLOSED) from None
        self._begin(seconds(timeout))

    def _begin(self, limit: float | None) -> None:
        """Until the daemon watches, which it says by its header; why not, the first next says."""
        if limit is None:
            self._call.initial_metadata()
            return
        timer = threading.Timer(limit, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            self._call.initial_metadata()
        finally:
            timer.cancel()
        if self._call.cancelled():  # by the timer
            raise make(TimedOut, f"the daemon at {self._target} did not answer")

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Waits for the next one."""
        _check_threads()
        try:
            return self._decode(next(self._call))
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise from_grpc(error, self._target) from None
        except StopIteration:
            if self._closed:
                raise
            raise make(DaemonUnavailable, "the daemon ended the watch") from None

    def close(self) -> None:
        """Ends the watch; whoever waits in it is told. Again: nothing."""
        self._closed = True
        if not _process.ending():
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_threads() -> None:
    """Raises where a watch, which a thread of gRPC serves, would wait for ever."""
    if _process.ending():
        raise make(Closed, _process.ENDING)
