"""The sending half alone: windows, order, refusals, outcomes, loss."""

from __future__ import annotations

import errno

import pytest
from wire import SenderWire

from rdsd import BatchError, DaemonUnavailable, OutcomeKind, TimedOut, TooLarge, WouldBlock
from rdsd._jobs import Mode, SendJob
from rdsd._sending import BATCH_DATAGRAMS
from rdsd._types import Address
from rdsd.v1 import rdsd_pb2 as pb

A = Address("10.0.0.1", 7)
B = Address("10.0.0.2", 7)


class Wire(SenderWire):
    """A Sender with a window, and the daemon's side by hand."""

    def __init__(
        self, *, window_bytes: int = 1000, batches: int = 8, outcomes: bool = False
    ) -> None:
        super().__init__(outcomes=outcomes)
        self.open(window_bytes, batches)

    def open(self, window_bytes: int, batches: int) -> None:
        bound = pb.Bound(
            send_window_bytes=window_bytes, send_window_batches=batches, max_datagram_bytes=900
        )
        self.sender.opened(bound)

    def submit(
        self, *payloads: bytes, mode: Mode = Mode.WAIT, deadline: float | None = None
    ) -> SendJob:
        items: list[tuple[Address, bytes]] = [(A, p) for p in payloads]
        return self.sender.submit(items, mode, deadline)

    def outcome(self, first: int, count: int, kind: OutcomeKind) -> None:
        self.sender.ledger.decided([(first, first + count, kind, "")])


def batch_error(job: SendJob) -> BatchError:
    assert job.call.done
    with pytest.raises(BatchError) as caught:
        job.call.result()
    return caught.value


def test_tags_are_consecutive_over_jobs() -> None:
    w = Wire()
    first, second = w.submit(b"1", b"2"), w.submit(b"3")
    w.answer(w.must_poll())
    w.answer(w.must_poll())
    assert first.call.result() == range(1, 3)
    assert second.call.result() == range(3, 4)


def test_layout_names_each_destination_once() -> None:
    w = Wire()
    items: list[tuple[Address, bytes]] = [(A, b"a"), (B, b""), (A, b"cc")]
    w.sender.submit(items, Mode.WAIT, None)
    batch = w.must_poll()
    assert batch.payload == b"acc"
    assert list(batch.length) == [1, 0, 2]
    assert [e.address for e in batch.destination] == [b"\x0a\0\0\1", b"\x0a\0\0\2"]
    assert list(batch.destination_index) == [0, 1, 0]


def test_window_bytes_hold_back_until_answered() -> None:
    w = Wire(window_bytes=1000)
    w.submit(b"x" * 600)
    w.submit(b"y" * 600)
    first = w.must_poll()
    assert w.poll() is None
    w.answer(first)
    assert w.must_poll().payload == b"y" * 600


def test_window_batches_hold_back() -> None:
    w = Wire(batches=2)
    for payload in (b"1", b"2"):
        w.submit(payload, mode=Mode.FIRST_TRY)
        first = w.must_poll()
    w.submit(b"3", mode=Mode.FIRST_TRY)
    assert w.poll() is None
    w.answer(first)
    assert w.poll() is not None


def test_waiting_batches_leave_a_quarter_of_the_window() -> None:
    w = Wire(batches=4)
    for _ in range(4):
        w.submit(b"wait")
    assert [w.poll() is not None for _ in range(4)] == [True, True, True, False]
    w.submit(b"other", mode=Mode.FIRST_TRY)
    assert w.must_poll().payload == b"other"


def test_parts_of_one_job_follow_one_another() -> None:
    w = Wire(window_bytes=1 << 20)
    job = w.submit(*[b"x"] * (BATCH_DATAGRAMS + 5))
    first = w.must_poll()
    assert len(first.length) == BATCH_DATAGRAMS
    assert w.poll() is None, "the rest waits for the answer, or order could break"
    w.answer(first)
    second = w.must_poll()
    assert second.first_tag == 1 + BATCH_DATAGRAMS
    w.answer(second)
    assert len(job.call.result()) == BATCH_DATAGRAMS + 5


def test_nothing_overtakes_what_a_try_was_refused() -> None:
    w = Wire(window_bytes=1 << 20)
    items = [(A, b"")] * BATCH_DATAGRAMS + [(A, b""), (B, b""), (A, b""), (B, b"")]
    job = w.sender.submit(items, Mode.TRY, None)
    w.answer(w.must_poll(), (BATCH_DATAGRAMS - 1, 1, errno.ENOBUFS))
    for tag in (BATCH_DATAGRAMS + 2, BATCH_DATAGRAMS + 4):  # there is room again
        batch = w.must_poll()
        assert (batch.first_tag, len(batch.length)) == (tag, 1)
        assert [e.address for e in batch.destination] == [b"\x0a\0\0\2"]
        w.answer(batch)
    errors = batch_error(job).errors
    assert [i - BATCH_DATAGRAMS for i, _ in errors] == [-1, 0, 2]
    assert {e.errno for _, e in errors} == {errno.ENOBUFS}


