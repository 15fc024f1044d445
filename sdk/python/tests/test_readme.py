"""The programs of README.md and of the guide, run as they stand against a real daemon."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conftest import FRONT_ENDS, Daemon, find_binary, missing, require

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


def test_front_page(tmp_path: Path) -> None:
    """The repository's README, pasted into a shell, sends a datagram that arrives, each time."""
    binary = find_binary()
    if binary is None:
        missing("no rdsd binary: build bin/rdsd or set RDSD_BIN")
        return
    section = (REPO / "README.md").read_text().split("\n## Five minutes\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)
    start, receive = [text for kind, text in blocks if not kind][:2]
    (program,) = (text for kind, text in blocks if kind == "python")
    command, runs = "v/bin/python $D/hello.py", 5
    assert f"`{command}`" in section
    sockets = "bin/rdsd --socket $D/{}.sock sockets"
    script = [
        start.removeprefix("make\n"),
        *(f"until {sockets.format(node)}; do sleep 0.1; done" for node in "ab"),
        receive,
        f"until {sockets.format('b')} | grep -q :4000; do sleep 0.1; done",
        f"cat >$D/hello.py <<'END'\n{program}END",
        *[command] * runs,
    ]
    lines = "\n".join(script).replace("v/bin/python", sys.executable)
    net = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}."
    lines = lines.replace("127.0.0.", net).replace("bin/rdsd", str(binary.resolve()))
    with tempfile.TemporaryDirectory(prefix="rdsd-py-") as home:
        said = Path(home) / "said"
        with said.open("wb") as out:
            shell = subprocess.Popen(
                ["sh", "-ec", lines],
                env={**os.environ, "TMPDIR": home},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            assert shell.wait(120) == 0, lines + said.read_text()
            until = time.monotonic() + 60
            while said.read_text().count(" 5 bytes: hello\n") != runs:
                assert time.monotonic() < until, lines + said.read_text()
                time.sleep(0.02)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)  # what it left in the background
