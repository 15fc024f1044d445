"""A set of integers kept as ranges: the tags of datagrams without an outcome."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Disjoint half-open ranges, sorted. Tags are consecutive, so a few ranges hold many."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, value: int) -> bool:
        i = bisect_right(self._starts, value) - 1
        return i >= 0 and value < self._ends[i]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(start, end) pairs in order, end excluded."""
        return zip(tuple(self._starts), tuple(self._ends), strict=True)

    def add(self, start: int, end: int) -> None:
        """Puts start..end-1 in."""
        if start >= end:
            return
        lo = bisect_left(self._ends, start)  # first range that touches or follows
        hi = bisect_right(self._starts, end)  # one after the last that touches
        if lo < hi:
            start = min(start, self._starts[lo])
            end = max(end, self._ends[hi - 1])
        self._starts[lo:hi] = [start]
        self._ends[lo:hi] = [end]

    def remove(self, start: int, end: int) -> list[tuple[int, int]]:
        """Takes start..end-1 out; returns the ranges that were in."""
        if start >= end:
            return []
        lo = bisect_right(self._ends, start)
        hi = bisect_left(self._starts, end)
        if lo >= hi:
            return []
        removed = [
            (max(s, start), min(e, end))
            for s, e in zip(self._starts[lo:hi], self._ends[lo:hi], strict=True)
        ]
        first, last = self._starts[lo], self._ends[hi - 1]
        starts, ends = [], []
        if first < start:
            starts.append(first)
            ends.append(start)
        if last > end:
            starts.append(end)
            ends.append(last)
        self._starts[lo:hi] = starts
        self._ends[lo:hi] = ends
        return removed
