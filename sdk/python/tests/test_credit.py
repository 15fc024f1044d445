"""Sending by credit alone: what is posted, what each posted datagram becomes, and accounts."""

from __future__ import annotations

import pytest
from wire import SenderWire

from rdsd import BatchError, CongestionChange, CongestionEvent, DaemonUnavailable, OutcomeKind
from rdsd._core import BindOptions, SocketCore
from rdsd._credit import MAX_WAYS, SLOW_AFTER, SMALL
from rdsd._errors import make
from rdsd._jobs import Mode, SendJob
from rdsd._sending import BATCH_DATAGRAMS
from rdsd._types import Address
from rdsd.v1 import rdsd_pb2 as pb

A = Address("10.0.0.1", 7)
B = Address("10.0.0.2", 8)
CREDIT = 8  # datagrams


class Wire(SenderWire):
    """A Sender with credit, and the daemon's side by hand."""

    def __init__(self, *, outcomes: bool = False, credit: int = CREDIT, ask: bool = True) -> None:
        super().__init__(outcomes=outcomes)
        self.sender.by_credit = True
        self.credit = credit
        self.open()
        if ask:
            self.clear(A, A)

    def open(self) -> None:
        self.sender.opened(
            pb.Bound(
                send_window_bytes=4 << 20,
                send_window_batches=32,
                max_datagram_bytes=1 << 20,
                send_credit_bytes=1 << 20,
                send_credit_datagrams=self.credit,
            )
        )

    def clear(self, *addrs: Address) -> None:
        """Has the ways be clear: two sends of a socket are answered before it asks for news."""
        for addr in addrs:
            job = self.send(b"asked", addr)
            assert not job.posted
            batch = self.must_poll()
            assert not batch.wait
            self.answer(batch)

    def send(self, payload: bytes, addr: Address = A, mode: Mode = Mode.FIRST_TRY) -> SendJob:
        return self.sender.submit([(addr, payload)], mode, None)

    def post(self, payload: bytes, addr: Address = A) -> SendJob:
        job = self.send(payload, addr)
        assert job.posted
        assert job.call.result() == job.tags
        return job

    def congestion(self, addr: Address, on: bool) -> None:
        self.sender.congestion(CongestionEvent(0, (CongestionChange(addr, on),)))

    def outcomes(self) -> dict[int, OutcomeKind]:
        return {o.tag: o.kind for o in self.sender.ledger.take(100)}

    def nothing_posted(self) -> bool:
        c = self.sender.credit
        return (c.bytes, c.datagrams) == (0, 0) and not self.sender.posted_before(1 << 60)


def test_without_credit_every_send_is_answered() -> None:
    w = Wire(credit=0, ask=False)
    for _ in range(4):
        job = w.send(b"x")
        assert not job.posted
        w.answer(w.must_poll())
        assert job.call.done


def test_a_stream_whose_results_nobody_reads_has_no_credit() -> None:
    w = Wire(ask=False)
    w.sender.credit.lost()
    w.sender.by_credit = False
    w.open()
    for _ in range(4):
        assert not w.send(b"x").posted
        w.answer(w.must_poll())


def test_posts_stay_within_the_credit_and_gather() -> None:
    w = Wire()
    batches = []
    for i in range(CREDIT):
        w.post(b"%d" % i)
        if i < 2:  # two are without a result, and the rest gathers
            batches.append(w.must_poll())
            assert batches[-1].wait
            assert batches[-1].timeout_ns == 0
    late = w.send(b"late")
    assert not late.call.done
    assert w.poll() is None
    w.answer(batches[0])
    assert late.posted
    assert late.call.done  # there is credit again
    batches.append(w.must_poll())
    assert [b.payload for b in batches] == [b"0", b"1", b"234567late"]
    for batch in batches[1:]:
        w.answer(batch)
    assert w.nothing_posted()


