"""Use in a forked child raises at once instead of hanging."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import FRONT_ENDS, Daemon, require

import rdsd

PROGRAM = """
import os, sys, rdsd

target, host, front_end = sys.argv[1:]
client = rdsd.Client(target, front_end=front_end)
sock = client.bind((host, 0), outcomes=True)
to = sock.local_address
for _ in range(4):
    sock.send(to, b"before", timeout=5)
sock.flush(5)
watch, outcomes, datagrams = sock.watch_congestion(5), sock.outcomes(5), iter(sock)
next(outcomes), next(datagrams)  # the others may be at hand by that
slot = sock.reserve(to, 10, timeout=5)
pid = os.fork()
if pid == 0:
    said = []
    for call in (
        lambda: sock.send(to, b"x"),
        lambda: sock.try_send(to, b"x"),
        lambda: sock.send_batch([(to, b"x")]),
        lambda: sock.send_run(to, b"xy", 1),
        lambda: sock.reserve(to, 10),
        lambda: sock.recv(),
        lambda: sock.borrow(),
        lambda: sock.request(to, b"x", 1),
        lambda: sock.flush(),
        lambda: sock.cancel_sent_to(to),
        lambda: sock.congested(to),
        lambda: sock.peek_size(),
        lambda: sock.watch_congestion(),
        lambda: next(watch),
        lambda: next(outcomes),
        lambda: next(datagrams),
        lambda: slot.commit(),
        lambda: client.bind((host, 0)),
    ):
        try:
            call()
            said.append("nothing")
        except rdsd.NotSupported as error:
            said.append("survive a fork" in str(error))
    watch.close()
    sock.close()
    client.close()
    del slot, sock, watch, outcomes, datagrams
    with rdsd.Client(target, front_end=front_end) as own, own.bind((host, 0)) as mine:
        mine.send(mine.local_address, b"the child's own", timeout=5)
        said.append(mine.recv(timeout=5).payload == b"the child's own")
    if said != [True] * 19:
        print(said, file=sys.stderr)
    os._exit(0 if said == [True] * 19 else 1)
_, status = os.waitpid(pid, 0)
slot.data[:4] = b"goes"
slot.commit(4)
sock.send(to, b"on", timeout=5)
assert [sock.recv(timeout=5).payload for _ in range(5)] == [b"before"] * 3 + [b"goes", b"on"]
assert [next(outcomes).kind for _ in range(5)] == [rdsd.OutcomeKind.DELIVERED] * 5
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


# The same in a loop, which a child may go on with for as long as nothing waits; not over gRPC,
# whose part of a loop may end a child by SIGSEGV.
LOOP = """
import asyncio, os, sys, rdsd, rdsd.aio

async def main(target, host, front_end):
    client = rdsd.aio.Client(target, front_end=front_end)
    sock = await client.bind((host, 0), outcomes=True)
    to = sock.local_address
    for _ in range(4):
        await sock.send(to, b"before", timeout=5)
    await sock.flush(5)
    watch, outcomes, datagrams = sock.watch_congestion(5), sock.outcomes(5), aiter(sock)
    await anext(outcomes), await anext(datagrams)
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (
            lambda: sock.recv(),
            lambda: sock.peek_size(),
            lambda: anext(watch),
            lambda: anext(outcomes),
            lambda: anext(datagrams),
            lambda: sock.watch_congestion(),
        ):
            try:
                await call()
                said.append("nothing")
            except rdsd.NotSupported as error:
                said.append("survive a fork" in str(error))
        if said != [True] * 6:
            print(said, file=sys.stderr)
        os._exit(0 if said == [True] * 6 else 1)
    _, status = os.waitpid(pid, 0)
    assert [(await sock.recv(timeout=5)).payload for _ in range(3)] == [b"before"] * 3
    assert [(await anext(outcomes)).tag for _ in range(3)]
    await client.close()
    return os.waitstatus_to_exitcode(status)

sys.exit(asyncio.run(main(*sys.argv[1:])))
"""


@pytest.mark.parametrize(
    ("front_end", "program"),
    [(f, PROGRAM) for f in FRONT_ENDS] + [(f, LOOP) for f in ("rings", "seqpacket")],
    ids=[*FRONT_ENDS, "rings-aio", "seqpacket-aio"],
)
def test_child_is_told_opens_its_own_and_the_parent_goes_on(
    front_end: rdsd.FrontEnd, program: str, daemons: tuple[Daemon, Daemon]
) -> None:
    require(front_end, daemons[0])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            daemons[0].target,
            daemons[0].address,
            front_end,
        ],
        timeout=30,
        capture_output=True,
        text=True,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


ORPHAN = """
import asyncio, os, signal, sys, time, rdsd, rdsd.aio

target, host, front_end, name = sys.argv[1:]

def leave(sock):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(sock.local_address.port, child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    client = rdsd.aio.Client(target, front_end=front_end)
    leave(await client.bind((host, 0)))

if name == "aio":
    asyncio.run(main())
client = rdsd.Client(target, front_end=front_end)
leave(client.bind((host, 0)))
"""


@pytest.mark.parametrize("name", ["sync", "aio"])
@pytest.mark.parametrize("front_end", ["rings", "seqpacket"])
def test_a_child_does_not_keep_the_port_of_a_parent_that_died(
    front_end: rdsd.FrontEnd, name: str, daemons: tuple[Daemon, Daemon]
) -> None:
    target, host = daemons[0].target, daemons[0].address
    require(front_end, daemons[0])
    args = [sys.executable, "-c", ORPHAN, target, host, front_end, name]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        port, child = map(int, program.stdout.readline().split())
        try:
            assert program.wait(10) == -signal.SIGKILL
            until = time.monotonic() + 5
            with rdsd.Client(target) as client:
                while True:
                    try:
                        client.bind((host, port)).close()
                        break
                    except rdsd.AddressInUse:
                        assert time.monotonic() < until, "the port is still bound"
                        time.sleep(0.05)
        finally:
            os.kill(child, signal.SIGKILL)


# A thread forks. In the child another thread gets the signal, whose handler is the main thread's,
# which waits.
BY_A_THREAD = """
import os, signal, sys, threading, time, rdsd

target, host, front_end = sys.argv[1:]

class Came(Exception):
    pass

def come(*_):
    raise Came

signal.signal(signal.SIGUSR1, come)
# The first use of the extension is the parent's main thread's.
rdsd.Client(target, front_end=front_end).bind((host, 0)).close()

def child():
    with rdsd.Client(target, front_end=front_end) as client, client.bind((host, 0)) as sock:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

        def kill():
            time.sleep(0.3)  # the other one waits by then
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            time.sleep(60)

        threading.Thread(target=kill, daemon=True).start()
        begun = time.monotonic()
        try:
            sock.recv(timeout=25)
        except (Came, rdsd.TimedOut):
            return time.monotonic() - begun

def fork():
    pid = os.fork()
    if pid == 0:
        took = 99
        try:
            took = child()
        finally:
            os._exit(int(took))
    took = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print("ended" if took < 20 else f"after {took} s")

thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""


def test_a_signal_ends_a_wait_in_a_child_of_a_thread(daemons: tuple[Daemon, Daemon]) -> None:
    """Its main thread was taken for another one, which no signal ends the wait of."""
    require("rings", daemons[0])
    args = [sys.executable, "-c", BY_A_THREAD, daemons[0].target, daemons[0].address, "rings"]
    env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(args, timeout=90, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
