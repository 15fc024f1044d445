"""Enumerations of the API as string enums."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from ._errors import InvalidArgument, make

W = TypeVar("W", bound=StrEnum)


class Word(StrEnum):
    """A word of the API: the position of a member is its number there, and the first
    stands for the daemon's default and for what this version does not know."""


def number(what: str, words: type[W], value: str) -> Any:
    """The API's number of a word: for the stubs, of the type of its enum."""
    names = [word.value for word in words]
    if value not in names:
        raise make(InvalidArgument, f"{what} {value!r}: want one of {', '.join(names[1:])}")
    return names.index(value)


def word(words: type[W], value: int) -> W:
    """The word of a number, the first one when a newer daemon knows more than we do."""
    members = list(words)
    return members[value] if 0 <= value < len(members) else members[0]
