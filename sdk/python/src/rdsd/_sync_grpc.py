"""One gRPC stream of the front for threads.

gRPC runs a thread of its own that takes what is to be written from the stream
as from an iterator; the socket's thread reads.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc

from ._calls import Call
from ._core import SocketCore
from ._errors import DaemonUnavailable, ProtocolError, RdsError, make
from ._grpc import from_grpc
from .v1 import rdsd_pb2 as pb
from .v1 import rdsd_pb2_grpc as rpc


class GrpcStream:
    """See Stream in _sync."""

    front_end = "grpc"

    def __init__(
        self,
        stub: rpc.DatagramsStub,
        target: str,
        core: SocketCore,
        changed: threading.Condition,
    ) -> None:
        self._stub = stub
        self._target = target
        self._core = core
        self._changed = changed
        self._stopped = False
        core.sender.by_credit = True  # results are read by the socket's thread in any case
        self._call: Any = None

    # -- as Stream has it ------------------------------------------------------

    def run(self) -> RdsError | None:
        limit = self._core.answer_by(0.0)
        watchdog = threading.Timer(limit or 0.0, self.cancel)
        watchdog.daemon = True
        try:
            self._call = self._stub.Open(self)
            if limit is not None:
                watchdog.start()
            for message in self._call:
                watchdog.cancel()
                with self._changed:
                    self._core.receive(message)
                    if self._core.has_output:
                        self.kick()
        except grpc.RpcError as error:
            return from_grpc(error, self._target)
        except ProtocolError as error:
            self.cancel()
            return error
        except ValueError as error:  # the channel is closed
            return make(DaemonUnavailable, str(error))
        finally:
            watchdog.cancel()
        return None

    def kick(self) -> None:
        self._changed.notify_all()

    def drive(self, call: Call[Any], deadline: float | None) -> None:
        return  # the socket's thread reads

    def waiting(self, change: int) -> None:
        return

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def stop(self) -> None:
        self._stopped = True
        self._changed.notify_all()

    # -- what gRPC's writing thread takes from -----------------------------------

    def __iter__(self) -> GrpcStream:
        return self

    def __next__(self) -> pb.ClientMessage:
        with self._changed:
            while not self._stopped and self._core.error is None:
                message = self._core.poll(time.monotonic())
                if message is not None:
                    return message
                again = self._core.look_again
                self._changed.wait(None if again is None else max(0.0, again - time.monotonic()))
        raise StopIteration
