"""A whole socket without I/O: binding, answers, loss and return."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from rdsd import (
    Address,
    AddressInUse,
    AddressNotAvailable,
    BatchError,
    CancelResult,
    Closed,
    ConnectionReset,
    DaemonUnavailable,
    InvalidArgument,
    OutcomeKind,
    PermissionDenied,
    ProtocolError,
    RdsError,
    TimedOut,
)
from rdsd._core import BACKOFF_FIRST, BACKOFF_LIMIT, BindOptions, SocketCore, State
from rdsd._errors import make
from rdsd._jobs import Mode
from rdsd.v1 import rdsd_pb2 as pb

LOCAL = Address("10.0.0.9", 0)
DST = Address("10.0.0.1", 7)


class Socket:
    """A SocketCore and the daemon's side of its stream by hand."""

    def __init__(self, **options: Any) -> None:
        self.core = SocketCore(BindOptions(local=LOCAL, **options), random.Random(1))

    def bind(self, port: int = 4000, instance: int = 1) -> pb.Bind:
        self.core.stream_opened()
        message = self.must_poll()
        assert message.WhichOneof("body") == "bind"
        local = pb.Endpoint(address=message.bind.local.address, port=port)
        self.core.receive(
            pb.ServerMessage(
                bound=pb.Bound(
                    local=local,
                    send_window_bytes=1 << 20,
                    send_window_batches=8,
                    max_datagram_bytes=1 << 20,
                    daemon_instance=instance,
                )
            )
        )
        monitor = self.must_poll()
        assert monitor.monitor.clear_events
        return message.bind

    def poll(self, now: float = 0.0) -> pb.ClientMessage | None:
        idle = not self.core.has_output
        message = self.core.poll(now)
        assert message is None or not idle, "has_output must not miss a message"
        return message

    def must_poll(self) -> pb.ClientMessage:
        message = self.poll()
        assert message is not None
        return message


def test_nothing_leaves_before_the_bind_is_answered() -> None:
    s = Socket()
    job = s.core.send([(DST, b"early")], Mode.WAIT, None)
    assert s.poll() is None
    s.core.stream_opened()
    assert s.must_poll().WhichOneof("body") == "bind"
    assert s.poll() is None
    assert not job.call.done


def test_bind_tells_the_port_and_keeps_it() -> None:
    s = Socket(recv_window_datagrams=10, recv_window_bytes=99, label="x")
    bind = s.bind(port=4321)
    assert (bind.local.port, bind.initial_credit_datagrams, bind.initial_credit_bytes) == (
        0,
        10,
        99,
    )
    assert bind.label == "x"
    assert s.core.bound.result() == Address("10.0.0.9", 4321)
    assert s.core.stream_lost(None) is not None
    assert s.bind(port=4321).local.port == 4321, "the same port again"


def test_answers_find_their_question() -> None:
    s = Socket()
    s.bind()
    first, second = s.core.congested(DST), s.core.congested(DST)
    ids = [s.must_poll().congested.id, s.must_poll().congested.id]
    for query_id, value in ((ids[1], True), (ids[0], False)):
        result = pb.CongestedResult(id=query_id, congested=value)
        s.core.receive(pb.ServerMessage(congested_result=result))
    assert first.call.result() is False
    assert second.call.result() is True


def test_cancel_flush_and_peek() -> None:
    s = Socket()
    s.bind()
    cancel, flush, peek = s.core.cancel_sent_to(DST), s.core.flush(2.0), s.core.peek()
    c, f, p = s.must_poll().cancel, s.must_poll().flush, s.must_poll().peek
    assert f.timeout_ns == 2_000_000_000
    s.core.receive(
        pb.ServerMessage(cancel_result=pb.CancelResult(id=c.id, cancelled=2, in_flight=1))
    )
    late = pb.FlushResult(id=f.id, errno=errno.ETIMEDOUT, in_flight=5)
    s.core.receive(pb.ServerMessage(flush_result=late))
    s.core.receive(pb.ServerMessage(peek_result=pb.PeekResult(id=p.id, available=False)))
    assert cancel.call.result() == CancelResult(2, 1)
    with pytest.raises(TimedOut, match="5 datagrams undecided"):
        flush.call.result()
    assert peek.call.result() is None


