"""A KeyboardInterrupt at every place of a call where a signal's handler may run: nothing stays
locked, nothing stays bound, and the socket goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from conftest import FRONT_ENDS, Daemon, require

import rdsd

OURS = os.path.dirname(rdsd.__file__) + os.sep
MOST = 5000  # places of one call, far more than there are

#: Where Python itself leaves a lock as it is, or a waiter asleep, when interrupted.
PYTHONS_OWN = frozenset(("wait", "notify", "notify_all", "_release_save", "_acquire_restore"))


def interrupted(call: Callable[[], object]) -> Iterator[int]:
    """Makes a call again and again, interrupted one place later each time; yields after each.

    CPython runs handlers where a function begins and where one in C, which was called by
    Python code, has returned.
    """
    for place in range(MOST):
        left = place

        def interrupt(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal left
            if event not in ("call", "c_return") or arg is sys.setprofile:
                return
            caller: FrameType | None = frame
            while caller is not None and caller.f_code.co_filename == threading.__file__:
                if caller.f_code.co_name in PYTHONS_OWN:
                    return
                caller = caller.f_back
            if caller is None or not caller.f_code.co_filename.startswith(OURS):
                return
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            call()
        except KeyboardInterrupt:
            pass
        except rdsd.RdsError:
            pass
        finally:
            sys.setprofile(None)
        yield place
        if left >= 0:
            return
    raise AssertionError("the call does not end")


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A lock that is left locked ends the test, not the run."""

    def hangs(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", ["send", "recv", "cancel_sent_to", "flush", "watch"])
def test_nothing_stays_locked(
    daemons: tuple[Daemon, Daemon], front_end: rdsd.FrontEnd, name: str
) -> None:
    require(front_end, daemons[0])
    with rdsd.Client(daemons[0].target, front_end=front_end) as client:
        a, b = client.bind((daemons[0].address, 0)), client.bind((daemons[0].address, 0))

        def watch() -> None:
            with a.watch_congestion(timeout=0) as events:
                next(events, None)

        calls: dict[str, Callable[[], object]] = {
            "send": lambda: a.send(b.local_address, b"x", timeout=10),
            "recv": lambda: a.recv(timeout=0.001),
            "cancel_sent_to": lambda: a.cancel_sent_to(b.local_address, timeout=10),
            "flush": lambda: a.flush(timeout=10),
            "watch": watch,
        }
        with ThreadPoolExecutor(1) as pool:
            for _ in interrupted(calls[name]):
                # Another thread: the one that was interrupted may own what it has not let go of.
                pool.submit(a.congested, b.local_address, 10).result(20)
                with pool.submit(a.watch_congestion, 0).result(20):
                    pass
        a.cancel_sent_to(b.local_address, timeout=10)
        a.send(b.local_address, b"end", timeout=10)
        while b.recv(timeout=10).payload != b"end":
            pass


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_nothing_stays_bound(daemons: tuple[Daemon, Daemon], front_end: rdsd.FrontEnd) -> None:
    require(front_end, daemons[0])
    with rdsd.Client(daemons[0].target, front_end=front_end) as client:
        bound: list[rdsd.Socket] = []
        for _ in interrupted(lambda: bound.append(client.bind((daemons[0].address, 0)))):
            for sock in bound:
                sock.close()
            bound.clear()
            assert [s.local for s in client.admin.sockets() if s.pid == os.getpid()] == []


@pytest.mark.parametrize("name", ["recv", "recv_into", "recv_batch", "iter"])
def test_what_was_taken_from_a_ring_is_handed_out(
    daemons: tuple[Daemon, Daemon], name: str
) -> None:
    """A handler that raises ran while the address of a source not seen before was made, and
    what had been taken out of the ring was missing."""
    require("rings", daemons[0])
    with (
        rdsd.Client(daemons[0].target, front_end="rings") as client,
        rdsd.Client(daemons[0].target, front_end="seqpacket") as sources,
    ):
        sock, room = client.bind((daemons[0].address, 0)), bytearray(100)
        call: Callable[[], Any] = {
            "recv": lambda: sock.recv(timeout=10),
            "recv_into": lambda: sock.recv_into(room, timeout=10),
            "recv_batch": lambda: sock.recv_batch(1, timeout=10),
            "iter": iter(sock).__next__,
        }[name]

        def interrupt(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(OURS):
                raise KeyboardInterrupt

        for number in range(20):
            with sources.bind((daemons[0].address, 0)) as source:
                source.send(sock.local_address, b"x", timeout=10)
                source.flush(timeout=10)
                sys.setprofile(interrupt)
                try:
                    got = call()
                except KeyboardInterrupt:
                    sys.setprofile(None)
                    assert sock.peek_size() == 1, f"datagram {number} is missing"
                    got = call()
                finally:
                    sys.setprofile(None)
                assert source.local_address in (got[0] if name == "recv_batch" else got)
