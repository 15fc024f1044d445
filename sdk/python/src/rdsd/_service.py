"""A call of a service of the daemon, as both fronts carry it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ._errors import InvalidArgument, make
from ._target import Timeout, seconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceCall(Generic[T]):
    """One call: a method of the stub, its request, and how to read what it answers, which
    of a watch is every message."""

    method: str
    request: Any
    decode: Callable[[Any], T]


def nothing(_: object) -> None:
    """Reads an answer that says no more than that it was done."""
    return None


def count(name: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise make(InvalidArgument, f"{name} {value}: want 0 to {most}")
    return value


def nanoseconds(name: str, timeout: Timeout) -> int:
    """A time that the daemon is to take; 0, its default, for None."""
    value = seconds(timeout)
    if value is None:
        return 0
    if value == 0 or value > 1e9:
        raise make(InvalidArgument, f"{name} {timeout}: want more than 0, or None for the default")
    return round(value * 1e9)
