"""The daemon's side of a Sender, by hand."""

from __future__ import annotations

from rdsd._sending import Sender
from rdsd._types import Address
from rdsd.v1 import rdsd_pb2 as pb


class SenderWire:
    """A Sender, what it would write, and answers to that."""

    def __init__(self, *, outcomes: bool) -> None:
        self.sender = Sender(want_outcomes=outcomes)
        self.next_id = 0

    def poll(self, now: float = 0.0) -> pb.SendBatch | None:
        self.next_id += 1
        message = self.sender.poll(self.next_id, now)
        return None if message is None else message.send

    def must_poll(self, now: float = 0.0) -> pb.SendBatch:
        batch = self.poll(now)
        assert batch is not None
        return batch

    def answer(self, batch: pb.SendBatch, *errors: tuple[int, int, int]) -> set[Address]:
        result = pb.SendResult(id=batch.id)
        for index, count, number in errors:
            result.errors.add(index=index, count=count, errno=number)
        return set(self.sender.answered(result))
