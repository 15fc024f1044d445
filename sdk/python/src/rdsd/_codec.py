"""Between the plain values and the protobuf messages of one stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ._errors import ProtocolError, make
from ._types import (
    Address,
    CongestionChange,
    CongestionEvent,
    Datagram,
    Outcome,
    OutcomeKind,
    pack_host,
    unpack_host,
)
from .v1 import rdsd_pb2 as pb

# What Datagram(...) ends in, without the Python function in between.
_datagram = tuple.__new__


def endpoint(addr: Address) -> pb.Endpoint:
    return pb.Endpoint(address=pack_host(addr.host), port=addr.port)


def address(e: pb.Endpoint) -> Address:
    try:
        return Address(unpack_host(e.address), e.port)
    except ValueError as err:
        raise make(ProtocolError, f"the daemon sent {err}") from None


def send_batch(
    batch_id: int,
    items: Sequence[tuple[Address, bytes]],
    first_tag: int,
    *,
    want_outcomes: bool,
    wait: bool,
    timeout_ns: int,
) -> pb.ClientMessage:
    """Lays datagrams out as SendBatch has them; each destination stands once."""
    numbers = {addr: i for i, addr in enumerate(dict.fromkeys([addr for addr, _ in items]))}
    index = [numbers[addr] for addr, _ in items] if len(numbers) > 1 else ()
    return pb.ClientMessage(
        send=pb.SendBatch(
            id=batch_id,
            payload=b"".join([payload for _, payload in items]),
            length=[len(payload) for _, payload in items],
            destination=[endpoint(addr) for addr in numbers],
            destination_index=index,
            first_tag=first_tag,
            want_outcomes=want_outcomes,
            wait=wait,
            timeout_ns=timeout_ns,
        )
    )


def received(batch: pb.RecvBatch) -> list[Datagram]:
    """The datagrams of a RecvBatch; ProtocolError when its parts do not fit together."""
    sources = [address(e) for e in batch.source]
    lengths = batch.length
    index = batch.source_index
    payload = batch.payload
    if sum(lengths) != len(payload) or (index and len(index) != len(lengths)):
        raise make(ProtocolError, "the daemon sent a batch whose lengths do not add up")
    if (lengths and not sources) or (index and max(index) >= len(sources)):
        raise make(ProtocolError, "the daemon sent a batch with a source missing")
    ends = list(accumulate(lengths))
    parts = [payload[end - n : end] for n, end in zip(lengths, ends, strict=True)]
    if index:
        return [
            _datagram(Datagram, (sources[i], part)) for i, part in zip(index, parts, strict=True)
        ]
    return [_datagram(Datagram, (sources[0], part)) for part in parts]


def outcome_ranges(batch: pb.OutcomeBatch) -> list[tuple[int, int, OutcomeKind, str]]:
    """(first tag, one after the last, kind, reason) for each entry."""
    out = []
    for o in batch.outcome:
        try:
            kind = OutcomeKind(o.kind)
        except ValueError:
            kind = OutcomeKind.UNKNOWN  # a kind newer than this package
        out.append((o.first_tag, o.first_tag + max(1, o.count), kind, o.reason))
    return out


def congestion_event(e: pb.CongestionEvent) -> CongestionEvent:
    changes = tuple(CongestionChange(address(c.destination), c.congested) for c in e.change)
    return CongestionEvent(e.freed_mask, changes)


__all__ = [
    "Outcome",
    "address",
    "congestion_event",
    "endpoint",
    "outcome_ranges",
    "received",
    "send_batch",
]
