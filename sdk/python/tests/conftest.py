"""Fixtures: both fronts behind one face, the fake daemon, two real daemons."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_daemon import FakeDaemon

import rdsd
import rdsd.aio
from rdsd._front_end import CONTROL_SUFFIX
from rdsd._target import unix_path

REPO = Path(__file__).resolve().parents[3]


FRONT_ENDS: list[rdsd.FrontEnd] = ["rings", "seqpacket", "grpc"]


class Front:
    """Lets one async test drive either front: synchronous calls run in a thread."""

    def __init__(self, name: str, front_end: rdsd.FrontEnd) -> None:
        self.name = name
        self.front_end = front_end
        self._clients: list[Any] = []

    def client(self, target: str) -> Any:
        kind = rdsd.Client if self.name == "sync" else rdsd.aio.Client
        client = kind(target, front_end=self.front_end)
        self._clients.append(client)
        return client

    async def do(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a method of a client or socket of this front."""
        if self.name == "sync":
            return await asyncio.to_thread(call, *args, **kwargs)
        return await call(*args, **kwargs)

    async def next(self, events: Any) -> Any:
        if self.name == "aio":
            return await anext(events)
        end = object()
        item = await asyncio.to_thread(next, events, end)
        if item is end:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        for client in self._clients:
            await self.do(client.close)


def _every(front_ends: list[rdsd.FrontEnd]) -> list[tuple[str, rdsd.FrontEnd]]:
    return [(name, front_end) for name in ("sync", "aio") for front_end in front_ends]


@pytest_asyncio.fixture(params=_every(["seqpacket", "grpc"]), ids="-".join)
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """Both fronts over what the fake daemon serves."""
    f = Front(*request.param)
    yield f
    await f.close()


@pytest_asyncio.fixture(params=_every(FRONT_ENDS), ids="-".join)
async def local_front(
    request: pytest.FixtureRequest, daemons: tuple[Daemon, Daemon]
) -> AsyncIterator[Front]:
    """Both fronts over everything a real daemon of this node serves."""
    f = Front(*request.param)
    require(f.front_end, daemons[0])
    yield f
    await f.close()


def require(front_end: rdsd.FrontEnd, daemon: Daemon) -> None:
    """Skips, or in CI fails, where this front end is not to be had."""
    try:
        client = rdsd.Client(daemon.target, front_end=front_end)
    except rdsd.NotSupported as error:
        missing(str(error))
        return
    with client:
        try:
            client.bind((daemon.address, 0)).close()
        except rdsd.DaemonUnavailable:
            if Path((unix_path(daemon.target) or "") + CONTROL_SUFFIX).exists():
                raise
            missing("the daemon has no control socket")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a daemon that never answers is waited for is a matter of seconds elsewhere."""
    for module in ("_sync_stream", "_aio_stream"):
        monkeypatch.setattr(f"rdsd.{module}.ANSWER_GRACE", 0.25)
        monkeypatch.setattr(f"rdsd.{module}._CLOSE_WAIT", 0.25)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "rdsd.sock")
    daemon.start()
    yield daemon
    daemon.stop()


@dataclass
class Daemon:
    """A real rdsd serving one loopback address."""

    target: str
    address: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path(os.devnull)

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)
        until = time.monotonic() + 15
        while True:
            try:
                with rdsd.Client(self.target) as client:
                    client.bind((self.address, 0), timeout=1).close()
                return
            except rdsd.RdsError as error:
                if time.monotonic() > until or self.process.poll() is not None:
                    text = self.log.read_text(errors="replace")[-2000:]
                    raise AssertionError(f"rdsd did not start: {error}\n{text}") from error
                time.sleep(0.05)

    def kill(self) -> None:
        """As kill -9 does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def freeze(self) -> None:
        """SIGSTOP: a daemon that is there and says nothing, until thaw().

        kill(2) returns while threads on other processors still run; this waits for them.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 10
        while not all_stopped(self.process.pid):
            assert time.monotonic() < until, "the daemon still runs after SIGSTOP"
            time.sleep(0.001)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None


def all_stopped(pid: int) -> bool:
    """Whether a signal has stopped every thread of a process (proc_pid_stat(5))."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            states.append(stat.read_text().rpartition(") ")[2][0])
    return bool(states) and set(states) == {"T"}


def find_binary() -> Path | None:
    """$RDSD_BIN, else bin/rdsd of the repository."""
    named = os.environ.get("RDSD_BIN")
    path = Path(named) if named else REPO / "bin" / "rdsd"
    return path if path.is_file() and os.access(path, os.X_OK) else None


def missing(reason: str) -> None:
    """Skips; in CI, where everything must run, fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def daemons() -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons on loopback addresses of their own, so that other tests are not met."""
    binary = find_binary()
    if binary is None:
        missing("no rdsd binary: build bin/rdsd or set RDSD_BIN")
        return
    home = Path(tempfile.mkdtemp(prefix="rdsd-py-"))  # Unix socket paths must be short
    net = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
    pair = []
    for name, host in (("a", 2), ("b", 3)):
        socket, address = home / f"{name}.sock", f"{net}.{host}"
        command = [str(binary), "serve", "--address", address, "--socket", str(socket)]
        command += ["--http", ""]
        pair.append(Daemon(f"unix://{socket}", address, command, log=home / f"{name}.log"))
    try:
        for daemon in pair:
            daemon.start()
        yield pair[0], pair[1]
    finally:
        for daemon in pair:
            daemon.terminate()
        shutil.rmtree(home, ignore_errors=True)
