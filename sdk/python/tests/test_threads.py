"""What blocks, in threads: _threads.py; threads at the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from conftest import FRONT_ENDS, Daemon, require

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


# Garbage is collected at each place in turn.
CLOSE_ANYWHERE = """
import gc, sys, rdsd

target, host, front_end = sys.argv[1:]
client = rdsd.Client(target, front_end=front_end)
closed = 0

class Owner:
    def __init__(self, sock):
        self.me, self.sock = self, sock

    def __del__(self):
        global closed
        self.sock.close()
        closed += 1

other = client.bind((host, 0))
for after in range(1, 200):
    gc.set_threshold(0)
    gc.collect()
    Owner(other)
    gc.set_threshold(after)
    client.bind((host, 0)).close()
gc.set_threshold(0)
gc.collect()
assert closed == 199, closed
sock = client.bind((host, 0))
sock.send(sock.local_address, b"x", timeout=5)
assert sock.recv(timeout=5).payload == b"x"
client.close()
print("through")
"""


def goes_through(script: str, front_end: rdsd.FrontEnd, daemon: Daemon) -> None:
    """Runs a script against a daemon, which says so at its end."""
    require(front_end, daemon)
    args = [sys.executable, "-c", script, daemon.target, daemon.address, front_end]
    env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(args, timeout=60, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, "through\n"), done.stderr


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_finalizer_may_close_a_socket_anywhere(
    front_end: rdsd.FrontEnd, daemons: tuple[Daemon, Daemon]
) -> None:
    """Also where the thread that collects garbage has a lock of the package's."""
    goes_through(CLOSE_ANYWHERE, front_end, daemons[0])


# Garbage is collected at each place of a call on the very socket that its finalizer closes, also in
# the thread that serves it.
CLOSE_WITHIN = """
import gc, os, sys, rdsd

target, host, front_end = sys.argv[1:]
client = rdsd.Client(target, front_end=front_end)
closed = 0

class Owner:
    def __init__(self, sock):
        self.me, self.sock = self, sock

    def __del__(self):
        global closed
        self.sock.close()
        closed += 1

for after in range(1, 160):
    sock = client.bind((host, 0))
    to = sock.local_address
    gc.set_threshold(0)
    gc.collect()
    Owner(sock)
    gc.set_threshold(after)
    try:
        sock.send(to, b"x", timeout=1)
        sock.recv(timeout=1)
        sock.flush(timeout=1)
        if after % 4 == 0:
            sock.request(to, b"x", timeout=0.01)
        sock.close()
    except rdsd.RdsError:
        pass
    gc.set_threshold(0)
    gc.collect()
assert closed == 159, closed
print("through", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_finalizer_may_close_the_socket_of_a_call(
    front_end: rdsd.FrontEnd, daemons: tuple[Daemon, Daemon]
) -> None:
    """Its thread has locks of that socket, or gRPC's: another one closes it."""
    goes_through(CLOSE_WITHIN, front_end, daemons[0])


# The same of the client of a call that has no socket.
CLOSE_CLIENT_WITHIN = """
import gc, os, sys, rdsd

target, host, front_end = sys.argv[1:]
closed = 0

class Owner:
    def __init__(self, client):
        self.me, self.client = self, client

    def __del__(self):
        global closed
        self.client.close()
        closed += 1

for after in range(1, 120):
    gc.set_threshold(0)
    gc.collect()
    client = rdsd.Client(target, front_end=front_end)
    Owner(client)
    gc.set_threshold(after)
    try:
        client.admin.status(timeout=1)
        client.bind((host, 0), timeout=1)
    except rdsd.RdsError:
        pass
    gc.set_threshold(0)
    gc.collect()
assert closed == 119, closed
print("through", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_finalizer_may_close_the_client_of_a_call(
    front_end: rdsd.FrontEnd, daemons: tuple[Daemon, Daemon]
) -> None:
    """Another thread closes it, and no call on it stays."""
    goes_through(CLOSE_CLIENT_WITHIN, front_end, daemons[0])


# Beside a thread that is in a call, and one that had a request answered, which keeps a port.
CALLS_AT_EXIT = """
import os, sys, threading, rdsd

target, host, front_end = sys.argv[1:]

class Owner:
    def __del__(self):
        assert sys.is_finalizing()
        sock, to = self.sock, self.sock.local_address
        for name, call in {
            "send": lambda: sock.send(to, b"bye"),
            "recv": lambda: sock.recv(timeout=0.01),
            "send_batch": lambda: sock.send_batch([(to, b"bye")] * 3),
            "cancel": lambda: sock.cancel_sent_to(to),
            "flush": lambda: sock.flush(),
            "congested": lambda: sock.congested(to),
            "peek_size": lambda: sock.peek_size(),
            "outcome": lambda: next(sock.outcomes(timeout=0.01)),
            "event": lambda: next(self.watch),
            "request": lambda: sock.request(to, b"x", None),
            "bind": lambda: self.client.bind((host, 0)),
            "problem": lambda: next(self.notices),
            "watch": lambda: self.client.admin.watch_congestion(),
            "close notices": lambda: self.notices.close(),
            "close watch": lambda: self.watch.close(),
            "close socket": lambda: sock.close(),
            "close client": lambda: self.client.close(),
        }.items():
            print(name, end=": ", flush=True)
            try:
                call()
                print("made", flush=True)
            except (rdsd.RdsError, StopIteration) as error:
                print(type(error).__name__, flush=True)
        print("through", flush=True)
        os._exit(0)  # gRPC may wait for its own threads when its streams go

owner = Owner()
owner.client = rdsd.Client(target, front_end=front_end)
owner.sock = owner.client.bind((host, 0), outcomes=True)
owner.watch = owner.sock.watch_congestion(timeout=0.01)
owner.notices = owner.client.admin.watch_congestion(timeout=10)

def serve(sock, busy):
    for datagram in sock:
        sock.reply(datagram, b"answer", timeout=5)
        busy.set()

reader, busy = owner.client.bind((host, 0)), threading.Event()
threading.Thread(target=serve, args=(reader, busy), daemon=True).start()
threading.Thread(target=serve, args=(owner.sock, busy), daemon=True).start()
owner.sock.request(reader.local_address, b"x", 10)
owner.sock.send(owner.sock.local_address, b"x", timeout=10)
busy.wait(10)
sys.modules["kept"] = owner
del owner  # the names here stay for as long as the threads
"""


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_no_call_hangs_while_the_interpreter_ends(
    front_end: rdsd.FrontEnd, daemons: tuple[Daemon, Daemon]
) -> None:
    """What the threads that are gone would have done ends with Closed instead; close does nothing,
    over rings too, where it waited for a thread that never begins."""
    require(front_end, daemons[0])
    args = [sys.executable, "-c", CALLS_AT_EXIT, daemons[0].target, daemons[0].address, front_end]
    env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as program:
        try:
            out, err = program.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            program.kill()
            raise AssertionError(program.communicate()) from None
    assert (program.returncode, out.splitlines()[-1:]) == (0, [b"through"]), (out, err)
    said = dict(line.split(b": ") for line in out.splitlines()[:-1])
    assert {said[name] for name in said if name.startswith(b"close")} == {b"made"}, out
    assert {said[name] for name in (b"request", b"bind", b"problem", b"watch")} == {b"Closed"}, out
