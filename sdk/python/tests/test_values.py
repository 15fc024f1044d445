"""Addresses, targets, timeouts and ranges of tags."""

from __future__ import annotations

import ipaddress
import random
from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import pytest

from rdsd import Address, InvalidArgument
from rdsd._intervals import IntervalSet
from rdsd._surface import MAX_SPIN, bind_options, check_label
from rdsd._target import DEFAULT_TARGET, resolve_target, seconds, unix_path
from rdsd._types import AddressLike, canonical, pack_host, to_address, unpack_host


@pytest.mark.parametrize(
    ("given", "address", "text"),
    [
        ("10.0.0.1:5", Address("10.0.0.1", 5), "10.0.0.1:5"),
        ("[fd00::1]:5", Address("fd00::1", 5), "[fd00::1]:5"),
        (("10.0.0.1", 0), Address("10.0.0.1", 0), "10.0.0.1:0"),
        ((ipaddress.ip_address("fd00::0:1"), 65535), Address("fd00::1", 65535), "[fd00::1]:65535"),
        (Address("10.0.0.1", 5), Address("10.0.0.1", 5), "10.0.0.1:5"),
        ("[::ffff:10.0.0.1]:5", Address("10.0.0.1", 5), "10.0.0.1:5"),
        (("::ffff:a00:1", 5), Address("10.0.0.1", 5), "10.0.0.1:5"),
    ],
)
def test_addresses(given: AddressLike, address: Address, text: str) -> None:
    assert to_address(given) == address
    assert str(to_address(given)) == text
    assert unpack_host(pack_host(address.host)) == address.host


BAD: list[Any] = [
    *("", "10.0.0.1", "10.0.0.1:x", ":5", "fd00::1:5", "a:5", "1.2.3.4:-1"),
    *(("1.2.3.4", 5.5), ("1.2.3.4", 5.0), ("1.2.3.4", "5"), ("1.2.3.4", None), ("1.2.3.4", 65536)),
    *(Address("1.2.3.4", 65536), Address("1.2.3.4", -1), Address("localhost", 5)),
    *(Address("1.2.3.4", cast(Any, 5.5)), Address("1.2.3.4", cast(Any, "5"))),
    *(Address(cast(Any, 5), 5), Address(cast(Any, None), 5), Address(cast(Any, []), 5)),
]


@pytest.mark.parametrize("given", BAD, ids=repr)
def test_bad_addresses(given: Any) -> None:
    to_address(("1.2.3.4", 5))  # what is equal to it and of another type is not taken for it
    for taken in (to_address, canonical):
        with pytest.raises(InvalidArgument):
            taken(given)


def test_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDSD_SOCKET", raising=False)
    assert resolve_target(None) == DEFAULT_TARGET
    monkeypatch.setenv("RDSD_SOCKET", "/tmp/x.sock")
    assert resolve_target("") == "unix:///tmp/x.sock"
    odd = "/tmp/a b#c?d%41"
    assert resolve_target(odd) == "unix:///tmp/a%20b%23c%3Fd%2541"
    assert unix_path(resolve_target(odd)) == odd
    assert resolve_target("run/x.sock") == "unix:run/x.sock"
    assert resolve_target("x.sock") == "unix:x.sock"
    assert resolve_target("@rdsd") == "unix-abstract:rdsd"
    assert unix_path(resolve_target("@rdsd")) == "@rdsd"
    assert resolve_target("unix:x.sock") == "unix:x.sock"
    assert resolve_target("dns:///host:1") == "dns:///host:1"
    assert resolve_target("10.0.0.1:1234") == "10.0.0.1:1234"


def test_timeouts() -> None:
    assert seconds(None) is None
    assert seconds(float("inf")) is None
    assert seconds(1e30) is None  # no clock goes that far
    assert seconds(86400 * 365) == 86400 * 365
    assert seconds(1) == 1.0
    assert seconds(timedelta(milliseconds=5)) == 0.005
    assert seconds(-1) == 0.0
    assert seconds(float("-inf")) == 0.0
    with pytest.raises(InvalidArgument):
        seconds(float("nan"))


def test_spin_is_bounded() -> None:
    def spin(value: float | None) -> float | None:
        return bind_options(
            "127.0.0.1:0",
            send_buffer=0,
            recv_buffer=0,
            label="",
            recv_window=(1, 1),
            outcomes=False,
            reconnect=True,
            congestion_mask=0,
            spin=value,
        ).spin

    assert spin(None) is None
    assert [spin(v) for v in (-1, 0, 0.001, MAX_SPIN, 1, float("inf"))] == [
        0,
        0,
        0.001,
        MAX_SPIN,
        MAX_SPIN,
        MAX_SPIN,
    ]
    with pytest.raises(InvalidArgument, match="spin is not a number"):
        spin(float("nan"))


def test_labels_are_refused_in_words() -> None:
    for label in ("", "a" * 64, "\u00e9" * 32):
        check_label(label)
    for label, why in (
        ("a" * 65, "has 65 bytes; want at most 64"),
        ("a" * 10000, r"^label 'a{40}\.\.\.' has 10000 bytes"),
        ("a\0b", "without null characters"),
        ("\udc80", "want text that is UTF-8"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            check_label(label)


def test_intervals_against_a_plain_set() -> None:
    rng = random.Random(7)
    for _ in range(200):
        ranges, plain = IntervalSet(), set[int]()
        for _ in range(40):
            start = rng.randrange(60)
            end = start + rng.randrange(12)
            span = set(range(start, end))
            if rng.random() < 0.5:
                ranges.add(start, end)
                plain |= span
            else:
                removed = {n for s, e in ranges.remove(start, end) for n in range(s, e)}
                assert removed == plain & span
                plain -= span
            assert len(ranges) == len(plain)
            assert bool(ranges) == bool(plain)
            assert {n for n in range(80) if n in ranges} == plain
            kept = list(ranges.ranges())
            assert all(e < s for (_, e), (s, _) in pairwise(kept))