def test_control_goes_before_datagrams() -> None:
    s = Socket()
    s.bind()
    s.core.send([(DST, b"x")], Mode.WAIT, None)
    s.core.cancel_sent_to(DST)
    assert s.must_poll().WhichOneof("body") == "cancel"
    assert s.must_poll().WhichOneof("body") == "send"


def test_monitor_follows_the_watchers() -> None:
    s = Socket(congestion_mask=5)
    s.bind()
    queue = s.core.watch()
    monitor = s.must_poll().monitor
    assert (monitor.mask, monitor.set_events) == (5, True)
    s.core.watchers.remove(queue)
    assert not s.must_poll().monitor.set_events
    assert s.poll() is None


def test_questions_without_effect_are_asked_again_after_a_loss() -> None:
    s = Socket()
    s.bind()
    congested, flush, cancel = s.core.congested(DST), s.core.flush(None), s.core.cancel_sent_to(DST)
    for _ in range(3):
        s.must_poll()
    s.core.stream_lost(None)
    for lost in (flush, cancel):
        assert isinstance(lost.call.error, DaemonUnavailable)
    s.bind()
    again = s.must_poll().congested
    s.core.receive(pb.ServerMessage(congested_result=pb.CongestedResult(id=again.id)))
    assert congested.call.result() is False


def test_a_watcher_is_woken_by_the_return() -> None:
    s = Socket()
    s.bind()
    queue = s.core.watch()
    s.core.watchers.refused(DST)
    s.core.stream_lost(None)
    assert not queue.items
    s.bind(instance=2)
    assert [c.addr for c in queue.items[0].changes] == [DST]


def test_try_send_while_the_daemon_is_away() -> None:
    s = Socket()
    s.bind()
    s.core.stream_lost(None)
    with pytest.raises(DaemonUnavailable):
        s.core.send([(DST, b"x")], Mode.TRY, None)


def test_first_bind_is_not_retried() -> None:
    s = Socket()
    s.core.stream_opened()
    assert s.core.stream_lost(make(DaemonUnavailable)) is None
    assert isinstance(s.core.bound.error, DaemonUnavailable)
    assert s.core.state is State.CLOSED


def test_refusal_of_the_bind_is_the_callers_error() -> None:
    s = Socket()
    s.core.stream_opened()
    closing = pb.Closing(errno=errno.EADDRINUSE, message="port 7 is taken")
    s.core.receive(pb.ServerMessage(closing=closing))
    assert s.core.stream_lost(None) is None
    with pytest.raises(AddressInUse, match="port 7 is taken"):
        s.core.bound.result()


def test_backoff_is_drawn_below_a_rising_ceiling() -> None:
    s = Socket()
    s.bind()
    delays = [s.core.stream_lost(make(DaemonUnavailable)) for _ in range(200)]
    for n, delay in enumerate(delays):
        assert delay is not None
        assert 0 <= delay <= min(BACKOFF_LIMIT, BACKOFF_FIRST * 2 ** min(n, 16))
    assert max(d for d in delays if d is not None) > BACKOFF_LIMIT / 2
    s.bind()
    delay = s.core.stream_lost(None)
    assert delay is not None
    assert delay <= BACKOFF_FIRST, "a stream that was bound starts anew"


@pytest.mark.parametrize(
    ("number", "returns"),
    [(errno.ESHUTDOWN, True), (errno.ECONNRESET, False), (errno.ECANCELED, False)],
)
def test_closing_says_whether_to_come_back(number: int, returns: bool) -> None:
    s = Socket()
    s.bind()
    s.core.receive(pb.ServerMessage(closing=pb.Closing(errno=number, message="why")))
    assert (s.core.stream_lost(None) is not None) is returns
    if not returns:
        assert s.core.error is not None
        assert s.core.error.errno == number


def test_a_right_lost_meanwhile_ends_the_socket() -> None:
    s = Socket()
    s.bind()
    s.core.stream_lost(None)
    s.core.stream_opened()
    assert s.core.stream_lost(make(PermissionDenied)) is None
    assert isinstance(s.core.error, PermissionDenied)