def test_a_refusal_is_the_outcome_and_the_next_send_asks() -> None:
    w = Wire(outcomes=True)
    w.outcomes()
    job = w.sender.submit([(A, b"x")] * 4, Mode.WAIT, None)
    assert job.posted
    first = job.tags.start
    batch = w.must_poll()
    assert (batch.first_tag, batch.want_outcomes) == (first, True)
    w.sender.ledger.decided([(first + 3, first + 4, OutcomeKind.DELIVERED, "")])
    w.answer(batch, (1, 1, 12), (2, 1, 125))
    w.sender.ledger.decided([(first, first + 1, OutcomeKind.DELIVERED, "")])
    assert w.outcomes() == {
        first: OutcomeKind.DELIVERED,
        first + 1: OutcomeKind.FAILED,
        first + 2: OutcomeKind.CANCELLED,
        first + 3: OutcomeKind.DELIVERED,
    }
    assert w.nothing_posted()
    assert not w.send(b"asks").posted


def test_congestion_takes_credit_back_and_holds_up_nobody_else() -> None:
    w = Wire()
    w.clear(B)
    w.post(b"one")
    one = w.must_poll()
    w.post(b"two")
    two = w.must_poll()
    w.congestion(A, True)
    held = w.send(b"held")
    assert not held.posted
    asked = w.must_poll()
    assert not asked.wait
    w.answer(asked, (0, 1, 105))
    waits = w.must_poll()
    assert waits.wait
    for _ in range(5):
        w.post(b"other", B)
        w.answer(w.must_poll())
    assert not held.call.done
    w.congestion(A, False)
    assert not w.send(b"behind", mode=Mode.TRY).call.done
    assert not w.send(b"not before those that wait").posted
    for batch in (one, two, waits):
        w.answer(batch)
    assert held.call.done
    while (batch := w.poll()) is not None:
        w.answer(batch)
    w.post(b"clear")
    w.answer(w.must_poll())
    assert w.nothing_posted()


def test_what_stays_without_a_result_is_slow() -> None:
    w = Wire()
    for i in range(CREDIT):
        w.post(b"%d" % i)
    first = w.must_poll(1.0)
    assert w.sender.look_again is None  # nobody waits for it
    late = w.send(b"late", B)  # its way is unknown: it asks, behind nothing that waits
    assert not late.posted
    w.answer(w.must_poll(1.0))
    assert late.call.done
    late = w.send(b"late")
    assert w.sender.look_again == 1.0 + SLOW_AFTER
    assert w.poll(1.0 + SLOW_AFTER / 2) is None
    asks = w.must_poll(1.0 + SLOW_AFTER)
    assert not late.posted
    assert not asks.wait
    w.answer(asks)
    w.answer(first)
    assert late.call.done
    assert w.nothing_posted()


def test_large_posts_do_not_gather() -> None:
    w = Wire()
    for _ in range(4):
        w.post(bytes(SMALL))
        assert w.poll() is not None


def test_a_long_post_is_not_overtaken() -> None:
    w = Wire(credit=10_000)
    count = 2 * BATCH_DATAGRAMS + 1
    job = w.sender.submit([(A, b"x")] * count, Mode.WAIT, None)
    assert job.posted
    w.post(b"behind")
    batches = [w.must_poll(), w.must_poll()]
    assert w.poll() is None
    w.answer(batches[0])
    batches.append(w.must_poll())
    assert [len(b.length) for b in batches] == [BATCH_DATAGRAMS, BATCH_DATAGRAMS, 2]
    assert batches[2].payload == b"xbehind"
    w.answer(batches[1])
    w.answer(batches[2])
    assert w.nothing_posted()


def test_a_loss_between_posts() -> None:
    w = Wire(outcomes=True)
    w.outcomes()
    jobs = [w.post(b"0")]
    w.must_poll()
    jobs.append(w.post(b"1"))
    w.must_poll()
    jobs += [w.post(b"2"), w.post(b"3")]
    for _ in range(CREDIT - 4):
        w.post(b"x")
    late = w.send(b"late")
    w.sender.lost()
    w.open()
    again = w.must_poll()
    assert again.payload == b"23xxxx"
    assert (again.first_tag, again.wait) == (jobs[2].tags.start, True)
    rest = w.must_poll()
    assert (rest.payload, rest.wait) == (b"late", False)
    w.answer(again)
    w.answer(rest)
    assert late.call.done
    w.sender.ledger.decided([(jobs[2].tags.start, 1 << 40, OutcomeKind.DELIVERED, "")])
    got = w.outcomes()
    kinds = [got[job.tags.start] for job in jobs]
    unknown, delivered = OutcomeKind.UNKNOWN, OutcomeKind.DELIVERED
    assert kinds == [unknown, unknown, delivered, delivered]
    assert w.nothing_posted()
    assert not w.send(b"nothing is known of the next daemon's ports").posted


