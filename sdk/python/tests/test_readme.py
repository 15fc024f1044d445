"""The programs of README.md, run as they stand against a real daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Daemon

README = Path(__file__).resolve().parents[1] / "README.md"
PROGRAMS = {
    match[1]: match[0].removeprefix("```python\n").removesuffix("```")
    for match in re.finditer(r"```python\n# (\w+)\.py\n.*?```", README.read_text(), re.DOTALL)
}

PRINTED = {
    "echo": "one\ntwo\nthree\n",
    "request": "no reply in time; the request was taken back\n"
    "cancelled: 1\nits outcome: cancelled\n",
    "spool": "400 arrived in order; waited for the congested port: True\n",
    "many": "1000 datagrams from 20 senders, in order\n",
}


def test_all_programs_are_here() -> None:
    assert set(PROGRAMS) == set(PRINTED)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_program(name: str, daemons: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(PROGRAMS[name])
    daemon = daemons[0]
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(program), daemon.address],
        env={**os.environ, "RDSD_SOCKET": daemon.target},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED[name]