@pytest.mark.parametrize(
    ("number", "returns"),
    [
        (errno.EADDRINUSE, True),
        (errno.EADDRNOTAVAIL, True),
        (errno.ENOMEM, True),
        (errno.EMFILE, True),
        (errno.EUSERS, True),
        (errno.ESHUTDOWN, True),
        (errno.EACCES, False),
    ],
)
def test_a_refused_bind_is_tried_again(number: int, returns: bool) -> None:
    s = Socket()
    s.bind()
    s.core.stream_lost(None)
    s.core.stream_opened()
    s.core.receive(pb.ServerMessage(closing=pb.Closing(errno=number, message="why")))
    assert (s.core.stream_lost(None) is not None) is returns


@pytest.mark.parametrize("refusal", [AddressInUse, AddressNotAvailable])
def test_a_port_or_address_that_is_away_for_long_is_waited_for(refusal: type[RdsError]) -> None:
    s = Socket()
    s.bind()
    for _ in range(500):
        assert s.core.stream_lost(make(refusal)) is not None
    s.bind()
    assert s.core.state is State.OPEN


def test_without_reconnect_a_loss_is_the_end() -> None:
    s = Socket(reconnect=False)
    s.bind()
    ready = s.core.inbox.ready.wait()
    assert s.core.stream_lost(None) is None
    assert isinstance(ready.error, DaemonUnavailable)
    with pytest.raises(DaemonUnavailable):
        s.core.send([(DST, b"x")], Mode.WAIT, None)


def test_what_close_leaves_behind() -> None:
    s = Socket(outcomes=True)
    s.bind()
    accepted = s.core.send([(DST, b"accepted")], Mode.WAIT, None)
    s.core.receive(pb.ServerMessage(send_result=pb.SendResult(id=s.must_poll().send.id)))
    sent, queued = (s.core.send([(DST, b"x")], Mode.WAIT, None) for _ in range(2))
    s.must_poll()
    tried = s.core.send([(DST, b"x")], Mode.TRY, None)
    s.core.close()
    assert accepted.call.result() == range(1, 2)
    for job, may_be in ((sent, True), (queued, False), (tried, False)):
        assert isinstance(job.call.error, BatchError)
        error = job.call.error.errors[0][1]
        assert (type(error), error.undecided) == (Closed, may_be)
    (outcome,) = s.core.sender.ledger.take(9)
    assert outcome == (1, OutcomeKind.UNKNOWN, "the socket is closed")


def test_close_fails_everything_once() -> None:
    s = Socket()
    s.bind()
    job = s.core.send([(DST, b"x")], Mode.WAIT, None)
    query, watch, ready = s.core.peek(), s.core.watch(), s.core.inbox.ready.wait()
    s.core.close()
    s.core.close()
    for error in (query.call.error, ready.error, watch.ready.wait().error):
        assert isinstance(error, Closed)
    assert job.call.done
    assert s.poll() is None
    assert s.core.stream_lost(make(ConnectionReset)) is None
    with pytest.raises(Closed):
        s.core.flush(None)
    with pytest.raises(Closed):
        s.core.congested(DST)


@pytest.mark.parametrize(
    "batch",
    [
        pb.RecvBatch(payload=b"abc", length=[1]),
        pb.RecvBatch(payload=b"a", length=[1]),
        pb.RecvBatch(payload=b"a", length=[1], source=[pb.Endpoint(address=b"abc")]),
        pb.RecvBatch(
            payload=b"a",
            length=[1],
            source=[pb.Endpoint(address=b"\x0a\0\0\1", port=1)],
            source_index=[1],
        ),
    ],
)
def test_a_malformed_batch_is_a_protocol_error(batch: pb.RecvBatch) -> None:
    s = Socket()
    s.bind()
    with pytest.raises(ProtocolError):
        s.core.receive(pb.ServerMessage(recv=batch))
    assert not len(s.core.inbox)


def test_a_message_of_a_newer_daemon_is_ignored() -> None:
    s = Socket()
    s.bind()
    s.core.receive(pb.ServerMessage.FromString(b"\xfa\x01\x00"))
    assert s.core.state is State.OPEN


def test_errors_are_os_errors() -> None:
    error: RdsError = make(InvalidArgument, "why")
    assert isinstance(error, OSError)
    assert isinstance(error, ValueError)
    assert str(error) == "why"
