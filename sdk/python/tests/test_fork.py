"""Use in a forked child raises at once instead of hanging."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from conftest import FRONT_ENDS, Daemon, require

import rdsd

PROGRAM = """
import os, sys, rdsd

target, host, front_end = sys.argv[1:]
client = rdsd.Client(target, front_end=front_end)
sock = client.bind((host, 0))
to = sock.local_address
sock.send(to, b"before", timeout=5)
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
        lambda: slot.commit(),
        lambda: client.bind((host, 0)),
    ):
        try:
            call()
            said.append("nothing")
        except rdsd.NotSupported as error:
            said.append("survive a fork" in str(error))
    sock.close()
    client.close()
    del slot, sock
    with rdsd.Client(target, front_end=front_end) as own, own.bind((host, 0)) as mine:
        mine.send(mine.local_address, b"the child's own", timeout=5)
        said.append(mine.recv(timeout=5).payload == b"the child's own")
    if said != [True] * 14:
        print(said, file=sys.stderr)
    os._exit(0 if said == [True] * 14 else 1)
_, status = os.waitpid(pid, 0)
slot.data[:4] = b"goes"
slot.commit(4)
sock.send(to, b"on", timeout=5)
assert [sock.recv(timeout=5).payload for _ in range(3)] == [b"before", b"goes", b"on"]
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_child_is_told_opens_its_own_and_the_parent_goes_on(
    front_end: rdsd.FrontEnd, daemons: tuple[Daemon, Daemon]
) -> None:
    require(front_end, daemons[0])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(PROGRAM),
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
