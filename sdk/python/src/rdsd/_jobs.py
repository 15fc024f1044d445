"""Send calls and the messages they leave in."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ._calls import Call
from ._errors import BatchError, RdsError
from ._types import Address


class Mode(enum.Enum):
    """How a job meets a full send buffer or a congested destination."""

    TRY = "refused"
    NOW = "refused, or accepted by credit"
    FIRST_TRY = "tried once, then made to wait"
    WAIT = "waits in the daemon"


@dataclass(eq=False, slots=True)
class SendJob:
    """One send call: its datagrams, how far it got, and what was refused."""

    items: Sequence[tuple[Address, bytes]]
    first_tag: int
    mode: Mode
    deadline: float | None  # monotonic seconds
    call: Call[range] = field(default_factory=Call)
    position: int = 0  # datagrams before it have left or are refused
    outstanding: bool = False  # a batch has no result yet
    posted: bool = False  # accepted by credit: the call is done
    errors: list[tuple[int, RdsError]] = field(default_factory=list)
    #: Of a try: where a datagram found no room. None behind it overtakes it, in a later batch.
    jammed: dict[Address, RdsError] = field(default_factory=dict)

    @property
    def tags(self) -> range:
        return range(self.first_tag, self.first_tag + len(self.items))

    @property
    def finished(self) -> bool:
        """Everything has left or is refused."""
        return self.position == len(self.items)

    @property
    def size(self) -> int:
        """Payload bytes of the next datagram."""
        return len(self.items[self.position][1])

    @property
    def rest(self) -> int:
        """Payload bytes of all that has not left."""
        return sum([len(payload) for _, payload in self.items[self.position :]])

    def refuse(self, start: int, end: int, error: RdsError) -> None:
        self.errors.extend((i, error) for i in range(start, end))

    def refuse_rest(self, error: RdsError) -> None:
        self.refuse(self.position, len(self.items), error)
        self.position = len(self.items)

    def settle(self) -> None:
        """Finishes the call once every datagram is decided."""
        if self.call.done or self.outstanding or not self.finished:
            return
        if not self.errors:
            self.call.finish(self.tags)
            return
        self.errors.sort(key=lambda e: e[0])
        self.call.fail(BatchError(self.errors, self.tags))


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Datagrams start..start+count-1 of a job."""

    job: SendJob
    start: int
    count: int

    @property
    def first_tag(self) -> int:
        return self.job.first_tag + self.start

    @property
    def items(self) -> Sequence[tuple[Address, bytes]]:
        return self.job.items[self.start : self.start + self.count]


@dataclass(eq=False, slots=True)
class Batch:
    """One SendBatch: a part of one job, or single datagrams of several with following tags."""

    parts: list[Part]
    size: int  # payload bytes
    waits: bool
    posted: bool = False  # waits at the daemon, and no call for it
    watched: bool = False  # the daemon told of congestion when it left
    slow: bool = False  # posted, and leaves its place to others
    left: float = 0.0  # when, with posted

    @property
    def first_tag(self) -> int:
        return self.parts[0].first_tag

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def items(self) -> list[tuple[Address, bytes]]:
        return [item for part in self.parts for item in part.items]

    def cut(self, first: int, last: int) -> Iterator[Part]:
        """The parts that datagrams first..last-1 of the message belong to."""
        at = 0
        for part in self.parts:
            lo, hi = max(first - at, 0), min(last - at, part.count)
            if lo < hi:
                yield Part(part.job, part.start + lo, hi - lo)
            at += part.count
