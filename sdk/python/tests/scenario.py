"""Runs scenarios of sdk/scenario/scenario.json; the format is in the README beside it.

One runner for both fronts: the steps are asynchronous, and synchronous calls
run in threads (see conftest.Front).
"""

from __future__ import annotations

import asyncio
import errno
import time
from typing import Any

from conftest import Front

import rdsd

Step = dict[str, Any]


class Runner:
    """One scenario on two daemons; run it once."""

    def __init__(
        self, front: Front, daemons: dict[str, tuple[str, str]], scenario: dict[str, Any]
    ) -> None:
        self.front = front
        self.scenario = scenario
        self.hosts = {name: host for name, (_, host) in daemons.items()}
        self.clients = {name: front.client(target) for name, (target, _) in daemons.items()}
        self.sockets: dict[str, Any] = {}
        self.addresses: dict[str, rdsd.Address] = {}  # also of closed sockets
        self.counts: dict[str, int] = {}
        self.watches: dict[str, Any] = {}
        self.events: dict[str, list[rdsd.CongestionChange]] = {}
        self.readers: dict[str, Any] = {}
        self.echoes: list[asyncio.Task[None]] = []
        self.leases: dict[str, list[tuple[rdsd.Lease, bytes]]] = {}
        self.slots: dict[str, Any] = {}

    async def run(self) -> None:
        try:
            for name in sorted(self.scenario.get("sockets", {})):
                await self.bind({**self.scenario["sockets"][name], "on": name})
            for number, step in enumerate(self.scenario["steps"]):
                try:
                    await self.step(step)
                except Exception as error:
                    error.add_note(f"step {number} of {self.scenario['name']}: {step}")
                    raise
            for echo in self.echoes:
                await asyncio.wait_for(echo, 5)
        finally:
            for echo in self.echoes:
                echo.cancel()
            for sock in self.sockets.values():
                await self.do(sock.close)

    async def step(self, step: Step) -> None:
        run = getattr(self, step["op"])
        want = step.get("error")
        try:
            await run(step)
        except rdsd.RdsError as error:
            if want is None or error.errno != getattr(errno, want):
                raise
            return
        assert want is None, f"succeeded, want {want}"

    async def do(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """A call that must end by itself; the limit only catches hangs."""
        return await asyncio.wait_for(self.front.do(call, *args, **kwargs), 30)

    # -- steps -----------------------------------------------------------------

    async def bind(self, step: Step) -> None:
        host: str = step.get("addr") or step["at"]
        options: dict[str, Any] = {
            key: step[key] for key in ("send_buffer", "recv_buffer", "outcomes") if key in step
        }
        if "recv_window" in step:
            options["recv_window"] = tuple(step["recv_window"])
        client = self.clients[step["at"]]
        local = (self.hosts.get(host, host), step.get("port", 0))
        sock = await self.do(client.bind, local, timeout=seconds(step), **options)
        self.sockets[step["on"]] = sock
        self.addresses[step["on"]] = sock.local_address

    async def local(self, step: Step) -> None:
        got = self.on(step).local_address
        assert got.host == self.hosts.get(step["addr"], step["addr"])
        assert got.port == step["port"] if step["port"] else got.port != 0

    async def send(self, step: Step) -> None:
        for i in range(self.repeat(step)):
            payload = make_payload(step["payload"], i)
            await self.do(self.on(step).send, self.to(step), payload, timeout=seconds(step))

    async def try_send(self, step: Step) -> None:
        until = step.get("until_error")
        for i in range(step["max"] if until else self.repeat(step)):
            try:
                payload = make_payload(step["payload"], i)
                await self.do(self.on(step).try_send, self.to(step), payload)
            except rdsd.RdsError as error:
                if until is None or error.errno != getattr(errno, until):
                    raise
                if "count_as" in step:
                    self.counts[step["count_as"]] = i
                return
        assert until is None, f"{step['max']} were accepted without {until}"

    async def send_batch(self, step: Step) -> None:
        batch = [
            (self.endpoint(d["to"]), make_payload(d["payload"], i))
            for i, d in enumerate(step["datagrams"])
        ]
        errors: dict[str, int] = {}
        try:
            tags = await self.do(self.on(step).send_batch, batch, timeout=seconds(step))
            accepted = len(tags)
        except rdsd.BatchError as error:
            accepted = error.accepted
            errors = {str(i): e.errno for i, e in error.errors}
        assert errors == {i: getattr(errno, name) for i, name in step.get("errors", {}).items()}
        assert accepted == step["accepted"]

    async def recv(self, step: Step) -> None:
        for i in range(self.repeat(step)):
            got = await self.do(self.on(step).recv, timeout=seconds(step))
            if "as" in step:
                self.addresses[step["as"]] = got.addr
            if "from" in step:
                assert got.addr == self.endpoint(step["from"])
            if "payload" in step:
                assert got.payload == make_payload(step["payload"], i)

    async def volley(self, step: Step) -> None:
        sock, to = self.on(step), self.sockets[step["to"]]
        admin = self.clients[step["at"]].admin
        source, target = self.addresses[step["on"]], self.to(step)
        was, sent, limit = await self.pair_datagrams(admin), 0, time.monotonic() + seconds(step)
        while True:
            end, want = sent + step["count"], sent
            while sent < end:
                n = min(step["burst"], end - sent)
                batch = [(target, (sent + i).to_bytes(8, "little")) for i in range(n)]
                await self.do(sock.send_batch, batch, timeout=5)
                sent += n
                while want < sent:
                    for got in await self.do(to.recv_batch, step["burst"], timeout=5):
                        assert got.addr == source
                        assert got.payload == want.to_bytes(8, "little")
                        want += 1
            once = not step.get("until_paired") or self.front.front_end != "rings"
            if once or await self.pair_datagrams(admin) > was:
                return
            assert time.monotonic() < limit, "no pair"

    async def pair_datagrams(self, admin: Any) -> int:
        counters = await self.do(admin.counters)
        return next(int(c.value) for c in counters if c.name == "pair_datagrams")

    async def borrow(self, step: Step) -> None:
        kept = self.leases.setdefault(step["as"], [])
        for i in range(self.repeat(step)):
            lease = await self.do(self.on(step).borrow, 1, timeout=seconds(step))
            want = make_payload(step["payload"], i)
            kept.append((lease, want))
            assert len(lease) == 1
            assert lease[0].addr == self.endpoint(step["from"])
            assert lease[0].payload == want

    async def release(self, step: Step) -> None:
        for lease, want in self.leases[step["as"]]:
            assert lease[0].payload == want
            lease.release()

    async def reserve(self, step: Step) -> None:
        self.slots[step["as"]] = await self.do(
            self.on(step).reserve, self.to(step), step["size"], timeout=seconds(step)
        )

    async def commit(self, step: Step) -> None:
        slot, payload = self.slots[step["as"]], make_payload(step["payload"], 0)
        slot.data[: len(payload)] = payload
        await self.do(slot.commit, len(payload))

    async def abort(self, step: Step) -> None:
        self.slots[step["as"]].abort()

    async def request(self, step: Step) -> None:
        payload = make_payload(step["payload"], 0)
        got = await self.do(self.on(step).request, self.to(step), payload, seconds(step))
        assert got.payload == make_payload(step["reply"], 0)
        assert got.addr == self.to(step)

    async def reply(self, step: Step) -> None:
        asked = rdsd.Datagram(self.to(step), b"")
        payload = make_payload(step["payload"], 0)
        await self.do(self.on(step).reply, asked, payload, timeout=seconds(step))

    async def echo(self, step: Step) -> None:
        sock = self.on(step)

        async def serve() -> None:
            for _ in range(step["count"]):
                got = await self.front.do(sock.recv, timeout=10)
                await self.front.do(sock.send, got.addr, got.payload, timeout=10)

        self.echoes.append(asyncio.create_task(serve()))

    async def cancel(self, step: Step) -> None:
        call = self.on(step).cancel_sent_to
        got = await self.do(call, self.to(step), timeout=seconds(step))
        if "cancelled" in step:
            assert got.cancelled == self.number(step["cancelled"])

    async def flush(self, step: Step) -> None:
        await self.do(self.on(step).flush, timeout=seconds(step))

    async def outcomes(self, step: Step) -> None:
        expect: dict[str, int] = step["expect"]
        reader = self.readers.setdefault(step["on"], self.on(step).outcomes(timeout=seconds(step)))
        got: dict[str, int] = {}
        for _ in range(sum(expect.values())):
            outcome = await self.front.next(reader)
            kind = outcome.kind.name.lower()
            got[kind] = got.get(kind, 0) + 1
            if "reason" in step and kind != "delivered":
                assert step["reason"] in outcome.reason
        assert got == expect

    async def congested(self, step: Step) -> None:
        async def ask() -> bool:
            return bool(await self.do(self.on(step).congested, self.to(step), seconds(step)))

        await self.until(step, ask, step["is"])

    async def watch(self, step: Step) -> None:
        self.watches[step["on"]] = self.on(step).watch_congestion(timeout=seconds(step))
        self.events[step["on"]] = []

    async def event(self, step: Step) -> None:
        wanted = rdsd.CongestionChange(self.to(step), step["congested"])
        seen = self.events[step["on"]]
        while wanted not in seen:
            event = await self.front.next(self.watches[step["on"]])
            seen.extend(event.changes)

    async def peek(self, step: Step) -> None:
        if step["size"] is None:
            assert await self.do(self.on(step).peek_size, timeout=seconds(step)) is None
            return

        async def ask() -> int | None:
            size: int | None = await self.do(self.on(step).peek_size, timeout=seconds(step))
            return size

        await self.until(step, ask, step["size"])

    async def close(self, step: Step) -> None:
        await self.do(self.on(step).close)

    # -- what steps name -------------------------------------------------------

    def on(self, step: Step) -> Any:
        return self.sockets[step["on"]]

    def to(self, step: Step) -> rdsd.Address:
        return self.endpoint(step["to"])

    def endpoint(self, where: Any) -> rdsd.Address:
        if isinstance(where, str):
            return self.addresses[where]
        host, port = where
        return rdsd.Address(self.hosts.get(host, host), port)

    def number(self, value: int | str) -> int:
        return self.counts[value] if isinstance(value, str) else value

    def repeat(self, step: Step) -> int:
        return self.number(step.get("repeat", 1))

    async def until(self, step: Step, ask: Any, want: Any) -> None:
        limit = time.monotonic() + seconds(step)
        while (got := await ask()) != want:
            assert time.monotonic() < limit, f"{got}, want {want}"
            await asyncio.sleep(0.005)


def seconds(step: Step) -> float:
    return float(step.get("timeout_ms", 5000)) / 1000


def make_payload(spec: Any, number: int) -> bytes:
    if isinstance(spec, str):
        return spec.encode()
    if "size" in spec:
        size: int = spec["size"]
        return (bytes(range(251)) * (size // 251 + 1))[:size]
    return b"%d" % number
