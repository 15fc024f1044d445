"""Use in a forked child raises at once instead of hanging."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from fake_daemon import FakeDaemon

PROGRAM = """
import os, sys, rdsd

client = rdsd.Client({target!r})
sock = client.bind("127.0.0.1:0")
pid = os.fork()
if pid == 0:
    said = []
    for call in (
        lambda: sock.send(sock.local_address, b"x"),
        lambda: sock.recv(),
        lambda: client.bind("127.0.0.1:0"),
    ):
        try:
            call()
        except rdsd.NotSupported as error:
            said.append("survive a fork" in str(error))
    sock.close()
    client.close()
    with rdsd.Client({target!r}) as own, own.bind("127.0.0.1:0") as mine:
        mine.send(mine.local_address, b"the child's own", timeout=5)
        said.append(mine.recv(timeout=5).payload == b"the child's own")
    os._exit(0 if said == [True] * 4 else 1)
_, status = os.waitpid(pid, 0)
sock.send(sock.local_address, b"the parent goes on")
assert sock.recv(timeout=5).payload == b"the parent goes on"
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_child_is_told_opens_its_own_and_the_parent_goes_on(fake: FakeDaemon) -> None:
    program = textwrap.dedent(PROGRAM).format(target=fake.target)
    done = subprocess.run(
        [sys.executable, "-c", program],
        timeout=30,
        capture_output=True,
        text=True,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