def test_close_tells_of_what_never_left() -> None:
    w = Wire(outcomes=True)
    w.outcomes()
    tags = [w.post(b"0").tags.start]
    w.must_poll()
    tags.append(w.post(b"1").tags.start)
    w.must_poll()
    tags.append(w.post(b"2").tags.start)
    for _ in range(CREDIT - 3):
        w.post(b"x")
    late = w.send(b"late")
    error = make(DaemonUnavailable, "closed")
    w.sender.lost(error)
    w.sender.close(error)
    got = w.outcomes()
    unknown, cancelled = OutcomeKind.UNKNOWN, OutcomeKind.CANCELLED
    assert [got[tag] for tag in tags] == [unknown, unknown, cancelled]
    with pytest.raises(BatchError, match="closed"):
        late.call.result()
    assert w.nothing_posted()


def test_many_destinations_give_the_credit_up() -> None:
    w = Wire()
    items = [(Address("10.0.0.3", 7000 + i), b"x") for i in range(MAX_WAYS)]
    job = w.sender.submit(items, Mode.WAIT, None)
    assert not job.posted
    w.answer(w.must_poll())
    assert not w.sender.credit.watching
    assert not w.send(b"x").posted


def test_what_waits_does_not_overtake_posts() -> None:
    w = Wire()
    posted = [w.post(b"0"), w.post(b"1")]
    batches = [w.must_poll()]
    posted.append(w.post(b"2"))
    batches.append(w.must_poll())
    posted.append(w.post(b"3"))
    waits = w.send(b"waits", B, Mode.WAIT)  # its way is not known
    assert not waits.posted
    assert w.poll() is None
    w.answer(batches[0])
    assert w.must_poll().payload == b"3"
    assert w.must_poll().payload == b"waits"


# -- the core: flush, cancel, news ----------------------------------------------------


def core() -> tuple[SocketCore, list[SendJob]]:
    """A socket with credit, two of whose posted datagrams have left, and two not."""
    c = SocketCore(BindOptions(Address("10.0.0.9", 0), outcomes=True))
    c.sender.by_credit = True
    c.stream_opened()
    assert c.poll(0.0) is not None
    bound = pb.Bound(
        local=pb.Endpoint(address=bytes([10, 0, 0, 9]), port=4000),
        send_window_bytes=4 << 20,
        send_window_batches=32,
        send_credit_bytes=1 << 20,
        send_credit_datagrams=100,
    )
    c.receive(pb.ServerMessage(bound=bound))
    first = c.poll(0.0)
    assert first is not None
    assert not first.monitor.set_events
    for _ in range(2):
        job = c.send([(A, b"asked")], Mode.FIRST_TRY, None)
        message = c.poll(0.0)
        assert message is not None
        if message.WhichOneof("body") == "monitor":
            assert message.monitor.set_events
            assert message.monitor.clear_events
            message = c.poll(0.0)
            assert message is not None
        c.receive(pb.ServerMessage(send_result=pb.SendResult(id=message.send.id)))
        assert job.call.done
    jobs = []
    for i in range(4):
        jobs.append(c.send([(A, b"%d" % i)], Mode.FIRST_TRY, None))
        assert jobs[-1].posted
        if i < 2:
            message = c.poll(0.0)
            assert message is not None
            assert message.send.payload == b"%d" % i
    assert c.poll(0.0) is None
    return c, jobs


