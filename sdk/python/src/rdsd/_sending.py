"""The sending half of a stream: jobs and the send window.

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
Single datagrams that queue up behind the window leave together in one message.

Where the stream has credit (``_credit``) a send need not be answered: its job is
*posted*, its call done, and it stands in the queue of those that try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from . import _codec
from ._credit import SHARE, SLOW_AFTER, SMALL, TRIES, Credit
from ._errors import (
    Cancelled,
    Congested,
    DaemonUnavailable,
    RdsError,
    TimedOut,
    TooLarge,
    WouldBlock,
    error_from_errno,
    fresh,
    make,
)
from ._jobs import Batch, Mode, Part, SendJob
from ._outcomes import Ledger
from ._types import Address, CongestionEvent, OutcomeKind
from .v1 import rdsd_pb2 as pb

#: One SendBatch stays within these, so that it passes gRPC's default message limit.
BATCH_BYTES = 1 << 20
BATCH_DATAGRAMS = 1024

#: A batch that gathers several posted calls stays within these bytes.
GATHER_BYTES = 256 << 10

RESTARTED = "daemon restarted"
_CANCELLED = "cancelled"

_NS = 1_000_000_000


class Sender:
    """Jobs on their way to the daemon."""

    def __init__(
        self, *, want_outcomes: bool, cancelled: Callable[[Address], None] = lambda _: None
    ) -> None:
        self.ledger = Ledger(wanted=want_outcomes)
        self.credit = Credit()
        self.by_credit = False  # the stream's results are read whether a caller waits or not
        self._cancelled = cancelled  # a posted datagram there was, before the daemon accepted it
        # A job stands in one of the queues, or has a batch outstanding.
        self._trying: deque[SendJob] = deque()
        self._waiting: deque[SendJob] = deque()
        self._late: deque[SendJob] = deque()  # posted when there is credit again
        self._batches: dict[int, Batch] = {}
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
        if self.by_credit:
            self.credit.opened(bound)

    @property
    def next_tag(self) -> int:
        """Greater than all tags so far."""
        return self._next_tag

    @property
    def queued(self) -> bool:
        """Something would leave if the window allows it."""
        return bool(self._trying or self._waiting)

    def submit(
        self, items: Sequence[tuple[Address, bytes]], mode: Mode, deadline: float | None
    ) -> SendJob:
        """Queues a job. TRY is refused when the window is spent."""
        job = SendJob(items, self._next_tag, mode, deadline)
        self._next_tag += len(items)
        if mode is Mode.NOW and items:
            posts = not self._late and self._may_post(job)
            posts = posts and self.credit.has_room(len(items), job.rest)
            mode = job.mode = Mode.FIRST_TRY if posts else Mode.TRY
        if not items:
            job.settle()
        elif mode is Mode.TRY and (self.ledger.full or not self._fits(job.size)):
            self._refuse_rest(job, make(WouldBlock))
        elif mode is Mode.TRY or not self._may_post(job):
            self._queue(job).append(job)
        elif self._late:
            self._late.append(job)
        else:
            self._post_or_wait(job)
        return job

    def poll(self, batch_id: int, now: float, *, before: int = 0) -> pb.ClientMessage | None:
        """The next SendBatch the window allows.

        before, when not 0, is the tag that a cancel goes before: what was posted with lower
        tags goes as far as the window does, and nothing else, for the cancel would end it.
        """
        if before:
            return self._poll(self._trying, batch_id, now, before)
        if self.ledger.full:
            return None
        self._look(now)
        if not (self._trying and self._held(self._trying[0])):
            message = self._poll(self._trying, batch_id, now)
            if message is not None:
                return message
        if (  # what was posted before goes first: its caller has gone on
            self._trying
            and self._waiting
            and self._trying[0].posted
            and self._trying[0].first_tag < self._waiting[0].first_tag
        ):
            return None
        return self._poll(self._waiting, batch_id, now)

    @property
    def look_again(self) -> float | None:
        """When a posted batch will be slow that somebody waits for; None: nobody does."""
        if not self._late and not (self._trying and self._held(self._trying[0])):
            return None
        left = [b.left for b in self._batches.values() if b.posted and not b.slow]
        return min(left) + SLOW_AFTER if left else None

    def congestion(self, event: CongestionEvent) -> None:
        """The daemon's news of ports."""
        congested = set(self.credit.reported(event))
        for batch in self._batches.values():
            if batch.posted and any(a in congested for a, _ in batch.items):
                batch.slow = True
        self._promote()

    def posted_before(self, tag: int) -> bool:
        """Something posted with a lower tag has no result."""
        return self.queued_before(tag) or self.unanswered_before(tag)

    def unanswered_before(self, tag: int) -> bool:
        """Something posted with a lower tag has left and has no result."""
        return any(b.posted and b.first_tag < tag for b in self._batches.values())

    def queued_before(self, tag: int) -> bool:
        """Something posted with a lower tag has not left."""
        return any(j.posted and j.first_tag < tag for j in self._trying)

    def answered(self, result: pb.SendResult) -> Iterable[Address]:
        """A SendResult. Returns the destinations refused as congested."""
        batch = self._batches.pop(result.id, None)
        if batch is None:
            return ()
        self._release(batch)
        if batch.watched and not batch.posted and not result.errors:
            self.credit.learn(dict.fromkeys([addr for addr, _ in batch.items]))
        congested: set[Address] = set()
        for e in result.errors:
            error = error_from_errno(e.errno, e.message)
            for part in batch.cut(e.index, e.index + max(1, e.count)):
                if batch.posted:
                    self._refused_post(part, error)
                    continue
                self._refused(part, error)
                if isinstance(error, Congested):
                    congested.update(a for a, _ in part.items)
        self.credit.forget(congested)
        for part in batch.parts:
            if not part.job.finished and not batch.posted:
                self._put_back(part.job)
            part.job.settle()
        self._promote()
        return congested

    def expire(self, job: SendJob) -> None:
        """The caller's time is up: what has not left will not leave, unless it is accepted."""
        if not job.finished and not job.posted:
            self._refuse_rest(job, make(TimedOut))

    def abandon(self, job: SendJob, error: RdsError) -> None:
        """The caller stops waiting for answers too."""
        self.expire(job)
        if not job.call.done:
            job.call.fail(error)

    def lost(self, closed: RdsError | None = None) -> None:
        """The stream broke, or the socket was closed with this error.

        Accepted datagrams are unknown, unanswered ones may have been accepted.
        """
        error = closed or make(DaemonUnavailable, f"{RESTARTED} before it answered")
        error = fresh(error)
        error.undecided = True
        batches = list(self._batches.values())
        self._batches.clear()
        for batch in batches:
            self._release(batch)
            # Of what was posted, what has left is unknown, as all that was accepted; the rest
            # goes over the next stream.
            for part in () if batch.posted else batch.parts:
                self._lose(part, error)
        self.credit.lost()
        while self._late:
            job = self._late.popleft()
            self._queue(job).append(job)
        self.ledger.lost(str(closed) if closed else RESTARTED)
        if closed:
            return  # close follows, and refuses what has not left
        for job in [j for j in self._trying if j.mode is Mode.TRY and not j.posted]:
            self._refuse_rest(job, make(DaemonUnavailable))

    def close(self, error: RdsError) -> None:
        """No stream will follow. Call lost() first."""
        for job in [*self._trying, *self._waiting]:
            if job.posted:
                self.ledger.never_left(job.first_tag + job.position, job.tags.stop, str(error))
                self.credit.add(job.position - len(job.items), -job.rest)
            self._refuse_rest(job, error)
        self.ledger.queue.ready.close(error)

    # -- inside ----------------------------------------------------------------

    def _queue(self, job: SendJob) -> deque[SendJob]:
        return self._waiting if job.mode is Mode.WAIT and not job.posted else self._trying

    def _put_back(self, job: SendJob) -> None:
        """Queues a job again that has had its answer: before what was sent after it, and behind
        what was sent before it, which may wait for longer."""
        jobs = self._queue(job)
        at = len(jobs)
        if jobs and jobs[0].first_tag > job.first_tag:  # as in nearly every case
            at = 0
        while at and jobs[at - 1].first_tag > job.first_tag:
            at -= 1
        jobs.insert(at, job)

    # Whether a job may be posted, and when.

    def _may_post(self, job: SendJob) -> bool:
        """Whether a job goes by credit, now or when there is some."""
        credit, items = self.credit, job.items
        if not credit.most_bytes or self.ledger.full or not credit.begins():
            return False
        # Never behind what may find no room in the window: a cancel waits for what is posted.
        if self._trying and not (self._trying[0].posted and self._trying[-1].posted):
            return False
        addrs = {addr for addr, _ in items}
        return (
            len(items) <= credit.most_datagrams
            and job.rest <= credit.most_bytes
            and max([len(payload) for _, payload in items]) <= self._max_datagram
            and all(credit.clear(addr) for addr in addrs)
            and not self._waits_for(addrs)
        )

    def _waits_for(self, addrs: set[Address]) -> bool:
        """Whether something waits for one of these; what is posted would overtake it."""
        if not self._waiting and not self._waiting_batches:
            return False
        waiting = [*self._waiting]
        waiting += [p.job for b in self._batches.values() if b.waits for p in b.parts]
        return any(addr in addrs for job in waiting for addr, _ in job.items)

    def _post_or_wait(self, job: SendJob) -> bool:
        """Posts a job that may be posted, or has it ask; False: it waits for credit."""
        if self.credit.has_room(len(job.items), job.rest):
            self.credit.add(len(job.items), job.rest)
            job.posted = True
            job.deadline = None
            self._trying.append(job)
            job.call.finish(job.tags)
        elif any(b.slow for b in self._batches.values()):
            # Something waits for a port: that must hold up nobody else.
            self._queue(job).append(job)
        else:
            if job not in self._late:
                self._late.append(job)
            return False
        return True

    def _promote(self) -> None:
        """There may be credit again, or none for long."""
        while self._late:
            job = self._late[0]
            if not self._may_post(job):
                self._queue(job).append(job)
            elif not self._post_or_wait(job):
                return
            self._late.popleft()

    def _held(self, job: SendJob) -> bool:
        """Whether a posted job waits for results, so that others gather behind it."""
        if not job.posted:
            return False
        posted = [b for b in self._batches.values() if b.posted]
        fast = sum(not b.slow for b in posted)
        return (fast >= TRIES and job.rest < SMALL) or len(posted) >= max(
            1, self._window_batches // SHARE
        )

    def _look(self, now: float) -> None:
        """Posted batches that stay without a result become slow."""
        if not self._late and not self._trying:
            return
        for batch in self._batches.values():
            if batch.posted and now - batch.left >= SLOW_AFTER:
                batch.slow = True
        self._promote()

    def _refused_post(self, part: Part, error: RdsError) -> None:
        """What became of posted datagrams that the daemon did not accept."""
        if isinstance(error, Cancelled):
            kind, reason = OutcomeKind.CANCELLED, _CANCELLED
            for addr, _ in part.items:
                self._cancelled(addr)
        else:  # the next send there is answered, and has the error itself
            kind, reason = OutcomeKind.FAILED, str(error)
            self.credit.forget({addr for addr, _ in part.items})
        self.ledger.decided([(part.first_tag, part.first_tag + part.count, kind, reason)])

    def _poll(
        self, jobs: deque[SendJob], batch_id: int, now: float, before: int = 0
    ) -> pb.ClientMessage | None:
        while jobs:
            job = jobs[0]
            if before and job.first_tag >= before:
                return None
            if self._hopeless(job, now):
                jobs.popleft()
                job.settle()
                continue
            batch = self._cut(job)
            if batch is None:
                return None
            # What is left of a posted one goes before all that was posted behind it.
            if not batch.posted or batch.count == len(job.items) - job.position:
                jobs.popleft()
            if batch.posted:
                self._gather_posted(batch, jobs, before)
            elif len(job.items) == 1 and not batch.waits:
                self._gather(batch, jobs, now)
            return self._encode(batch_id, batch, now)
        return None

    def _hopeless(self, job: SendJob, now: float) -> bool:
        """Refuses what cannot leave; whether nothing else is left of the job."""
        if job.deadline is not None and now >= job.deadline:
            job.refuse_rest(make(TimedOut))
        while not job.finished and (error := self._unsendable(job)) is not None:
            job.refuse(job.position, job.position + 1, error)
            job.position += 1
        return job.finished

    def _unsendable(self, job: SendJob) -> RdsError | None:
        """Why the next datagram of a job cannot be sent."""
        if job.size > self._max_datagram:
            text = f"{job.size} bytes: a datagram has at most {self._max_datagram}"
            return make(TooLarge, text)
        return job.jammed.get(job.items[job.position][0])

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

    def _limit(self, *, waits: bool) -> int:
        return min(BATCH_BYTES, self._window_bytes // 4 * 3 if waits else self._window_bytes)

    def _cut(self, job: SendJob) -> Batch | None:
        """The next batch of a job, None while the window is spent."""
        size = count = 0
        waits = job.mode is Mode.WAIT and not job.posted
        limit = self._limit(waits=waits)
        next_items = job.items[job.position : job.position + BATCH_DATAGRAMS]
        sizes = [len(payload) for _, payload in next_items]
        whole = sum(sizes)
        if (  # all of it, in nearly every case
            whole <= limit
            and not job.jammed
            and max(sizes) <= self._max_datagram
            and self._fits(whole)
            and not (waits and not self._fits_waiting(whole))
        ):
            return Batch([Part(job, job.position, len(sizes))], whole, waits, job.posted)
        for addr, payload in next_items:
            n = len(payload)
            if n > self._max_datagram or (count and size + n > limit) or addr in job.jammed:
                break
            if not self._fits(size + n) or (waits and not self._fits_waiting(size + n)):
                break
            size += n
            count += 1
        return Batch([Part(job, job.position, count)], size, waits, job.posted) if count else None

    def _gather_posted(self, batch: Batch, jobs: deque[SendJob], before: int) -> None:
        """Adds the posted jobs that follow, each as a whole, as far as their tags do."""
        first = batch.parts[0]
        count = first.count
        next_tag = first.first_tag + count
        if next_tag != first.job.tags.stop:
            return
        while jobs and jobs[0].posted and jobs[0].first_tag == next_tag and not jobs[0].position:
            job = jobs[0]
            if before and job.first_tag >= before:
                return
            size = batch.size + job.rest
            if count + len(job.items) > BATCH_DATAGRAMS or size > GATHER_BYTES:
                return
            if not self._fits(size):
                return
            jobs.popleft()
            batch.size = size
            batch.parts.append(Part(job, 0, len(job.items)))
            count += len(job.items)
            next_tag = job.tags.stop

    def _gather(self, batch: Batch, jobs: deque[SendJob], now: float) -> None:
        """Adds the single datagrams that follow, as far as their tags do."""
        limit = self._limit(waits=False)
        next_tag = batch.first_tag + 1
        while jobs and len(batch.parts) < BATCH_DATAGRAMS:
            job = jobs[0]
            if len(job.items) > 1 or job.posted or job.first_tag != next_tag:
                return
            if self._hopeless(job, now):
                return
            if batch.size + job.size > limit or not self._fits(batch.size + job.size):
                return
            jobs.popleft()
            batch.size += job.size
            batch.parts.append(Part(job, 0, 1))
            next_tag += 1

    def _encode(self, batch_id: int, batch: Batch, now: float) -> pb.ClientMessage:
        for part in batch.parts:
            part.job.position = part.start + part.count
            part.job.outstanding = True
        self._batches[batch_id] = batch
        self._used_bytes += batch.size
        if batch.waits:
            self._waiting_batches += 1
            self._waiting_bytes += batch.size
        batch.watched = self.credit.watching
        batch.left = now
        self.ledger.left(batch.first_tag, batch.first_tag + batch.count)
        deadline = batch.parts[0].job.deadline
        left = 0 if deadline is None else max(1, int((deadline - now) * _NS))
        return _codec.send_batch(
            batch_id,
            batch.items,
            batch.first_tag,
            want_outcomes=self.ledger.wanted,
            wait=batch.waits or batch.posted,
            timeout_ns=left if batch.waits else 0,
        )

    def _release(self, batch: Batch) -> None:
        """The batch is answered or lost: its part of the window is free."""
        for part in batch.parts:
            part.job.outstanding = False
        self._used_bytes -= batch.size
        if batch.posted:
            self.credit.add(-batch.count, -batch.size)
        if batch.waits:
            self._waiting_batches -= 1
            self._waiting_bytes -= batch.size

    def _refused(self, part: Part, error: RdsError) -> None:
        job = part.job
        self.ledger.strike(part.first_tag, part.first_tag + part.count)
        waits = job.mode is Mode.FIRST_TRY and isinstance(error, Congested | WouldBlock)
        if waits and not job.call.done:  # its caller has not gone
            job.mode = Mode.WAIT
            job.position = part.start
        else:
            job.refuse(part.start, part.start + part.count, error)
            if isinstance(error, Congested | WouldBlock) and not job.finished:
                job.jammed.update((addr, error) for addr, _ in part.items)

    def _lose(self, part: Part, error: RdsError) -> None:
        job = part.job
        for s, e in self.ledger.strike(part.first_tag, part.first_tag + part.count):
            job.refuse(s - job.first_tag, e - job.first_tag, error)
        # What follows in the job was not sent, and would now come out of order.
        rest = fresh(error)
        rest.undecided = False
        job.refuse_rest(rest)
        job.settle()

    def _refuse_rest(self, job: SendJob, error: RdsError) -> None:
        """What has not left is refused, and the job stands in no queue any more."""
        for jobs in (self._queue(job), self._late):
            if job in jobs:
                jobs.remove(job)
        job.refuse_rest(error)
        job.settle()
