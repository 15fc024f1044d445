"""A daemon for tests: the Datagrams service in memory, with faults to order.

It serves gRPC and, as plain sockets, the control socket beside it. It delivers
between its own sockets, one datagram at a time, and can be told to refuse, to
keep silent, to break streams and to restart as another instance.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from rdsd.v1 import rdsd_pb2 as pb
from rdsd.v1 import rdsd_pb2_grpc as rpc

Key = tuple[bytes, int]


def key(e: pb.Endpoint) -> Key:
    return (e.address, e.port)


class FakeSocket:
    """One stream, seen from the daemon."""

    def __init__(self) -> None:
        self.out: queue.SimpleQueue[pb.ServerMessage | None] = queue.SimpleQueue()
        self.local = pb.Endpoint()
        self.bind = pb.Bind()
        self.credit = 0
        self.waiting: list[tuple[pb.Endpoint, bytes]] = []  # for credit
        self.held: list[pb.SendBatch] = []  # unanswered on purpose

    def push(self, source: pb.Endpoint, payload: bytes) -> None:
        self.waiting.append((source, payload))
        self.drain()

    def drain(self) -> None:
        while self.waiting and self.credit > 0:
            source, payload = self.waiting.pop(0)
            self.credit -= 1
            batch = pb.RecvBatch(payload=payload, length=[len(payload)], source=[source])
            self.out.put(pb.ServerMessage(recv=batch))


class FakeDaemon(rpc.DatagramsServicer):
    """start() listens, stop() ends every stream as a dying daemon does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = f"unix://{path}"
        self.instance = 0
        self.sockets: dict[Key, FakeSocket] = {}
        self.congested: set[int] = set()  # ports that refuse
        self.last_port = 3999
        self.silent: set[str] = set()  # kinds of client messages that are never answered
        self.ends_nothing = False  # streams that clients end
        self.no_outcome = False
        self.bind_errno = 0
        self.bind_status: tuple[grpc.StatusCode, str] | None = None
        self.window_bytes = 4 << 20
        self.window_batches = 16
        self.credit = 0  # datagrams that a client may post
        self.received: dict[str, list[pb.ClientMessage]] = defaultdict(list)
        self.changed = threading.Condition()
        self.lock = threading.RLock()
        self.server: grpc.Server | None = None
        self.control: Control | None = None
        self.serve_control = True

    # -- life ---------------------------------------------------------------

    def start(self) -> None:
        self.instance += 1
        self.path.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        rpc.add_DatagramsServicer_to_server(self, server)
        server.add_insecure_port(self.target)
        server.start()
        self.server = server
        if self.serve_control:
            self.control = Control(self)

    def stop(self) -> None:
        if self.server is None:
            return
        stopped = self.server.stop(0)
        if self.control is not None:
            self.control.stop()
            self.control = None
        with self.lock:
            for s in self.sockets.values():
                s.out.put(None)
            self.sockets.clear()
        stopped.wait(5)
        self.server = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def wait_received(self, kind: str, count: int = 1, timeout: float = 5.0) -> None:
        """Until so many messages of a kind have come."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.received[kind]) >= count, timeout):
                raise AssertionError(f"{len(self.received[kind])} of {count} {kind} came")

    def wait_taken_back(self, left: int, timeout: float = 5.0) -> None:
        """Until a request was cancelled, or its port closed: so many sockets are left."""

        def done() -> bool:
            return bool(self.received["cancel"]) or len(self.sockets) == left

        with self.changed:
            if not self.changed.wait_for(done, timeout):
                raise AssertionError(f"no cancel came, and there are {len(self.sockets)} sockets")

    # -- the service ----------------------------------------------------------

    def Open(
        self, request_iterator: Iterator[pb.ClientMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.ServerMessage]:
        if self.bind_status is not None:
            context.abort(*self.bind_status)
        sock = FakeSocket()
        context.add_callback(lambda: sock.out.put(None))
        yield from self.serve(sock, request_iterator)

    def serve(
        self, sock: FakeSocket, request_iterator: Iterator[pb.ClientMessage]
    ) -> Iterator[pb.ServerMessage]:
        reader = threading.Thread(target=self._read, args=(sock, request_iterator), daemon=True)
        reader.start()
        try:
            while (message := sock.out.get()) is not None:
                yield message
        finally:
            with self.lock:
                if self.sockets.get(key(sock.local)) is sock:
                    del self.sockets[key(sock.local)]
            with self.changed:
                self.changed.notify_all()

    def _read(self, sock: FakeSocket, messages: Iterator[pb.ClientMessage]) -> None:
        try:
            for message in messages:
                kind = message.WhichOneof("body") or ""
                with self.lock:
                    if kind not in self.silent:
                        getattr(self, f"_on_{kind}")(sock, getattr(message, kind))
                with self.changed:
                    self.received[kind].append(message)
                    self.changed.notify_all()
        except Exception:
            pass
        if not self.ends_nothing:
            sock.out.put(None)

    def _on_bind(self, sock: FakeSocket, bind: pb.Bind) -> None:
        port = bind.local.port
        while port == 0 or (bind.local.address, port) in self.sockets:
            if bind.local.port:
                self._end(sock, 98, "another socket owns this address and port")
                return
            self.last_port += 1  # as the daemon, which lets a port rest once it was closed
            port = self.last_port
            while (bind.local.address, port) in self.sockets:
                port += 1
        if self.bind_errno:
            self._end(sock, self.bind_errno, "refused by the test")
            return
        sock.local = pb.Endpoint(address=bind.local.address, port=port)
        sock.bind = bind
        sock.credit = bind.initial_credit_datagrams
        self.sockets[key(sock.local)] = sock
        sock.out.put(
            pb.ServerMessage(
                bound=pb.Bound(
                    local=sock.local,
                    max_datagram_bytes=1 << 20,
                    send_window_bytes=self.window_bytes,
                    send_window_batches=self.window_batches,
                    send_credit_bytes=self.window_bytes // 4 if self.credit else 0,
                    send_credit_datagrams=self.credit,
                    daemon_instance=self.instance,
                    daemon_version="fake",
                )
            )
        )

    def _on_send(self, sock: FakeSocket, batch: pb.SendBatch) -> None:
        result = pb.SendResult(id=batch.id)
        outcomes = pb.OutcomeBatch()
        at = 0
        for i, n in enumerate(batch.length):
            payload = batch.payload[at : at + n]
            at += n
            where = batch.destination_index[i] if batch.destination_index else 0
            dst = batch.destination[where]
            if dst.port in self.congested:
                result.errors.add(index=i, count=1, errno=105)
                continue
            result.accepted += 1
            peer = self.sockets.get(key(dst))
            kind, reason = pb.OUTCOME_KIND_DELIVERED, ""
            if peer is None:
                kind, reason = pb.OUTCOME_KIND_FAILED, "no such port"
            else:
                peer.push(sock.local, payload)
            outcomes.outcome.add(first_tag=batch.first_tag + i, count=1, kind=kind, reason=reason)
        sock.out.put(pb.ServerMessage(send_result=result))
        if batch.want_outcomes and outcomes.outcome and not self.no_outcome:
            sock.out.put(pb.ServerMessage(outcomes=outcomes))

    def _on_credit(self, sock: FakeSocket, credit: pb.Credit) -> None:
        sock.credit += credit.datagrams
        sock.drain()

    def _on_cancel(self, sock: FakeSocket, cancel: pb.Cancel) -> None:
        result = pb.CancelResult(id=cancel.id, cancelled=3, in_flight=1)
        sock.out.put(pb.ServerMessage(cancel_result=result))

    def _on_flush(self, sock: FakeSocket, flush: pb.Flush) -> None:
        sock.out.put(pb.ServerMessage(flush_result=pb.FlushResult(id=flush.id)))

    def _on_monitor(self, sock: FakeSocket, monitor: pb.Monitor) -> None:
        pass

    def _on_congested(self, sock: FakeSocket, query: pb.CongestedQuery) -> None:
        result = pb.CongestedResult(id=query.id, congested=query.destination.port in self.congested)
        sock.out.put(pb.ServerMessage(congested_result=result))

    def _on_peek(self, sock: FakeSocket, peek: pb.Peek) -> None:
        result = pb.PeekResult(id=peek.id, available=bool(sock.waiting))
        if sock.waiting:
            result.next_bytes = len(sock.waiting[0][1])
        sock.out.put(pb.ServerMessage(peek_result=result))

    # -- faults ---------------------------------------------------------------

    def clear(self, port: int) -> None:
        """A port clears; every socket is told."""
        with self.lock:
            self.congested.discard(port)
            for s in self.sockets.values():
                event = pb.CongestionEvent(freed_mask=1 << (port % 64))
                event.change.add(
                    destination=pb.Endpoint(address=s.local.address, port=port), congested=False
                )
                s.out.put(pb.ServerMessage(congestion=event))

    def close_all(self, errno: int, text: str) -> None:
        """Closing to every socket, then the end of its stream."""
        with self.lock:
            for s in list(self.sockets.values()):
                self._end(s, errno, text)

    def send_raw(self, message: pb.ServerMessage) -> None:
        with self.lock:
            for s in self.sockets.values():
                s.out.put(message)

    def _end(self, sock: FakeSocket, errno: int, text: str) -> None:
        sock.out.put(pb.ServerMessage(closing=pb.Closing(errno=errno, message=text)))
        sock.out.put(None)


class Control:
    """The control socket of a fake daemon, for plain sockets."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self._daemon = daemon
        self._path = Path(f"{daemon.path}.rings")
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        sock = FakeSocket()
        with connection, contextlib.suppress(OSError):
            for message in self._daemon.serve(sock, self._messages(connection)):
                data = message.SerializeToString()
                pieces = [data[at : at + 65536] for at in range(0, len(data), 65536)]
                for piece in pieces[:-1]:
                    connection.send(b"\x01\x01\0\0" + piece)
                connection.send(b"\x01\0\0\0" + pieces[-1])
            connection.shutdown(socket.SHUT_RDWR)  # the reader has it still
        self._connections.remove(connection)

    @staticmethod
    def _messages(connection: socket.socket) -> Iterator[pb.ClientMessage]:
        data = b""
        while packet := connection.recv(4 + 65536):
            kind, more, *zero = packet[:4]
            assert (kind, zero) == (1, [0, 0])
            data += packet[4:]
            if not more:
                yield pb.ClientMessage.FromString(data)
                data = b""
