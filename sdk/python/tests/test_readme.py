"""The programs of README.md and of the guide, run as they stand against a real daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FRONT_ENDS, Daemon, require

import rdsd

REPO = Path(__file__).resolve().parents[3]
PAGES = (REPO / "sdk" / "python" / "README.md", REPO / "docs" / "python.md")
PROGRAM = re.compile(r"```python\n# (\w+)\.py\n.*?```", re.DOTALL)
PROGRAMS = {
    match[1]: match[0].removeprefix("```python\n").removesuffix("```")
    for page in PAGES
    for match in PROGRAM.finditer(page.read_text())
}

PRINTED = {
    "echo": "one\ntwo\nthree\n",
    "request": "no reply in time; the request was taken back\n"
    "cancelled: 1\nits outcome: cancelled\n",
    "spool": "400 arrived in order; waited for the congested port: True\n",
    "many": "1000 datagrams from 20 senders, in order\n",
    "ways": "auto took rings and received 9 bytes\n"
    "rings took rings and received 9 bytes\n"
    "seqpacket took seqpacket and received 9 bytes\n"
    "grpc took grpc and received 9 bytes\n",
    "runs": "10000 datagrams of 8 samples, 80000 in all\n",
    "inplace": "100 records, none of them copied by this program\n",
    "outcomes": "{'cancelled': 1, 'delivered': 1, 'failed': 1}\n",
    "volume": "scratch is open\n64 MiB, by socket\nerrno 2\n",
    "blame": "TimedOut\nfilled by the sender: True\nsleeper has something to read\nserving\n",
    "server": "MANY REQUESTS AT ONCE\n",
}

#: These are about rings; the others are run over every front end.
NEED_RINGS = {"ways"}
CASES = [
    (name, front_end)
    for name in sorted(PRINTED)
    for front_end in (["auto"] if name in NEED_RINGS else FRONT_ENDS)
]


def test_all_programs_are_here() -> None:
    assert set(PROGRAMS) == set(PRINTED)


@pytest.mark.parametrize(("name", "front_end"), CASES)
def test_program(
    name: str, front_end: rdsd.FrontEnd, daemons: tuple[Daemon, Daemon], tmp_path: Path
) -> None:
    daemon = daemons[0]
    require("rings" if front_end == "auto" else front_end, daemon)
    program = tmp_path / f"{name}.py"
    program.write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(program), daemon.address],
        env={**os.environ, "RDSD_SOCKET": daemon.target, "RDSD_FRONT_END": front_end},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED[name]


def test_front_page(daemons: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    """The lines of the repository's README send a datagram that arrives, each time."""
    block = re.search(r"```python\n(with .*?)```", (REPO / "README.md").read_text(), re.DOTALL)
    assert block is not None
    here, there = daemons
    with rdsd.Client(there.target) as client, client.bind((there.address, 0)) as sink:
        host, port = sink.local_address
        lines = block[1].replace('os.environ["D"] + "/a.sock"', repr(here.target))
        lines = lines.replace("127.0.0.2:0", f"{here.address}:0")
        lines = lines.replace("127.0.0.3:4000", f"{host}:{port}")
        program = tmp_path / "hello.py"
        program.write_text("import rdsd\n" + lines)
        for _ in range(5):
            subprocess.run([sys.executable, program], check=True, timeout=30)
            assert sink.recv(timeout=10).payload == b"hello"