def test_flush_and_cancel_go_behind_posts() -> None:
    c, _ = core()
    flush, cancel = c.flush(None), c.cancel_sent_to(A)
    rest = c.poll(0.0)
    assert rest is not None
    assert rest.send.payload == b"23"
    asked = c.poll(0.0)
    assert asked is not None
    assert asked.WhichOneof("body") == "cancel"
    assert c.poll(0.0) is None
    pending = sorted(c.sender._batches)
    assert len(pending) == 3
    c.receive(pb.ServerMessage(send_result=pb.SendResult(id=pending[0])))
    for batch_id in pending[1:]:
        count = c.sender._batches[batch_id].count
        result = pb.SendResult(id=batch_id)
        result.errors.add(index=0, count=count, errno=125)
        c.receive(pb.ServerMessage(send_result=result))
    answer = pb.CancelResult(id=asked.cancel.id, cancelled=1)
    c.receive(pb.ServerMessage(cancel_result=answer))
    assert cancel.call.result().cancelled == 4
    asked = c.poll(0.0)
    assert asked is not None
    assert asked.WhichOneof("body") == "flush"
    c.receive(pb.ServerMessage(flush_result=pb.FlushResult(id=asked.flush.id)))
    assert flush.call.done


OTHER, THIRD, FOURTH = Address("10.0.0.1", 8), Address("10.0.0.3", 7), Address("10.0.0.1", 9)
HOST = Address("10.0.0.1", 0)


@pytest.mark.parametrize(
    ("calls", "want"),
    [
        ([OTHER, A], [0, 2]),
        ([THIRD, A], [1, 2]),
        ([THIRD, HOST], [1, 3]),
        ([OTHER, A, THIRD], [0, 2, 1]),
        ([A, A], [2, 0]),
        ([A, HOST], [2, 1]),
        ([HOST, A], [3, 0]),
        ([Address("::ffff:10.0.0.1", 7), THIRD], [2, 1]),
    ],
)
def test_cancels_count_their_own(calls: list[Address], want: list[int]) -> None:
    c, _ = core()
    rest = c.poll(1.0)  # what waited is slow by then
    while rest is not None:
        c.receive(pb.ServerMessage(send_result=pb.SendResult(id=rest.send.id)))
        rest = c.poll(1.0)
    for dst in (THIRD, FOURTH):
        asked = c.send([(dst, b"")], Mode.FIRST_TRY, None)
        message = c.poll(1.0)
        assert message is not None
        c.receive(pb.ServerMessage(send_result=pb.SendResult(id=message.send.id)))
        assert asked.call.done
    assert c.send([(d, b"x") for d in (A, THIRD, FOURTH, A)], Mode.FIRST_TRY, None).posted
    batch = c.poll(1.0)
    assert batch is not None
    queries = [c.cancel_sent_to(dst) for dst in calls]
    messages = [c.poll(1.0) for _ in calls]
    result = pb.SendResult(id=batch.send.id)
    result.errors.add(index=0, count=4, errno=125)
    c.receive(pb.ServerMessage(send_result=result))
    for message in messages:
        assert message is not None
        answer = pb.CancelResult(id=message.cancel.id)
        c.receive(pb.ServerMessage(cancel_result=answer))
    assert [query.call.result().cancelled for query in queries] == want


def test_a_cancel_ends_nothing_that_was_sent_behind_it() -> None:
    c, _ = core()
    c.take_back(A)  # nobody waits for it
    behind = c.send([(A, b"behind")], Mode.FIRST_TRY, None)
    assert behind.posted
    rest, asked, more = c.poll(0.0), c.poll(0.0), c.poll(1.0)
    assert rest is not None
    assert rest.send.payload == b"23"
    assert asked is not None
    assert asked.WhichOneof("body") == "cancel"
    assert more is not None
    assert more.send.payload == b"behind"


def test_a_flush_does_not_outlive_what_it_waits_for() -> None:
    c, _ = core()
    flush = c.flush(None)
    c.stream_lost(None)
    with pytest.raises(DaemonUnavailable):
        flush.call.result()


def test_news_that_nobody_watches_is_not_kept_for_watchers() -> None:
    c, _ = core()
    there = pb.Endpoint(address=bytes([10, 0, 0, 1]), port=7)
    for on in (True, False):
        event = pb.CongestionEvent()
        event.change.add(destination=there, congested=on)
        c.receive(pb.ServerMessage(congestion=event))
    assert not c.watch().items