def test_a_refused_try_ends_when_nothing_else_is_left() -> None:
    w = Wire(window_bytes=1 << 20)
    job = w.submit(*[b""] * (BATCH_DATAGRAMS + 2), mode=Mode.TRY)
    w.answer(w.must_poll(), (0, BATCH_DATAGRAMS, errno.EAGAIN))
    assert w.poll() is None
    assert len(batch_error(job).errors) == BATCH_DATAGRAMS + 2


def test_singles_that_found_no_room_keep_their_order() -> None:
    w = Wire(batches=2)
    for payload in (b"1", b"2"):  # the second waits for a place among those that wait
        w.submit(payload)
    oldest = w.must_poll()
    assert w.poll() is None
    for payload in (b"3", b"4", b"5"):
        w.submit(payload, mode=Mode.FIRST_TRY)
    tries = w.must_poll()
    assert tries.payload == b"345"
    w.submit(b"6")
    w.answer(tries, (0, 3, errno.EAGAIN))
    for payload in (b"2", b"3", b"4", b"5", b"6"):
        assert w.poll() is None
        w.answer(oldest)
        oldest = w.must_poll()
        assert oldest.payload == payload


def test_single_send_tries_first_and_then_waits() -> None:
    w = Wire()
    job = w.submit(b"x", mode=Mode.FIRST_TRY, deadline=10.0)
    tried = w.must_poll(now=1.0)
    assert not tried.wait
    assert w.answer(tried, (0, 1, errno.ENOBUFS)) == {A}
    assert not job.call.done
    waiting = w.must_poll(now=4.0)
    assert waiting.wait
    assert waiting.timeout_ns == 6_000_000_000
    assert waiting.first_tag == tried.first_tag
    w.answer(waiting)
    assert job.call.result() == range(1, 2)


def test_single_datagrams_that_queue_leave_together() -> None:
    w = Wire(batches=1)
    w.submit(b"0")
    first = w.must_poll()
    jobs = [w.submit(b"%d" % i, mode=Mode.FIRST_TRY) for i in range(1, 5)]
    late = w.submit(b"late", mode=Mode.FIRST_TRY, deadline=1.0)
    assert w.poll() is None
    w.answer(first)
    batch = w.must_poll(now=2.0)
    assert (batch.payload, batch.first_tag) == (b"1234", 2)
    w.answer(batch, (1, 1, errno.ENOBUFS), (2, 2, errno.EHOSTUNREACH))
    assert jobs[0].call.result() == range(2, 3)
    assert not jobs[1].call.done, "refused once, it waits from now on"
    assert batch_error(jobs[2]).errno == batch_error(jobs[3]).errno == errno.EHOSTUNREACH
    waiting = w.must_poll(now=2.0)
    assert (waiting.payload, waiting.wait, waiting.first_tag) == (b"2", True, 3)
    assert batch_error(late).errno == errno.ETIMEDOUT


def test_gathered_datagrams_stay_within_the_window() -> None:
    w = Wire(window_bytes=1000, batches=4)
    for _ in range(3):
        w.submit(b"x" * 400, mode=Mode.FIRST_TRY)
    assert len(w.must_poll().length) == 2
    assert w.poll() is None


def test_a_gathered_batch_lost_is_undecided_for_each() -> None:
    w = Wire()
    jobs = [w.submit(b"x", mode=Mode.FIRST_TRY) for _ in range(3)]
    assert len(w.must_poll().length) == 3
    w.sender.lost()
    assert all(batch_error(job).undecided for job in jobs)


def test_try_send_is_refused_by_a_spent_window() -> None:
    w = Wire(batches=1)
    w.submit(b"x")
    w.must_poll()
    assert isinstance(batch_error(w.submit(b"y", mode=Mode.TRY)).errors[0][1], WouldBlock)
    assert w.poll() is None


def test_errors_are_listed_by_index() -> None:
    w = Wire()
    job = w.submit(b"1", b"x" * 901, b"3", b"4")
    first = w.must_poll()
    assert list(first.length) == [1]
    w.answer(first)
    second = w.must_poll()
    assert list(second.length) == [1, 1]
    w.answer(second, (1, 1, errno.ECANCELED))
    error = batch_error(job)
    assert [(i, e.errno) for i, e in error.errors] == [(1, errno.EMSGSIZE), (3, errno.ECANCELED)]
    assert isinstance(error.errors[0][1], TooLarge)
    assert error.accepted == 2


def test_a_run_of_errors_past_the_batch_is_cut() -> None:
    w = Wire()
    job = w.submit(b"1", b"2")
    w.answer(w.must_poll(), (1, 100, errno.EIO), (7, 1, errno.EIO))
    assert [i for i, _ in batch_error(job).errors] == [1]


def test_deadline_passed_before_leaving() -> None:
    w = Wire()
    job = w.submit(b"x", deadline=5.0)
    assert w.poll(now=5.0) is None
    error = batch_error(job).errors[0][1]
    assert isinstance(error, TimedOut)
    assert not error.undecided


