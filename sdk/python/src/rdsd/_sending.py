"""The sending half of a stream: jobs, the send window, tags, outcomes.

A *job* is one send call. It leaves as one or more SendBatch messages, each
within the window the daemon gave, and one after the other: the next leaves when
the last one is answered, so that order holds whatever is refused. A message
counts as sent when the front takes it: what the front never took was certainly
not accepted and is sent again on the next stream. What was taken and not
answered when the stream broke may have been accepted: sending it again could
deliver it twice, so its caller gets DaemonUnavailable, marked undecided.

Batches that wait for room in the daemon hold their part of the window for long.
They get three quarters of it, and a single datagram waits only after it was
refused once: senders held up by one congested port leave room for the others.

Outcomes may come before the SendResult of their batch (a batch that waits for
room is answered at its end), so tags are noted as undecided when they leave.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from . import _codec
from ._calls import Call, EventQueue
from ._errors import (
    BatchError,
    Congested,
    DaemonUnavailable,
    RdsError,
    TimedOut,
    TooLarge,
    WouldBlock,
    error_from_errno,
    make,
)
from ._intervals import IntervalSet
from ._types import Address, Outcome, OutcomeKind, Payload
from .v1 import rdsd_pb2 as pb

#: One SendBatch stays within these, so that it passes gRPC's default message limit.
BATCH_BYTES = 1 << 20
BATCH_DATAGRAMS = 1024

#: Unread outcome ranges beyond which nothing more is sent: the reader is the brake.
OUTCOME_RANGES = 1 << 16

RESTARTED = "daemon restarted"

_NS = 1_000_000_000


class Mode(enum.Enum):
    """How a job meets a full send buffer or a congested destination."""

    TRY = "refused"
    FIRST_TRY = "tried once, then made to wait"
    WAIT = "waits in the daemon"


@dataclass(eq=False, slots=True)
class SendJob:
    """One send call: its datagrams, how far it got, and what was refused."""

    items: Sequence[tuple[Address, Payload]]
    first_tag: int
    mode: Mode
    deadline: float | None  # monotonic seconds
    call: Call[range] = field(default_factory=Call)
    position: int = 0  # datagrams before it have left or are refused
    outstanding: bool = False  # a batch has no result yet
    errors: list[tuple[int, RdsError]] = field(default_factory=list)

    @property
    def tags(self) -> range:
        return range(self.first_tag, self.first_tag + len(self.items))

    def refuse(self, start: int, end: int, error: RdsError) -> None:
        self.errors.extend((i, error) for i in range(start, end))

    def settle(self) -> None:
        """Finishes the call once every datagram is decided."""
        if self.call.done or self.outstanding or self.position < len(self.items):
            return
        if not self.errors:
            self.call.finish(self.tags)
            return
        self.errors.sort(key=lambda e: e[0])
        self.call.fail(BatchError(self.errors, self.tags))


@dataclass(eq=False, slots=True)
class _Batch:
    job: SendJob
    start: int
    count: int
    size: int  # payload bytes
    waits: bool

    @property
    def first_tag(self) -> int:
        return self.job.first_tag + self.start


class Sender:
    """Jobs on their way to the daemon."""

    def __init__(self, *, want_outcomes: bool) -> None:
        self.outcomes = EventQueue[tuple[int, int, OutcomeKind, str]]()
        self._want_outcomes = want_outcomes
        # A job stands in one of the queues, or has a batch outstanding.
        self._trying: deque[SendJob] = deque()
        self._waiting: deque[SendJob] = deque()
        self._batches: dict[int, _Batch] = {}
        self._undecided = IntervalSet()
        self._next_tag = 1
        self._window_bytes = 0
        self._window_batches = 0
        self._max_datagram = 0
        self._used_bytes = 0
        self._waiting_bytes = 0  # of them, in batches that wait in the daemon
        self._waiting_batches = 0

    def opened(self, bound: pb.Bound) -> None:
        """A stream is bound: its window holds from here on. 0 means no limit."""
        self._window_bytes = bound.send_window_bytes or (1 << 62)
        self._window_batches = bound.send_window_batches or (1 << 30)
        self._max_datagram = bound.max_datagram_bytes or (1 << 20)

    def submit(
        self, items: Sequence[tuple[Address, Payload]], mode: Mode, deadline: float | None
    ) -> SendJob:
        """Queues a job. TRY is refused when the window is spent."""
        job = SendJob(items, self._next_tag, mode, deadline)
        self._next_tag += len(items)
        if not items:
            job.settle()
        elif mode is Mode.TRY and (self._brake or not self._fits(len(items[0][1]))):
            self._refuse_rest(job, make(WouldBlock))
        else:
            self._queue(job).append(job)
        return job

    def poll(self, batch_id: int, now: float) -> pb.ClientMessage | None:
        """The next SendBatch the window allows."""
        if self._brake:
            return None
        return self._poll(self._trying, batch_id, now) or self._poll(self._waiting, batch_id, now)

    def answered(self, result: pb.SendResult) -> Iterable[Address]:
        """A SendResult. Returns the destinations refused as congested."""
        batch = self._batches.pop(result.id, None)
        if batch is None:
            return ()
        self._release(batch)
        job = batch.job
        congested: set[Address] = set()
        for e in result.errors:
            first = batch.start + min(e.index, batch.count)
            last = min(first + max(1, e.count), batch.start + batch.count)
            error = error_from_errno(e.errno, e.message)
            self._undecided.remove(job.first_tag + first, job.first_tag + last)
            if isinstance(error, Congested):
                congested.update(a for a, _ in job.items[first:last])
            if job.mode is Mode.FIRST_TRY and isinstance(error, Congested | WouldBlock):
                job.mode = Mode.WAIT
                job.position = 0
            else:
                job.refuse(first, last, error)
        if job.position < len(job.items):
            self._queue(job).appendleft(job)
        job.settle()
        return congested

    def decided(self, ranges: Iterable[tuple[int, int, OutcomeKind, str]]) -> None:
        """Outcomes from the daemon; a tag already decided is not reported twice."""
        for start, end, kind, reason in ranges:
            for s, e in self._undecided.remove(start, end):
                self._report(s, e, kind, reason)
        if self.outcomes.items:
            self.outcomes.ready.signal()

    def take_outcomes(self, limit: int) -> list[Outcome]:
        """Up to limit outcomes, one for each datagram."""
        out: list[Outcome] = []
        items = self.outcomes.items
        while items and len(out) < limit:
            start, end, kind, reason = items[0]
            stop = min(end, start + limit - len(out))
            out.extend(Outcome(tag, kind, reason) for tag in range(start, stop))
            if stop == end:
                items.popleft()
            else:
                items[0] = (stop, end, kind, reason)
        return out

    def expire(self, job: SendJob) -> None:
        """The caller's time is up: what has not left will not leave."""
        if job.position < len(job.items):
            self._refuse_rest(job, make(TimedOut))

    def abandon(self, job: SendJob, error: RdsError) -> None:
        """The caller stops waiting for answers too."""
        self.expire(job)
        if not job.call.done:
            job.call.fail(error)

    def lost(self) -> None:
        """The stream broke. Accepted datagrams are unknown, unanswered ones may be."""
        batches = list(self._batches.values())
        self._batches.clear()
        for batch in batches:
            self._release(batch)
            self._lose(batch)
        for s, e in list(self._undecided.ranges()):
            self._undecided.remove(s, e)
            self._report(s, e, OutcomeKind.UNKNOWN, RESTARTED)
        if self.outcomes.items:
            self.outcomes.ready.signal()
        for job in [j for j in self._trying if j.mode is Mode.TRY]:
            self._refuse_rest(job, make(DaemonUnavailable))

    def close(self, error: RdsError) -> None:
        """No stream will follow. Call lost() first."""
        for job in [*self._trying, *self._waiting]:
            self._refuse_rest(job, error)
        self.outcomes.ready.close(error)

    # -- inside ----------------------------------------------------------------

    @property
    def _brake(self) -> bool:
        return len(self.outcomes.items) >= OUTCOME_RANGES

    def _queue(self, job: SendJob) -> deque[SendJob]:
        return self._waiting if job.mode is Mode.WAIT else self._trying

    def _poll(self, jobs: deque[SendJob], batch_id: int, now: float) -> pb.ClientMessage | None:
        while jobs:
            job = jobs[0]
            if job.deadline is not None and now >= job.deadline:
                self._refuse_rest(job, make(TimedOut))
                continue
            self._skip_too_large(job)
            if job.position == len(job.items):
                jobs.popleft()
                job.settle()
                continue
            batch = self._cut(job)
            if batch is None:
                return None
            jobs.popleft()
            return self._encode(batch_id, batch, now)
        return None

    def _fits(self, size: int) -> bool:
        """Whether a batch of this size may leave now. A lone one always may."""
        if not self._batches:
            return True
        return (
            len(self._batches) < self._window_batches
            and self._used_bytes + size <= self._window_bytes
        )

    def _fits_waiting(self, size: int) -> bool:
        """The same for a batch that waits in the daemon: three quarters of the window."""
        if not self._waiting_batches:
            return True
        return (
            self._waiting_batches < max(1, self._window_batches * 3 // 4)
            and self._waiting_bytes + size <= self._window_bytes // 4 * 3
        )

    def _skip_too_large(self, job: SendJob) -> None:
        while job.position < len(job.items):
            size = len(job.items[job.position][1])
            if size <= self._max_datagram:
                return
            text = f"{size} bytes: a datagram has at most {self._max_datagram}"
            job.refuse(job.position, job.position + 1, make(TooLarge, text))
            job.position += 1

    def _cut(self, job: SendJob) -> _Batch | None:
        """The next batch of a job, None while the window is spent."""
        size = count = 0
        waits = job.mode is Mode.WAIT
        limit = min(BATCH_BYTES, self._window_bytes // 4 * 3 if waits else self._window_bytes)
        for _, payload in job.items[job.position : job.position + BATCH_DATAGRAMS]:
            n = len(payload)
            if n > self._max_datagram or (count and size + n > limit):
                break
            if not self._fits(size + n) or (waits and not self._fits_waiting(size + n)):
                break
            size += n
            count += 1
        return _Batch(job, job.position, count, size, waits) if count else None

    def _encode(self, batch_id: int, batch: _Batch, now: float) -> pb.ClientMessage:
        job = batch.job
        job.position = batch.start + batch.count
        job.outstanding = True
        self._batches[batch_id] = batch
        self._used_bytes += batch.size
        if batch.waits:
            self._waiting_batches += 1
            self._waiting_bytes += batch.size
        if self._want_outcomes:
            self._undecided.add(batch.first_tag, batch.first_tag + batch.count)
        left = 0 if job.deadline is None else max(1, int((job.deadline - now) * _NS))
        return _codec.send_batch(
            batch_id,
            job.items[batch.start : batch.start + batch.count],
            batch.first_tag,
            want_outcomes=self._want_outcomes,
            wait=batch.waits,
            timeout_ns=left if batch.waits else 0,
        )

    def _release(self, batch: _Batch) -> None:
        """The batch is answered or lost: its part of the window is free."""
        batch.job.outstanding = False
        self._used_bytes -= batch.size
        if batch.waits:
            self._waiting_batches -= 1
            self._waiting_bytes -= batch.size

    def _lose(self, batch: _Batch) -> None:
        job = batch.job
        error = make(DaemonUnavailable, f"{RESTARTED} before it answered")
        error.undecided = True
        tags = [(batch.first_tag, batch.first_tag + batch.count)]
        if self._want_outcomes:  # a tag that has its outcome was accepted, answered or not
            tags = self._undecided.remove(*tags[0])
        for s, e in tags:
            job.refuse(s - job.first_tag, e - job.first_tag, error)
        # What follows in the job was not sent, and would now come out of order.
        if job.position < len(job.items):
            job.refuse(job.position, len(job.items), make(DaemonUnavailable))
            job.position = len(job.items)
        job.settle()

    def _refuse_rest(self, job: SendJob, error: RdsError) -> None:
        """What has not left is refused, and the job stands in no queue any more."""
        if job in self._queue(job):
            self._queue(job).remove(job)
        job.refuse(job.position, len(job.items), error)
        job.position = len(job.items)
        job.settle()

    def _report(self, start: int, end: int, kind: OutcomeKind, reason: str) -> None:
        items = self.outcomes.items
        if items:
            s, e, last_kind, last_reason = items[-1]
            if e == start and (last_kind, last_reason) == (kind, reason):
                items[-1] = (s, end, kind, reason)
                return
        items.append((start, end, kind, reason))
