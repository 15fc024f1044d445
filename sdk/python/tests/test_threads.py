"""What blocks, in threads: _threads.py; threads at the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from conftest import Daemon, require

import rdsd
from rdsd import _threads
from rdsd._threads import side_by_side


def test_side_by_side_is_bounded() -> None:
    """All calls are made, once each, side by side and by no more threads than there may be."""
    done: list[int] = []
    who: set[int] = set()

    def call(i: int) -> None:
        time.sleep(0.01)
        who.add(threading.get_ident())
        done.append(i)

    side_by_side([lambda i=i: call(i) for i in range(1000)])  # type: ignore[misc]
    assert sorted(done) == list(range(1000))
    assert 1 < len(who) <= _threads._MOST


def test_side_by_side_waits_for_all() -> None:
    """Calls that wait for one another are all begun, and it returns when the last is through."""
    together = threading.Barrier(8)
    side_by_side([lambda: together.wait(10) for _ in range(8)])
    assert not together.broken
    side_by_side([])


def test_side_by_side_without_threads(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Where no thread can be started the calls are made here."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    side_by_side([lambda i=i: done.append(i) for i in range(3)])  # type: ignore[misc]
    assert done == [0, 1, 2]


AT_EXIT = """
import sys, rdsd

target, host, front_end, what = sys.argv[1:]

class Owner:
    def __del__(self):
        for end in (self.sock.close, self.client.close) if what == "both" else (self.client.close,):
            end()
        print("closed")

owner = Owner()
owner.client = rdsd.Client(target, front_end=front_end)
owner.sock = owner.client.bind((host, 0))
for _ in range(20):
    owner.sock.send(owner.sock.local_address, b"x", timeout=5)
    owner.sock.recv(timeout=5)
sys.modules["kept"] = owner
"""


@pytest.mark.parametrize("what", ["both", "client"])
@pytest.mark.parametrize("front_end", ["seqpacket", "grpc"])
def test_a_finalizer_may_close_while_the_interpreter_ends(
    front_end: rdsd.FrontEnd, what: str, daemons: tuple[Daemon, Daemon]
) -> None:
    """Its threads are gone by then, perhaps with a lock: it hung."""
    require(front_end, daemons[0])
    args = [sys.executable, "-c", AT_EXIT, daemons[0].target, daemons[0].address, front_end, what]
    env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(args, timeout=15, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