def test_expire_takes_back_what_has_not_left() -> None:
    w = Wire(batches=1)
    sent, queued = w.submit(b"1"), w.submit(b"2")
    batch = w.must_poll()
    w.sender.expire(queued)
    w.sender.expire(sent)
    assert batch_error(queued).errno == errno.ETIMEDOUT
    assert not sent.call.done, "the daemon has it: its answer decides"
    w.answer(batch)
    assert sent.call.result() == range(1, 2)


def test_outcomes_come_once_and_in_order() -> None:
    w = Wire(outcomes=True)
    w.submit(b"1", b"2", b"3")
    w.answer(w.must_poll(), (1, 1, errno.ENOBUFS))
    w.outcome(1, 1, OutcomeKind.DELIVERED)
    w.outcome(1, 3, OutcomeKind.CANCELLED)  # 1 is decided, 2 was never accepted
    assert [(o.tag, o.kind.name) for o in w.sender.ledger.take(10)] == [
        (1, "DELIVERED"),
        (3, "CANCELLED"),
    ]


def test_outcomes_are_taken_in_parts() -> None:
    w = Wire(outcomes=True)
    w.submit(*[b"x"] * 10)
    w.answer(w.must_poll())
    w.outcome(1, 10, OutcomeKind.DELIVERED)
    assert len(w.sender.ledger.queue.items) == 1, "kept as one range"
    assert [o.tag for o in w.sender.ledger.take(4)] == [1, 2, 3, 4]
    assert [o.tag for o in w.sender.ledger.take(99)] == [5, 6, 7, 8, 9, 10]


def test_unread_outcomes_brake_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdsd._outcomes.UNREAD_RANGES", 2)
    w = Wire(outcomes=True)
    w.submit(b"1", b"2")
    w.answer(w.must_poll())
    w.outcome(1, 1, OutcomeKind.DELIVERED)
    w.outcome(2, 1, OutcomeKind.FAILED)
    w.submit(b"3")
    assert w.poll() is None
    assert isinstance(batch_error(w.submit(b"4", mode=Mode.TRY)).errors[0][1], WouldBlock)
    w.sender.ledger.take(1)
    assert w.poll() is not None


def test_loss_makes_accepted_datagrams_unknown() -> None:
    w = Wire(outcomes=True)
    w.submit(b"1", b"2")
    w.answer(w.must_poll())
    w.outcome(1, 1, OutcomeKind.DELIVERED)
    w.sender.lost()
    w.sender.lost()
    outcomes = w.sender.ledger.take(10)
    assert [(o.tag, o.kind.name, o.reason) for o in outcomes] == [
        (1, "DELIVERED", ""),
        (2, "UNKNOWN", "daemon restarted"),
    ]


def test_loss_before_the_answer_is_undecided() -> None:
    w = Wire()
    job = w.submit(b"x" * 600, b"y" * 600, b"3")
    w.must_poll()
    w.sender.lost()
    error = batch_error(job)
    assert error.undecided
    assert [(i, e.undecided) for i, e in error.errors] == [(0, True), (1, False), (2, False)]
    assert all(isinstance(e, DaemonUnavailable) for _, e in error.errors)


def test_loss_with_an_early_outcome_counts_as_accepted() -> None:
    w = Wire(outcomes=True)
    job = w.submit(b"1", b"2")
    w.must_poll()
    w.outcome(1, 1, OutcomeKind.DELIVERED)
    w.sender.lost()
    assert [i for i, _ in batch_error(job).errors] == [1]
    assert [o.tag for o in w.sender.ledger.take(9)] == [1]


def test_what_never_left_goes_over_the_next_stream() -> None:
    w = Wire(batches=1)
    w.submit(b"sent")
    w.must_poll()
    queued = w.submit(b"queued", mode=Mode.FIRST_TRY)
    w.sender.lost()
    w.open(1000, 1)
    w.answer(w.must_poll())
    assert queued.call.result() == range(2, 3)


def test_close_refuses_what_is_queued() -> None:
    w = Wire()
    job = w.submit(b"1")
    w.sender.lost()
    w.sender.close(DaemonUnavailable(errno.ESHUTDOWN, "gone"))
    assert batch_error(job).errno == errno.ESHUTDOWN
    call = w.sender.ledger.queue.ready.wait()
    assert isinstance(call.error, DaemonUnavailable)


def test_a_result_for_nothing_is_ignored() -> None:
    w = Wire()
    assert set(w.sender.answered(pb.SendResult(id=99))) == set()


def test_what_its_caller_has_left_is_not_sent_again() -> None:
    w = Wire()
    gone, waits = (w.submit(payload, mode=Mode.FIRST_TRY) for payload in (b"gone", b"waits"))
    batch = w.must_poll()
    w.sender.abandon(gone, TimedOut(errno.ETIMEDOUT, "cancelled"))
    w.answer(batch, (0, 2, errno.ENOBUFS))
    again = w.must_poll()
    assert (again.payload, again.wait) == (b"waits", True)
    assert w.poll() is None
    w.answer(again)
    assert waits.call.result() == waits.tags
