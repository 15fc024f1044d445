"""Volumes of real daemons: one exports, the other maps, and what is written arrives."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from conftest import Daemon

import rdsd
import rdsd.aio

Pair = tuple[Daemon, Daemon]
Ask = Callable[..., Any]


class Nbd:
    """As much of an NBD client as it takes to read and write (one request at a time)."""

    def __init__(self, path: str, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(path)
        self._exactly(18)  # NBDMAGIC, IHAVEOPT, flags
        option = name.encode()
        self._socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, len(option)) + option)
        self.size = struct.unpack(">QH", self._exactly(10))[0]

    def read(self, offset: int, length: int) -> bytes:
        self._request(0, offset, length)
        return self._exactly(length)

    def write(self, offset: int, data: bytes) -> None:
        self._request(1, offset, len(data), data)

    def flush(self) -> None:
        self._request(3, 0, 0)

    def close(self) -> None:
        self._socket.close()

    def _request(self, kind: int, offset: int, length: int, data: bytes = b"") -> None:
        header = struct.pack(">IHHQQI", 0x25609513, 0, kind, 1, offset, length)
        self._socket.sendall(header + data)
        magic, error, _ = struct.unpack(">IIQ", self._exactly(16))
        assert (magic, error) == (0x67446698, 0)

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            assert part, "the connection ended"
            data += part
        return data


@pytest_asyncio.fixture(params=["sync", "aio"])
async def ask(request: pytest.FixtureRequest, daemons: Pair) -> AsyncIterator[Ask]:
    """ask(daemon, method, ...) calls a method of its volumes, over either front."""
    kind: Any = rdsd.Client if request.param == "sync" else rdsd.aio.Client
    clients: dict[str, Any] = {}

    async def do(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return await asyncio.to_thread(call, *args, **kwargs)
        return await call(*args, **kwargs)

    async def call(daemon: Daemon, method: str, *args: Any, **kwargs: Any) -> Any:
        client = clients.setdefault(daemon.target, kind(daemon.target))
        return await do(getattr(client.volumes, method), *args, timeout=20, **kwargs)

    yield call
    for client in clients.values():
        await do(client.close)


async def when_free(ask: Ask, daemon: Daemon, method: str, *args: Any) -> None:
    """Until whoever used it is seen to have left."""
    until = time.monotonic() + 10
    while True:
        try:
            await ask(daemon, method, *args)
            return
        except rdsd.Busy:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)


async def test_a_volume_of_another_node(ask: Ask, daemons: Pair, tmp_path: Path) -> None:
    near, far = daemons
    path = tmp_path / "disk"
    e = await ask(far, "export", "disk", path=str(path), size=1 << 20, create=True)
    try:
        assert (e.kind, e.info.size, e.origin) == (rdsd.VolumeKind.FILE, 1 << 20, "call")
        with pytest.raises(rdsd.Exists):
            await ask(far, "export", "disk", kind="memory", size=4096)
        with pytest.raises(rdsd.NotFound):
            await ask(near, "map", far.address, "nothing")
        m = await ask(near, "map", far.address, "disk", on_loss="error", io_timeout=20)
        assert (m.state, m.attach, m.on_loss, m.io_timeout) == ("open", "socket", "error", 20)
        with pytest.raises(rdsd.Exists):
            await ask(near, "map", far.address, "disk")

        data = os.urandom(65536)
        nbd = await asyncio.to_thread(Nbd, m.device, "disk")
        await asyncio.to_thread(nbd.write, 4096, data)
        await asyncio.to_thread(nbd.flush)
        assert await asyncio.to_thread(nbd.read, 4096, len(data)) == data
        assert path.read_bytes()[4096 : 4096 + len(data)] == data
        with pytest.raises(rdsd.Busy):
            await ask(near, "unmap", m.id)

        exports, mappings = await ask(near, "list")
        assert (exports, [x.id for x in mappings]) == ((), [m.id])
        writes = {op.op: op for op in mappings[0].ops}["write"]
        assert (writes.bytes, writes.errors) == (len(data), 0)
        assert 0 < writes.p50 <= writes.p99 < 20
        (used,) = (await ask(far, "get_export", "disk")).users
        assert (used.session, used.access) == (m.session, rdsd.VolumeAccess.READ_WRITE)
        assert (await ask(near, "info", far.address, "disk")).info.size == 1 << 20
        (session,) = await ask(near, "sessions")
        assert (session.name, session.up, session.role) == (m.session, True, "client")
        (way,) = await ask(near, "paths", m.session)
        assert (way.state, way.write_bytes >= len(data)) == ("connected", True)
        await ask(near, "set_policy", m.session, "rr")
        await ask(near, "reset_stats")
        assert (await ask(near, "paths"))[0].write_bytes == 0
        assert all(f.severity != "error" for f in await ask(near, "check"))

        assert await ask(far, "resize_export", "disk", 2 << 20) == 2 << 20
        assert await ask(near, "resize_mapping", m.id) == 2 << 20
        nbd.close()
        await when_free(ask, near, "unmap", m.id)
        with pytest.raises(rdsd.NotFound):
            await ask(near, "get_mapping", m.id)
    finally:
        await ask(far, "unexport", "disk", force=True)


async def test_events(ask: Ask, daemons: Pair) -> None:
    near, far = daemons
    watch = await ask(near, "watch")
    await ask(far, "export", "mem", kind="memory", size=4096)
    try:
        m = await ask(near, "map", far.address, "mem")
        before = 0
        with watch:
            while True:
                if isinstance(watch, rdsd.VolumeWatch):
                    event = await asyncio.to_thread(next, watch)
                else:
                    event = await asyncio.wait_for(anext(watch), 20)
                assert before in (0, event.number - 1)
                before = event.number
                if event.kind is rdsd.VolumeEventKind.MAPPING:
                    break
        assert (event.mapping, event.state, event.error) == (m.id, "open", None)
        await ask(near, "unmap", m.id, force=True)
    finally:
        await ask(far, "unexport", "mem", force=True)
