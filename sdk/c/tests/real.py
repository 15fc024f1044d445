#!/usr/bin/env python3
"""The library against real daemons: the scenarios that all SDKs share, a daemon
that is killed, the examples and the program of the guide.

Usage: real.py BUILD RDSD [WORD...]   (only tests whose name contains a word)
Prints "ok NAME" or "FAIL NAME" and why; exits with 1 after a failure.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SDK = HERE.parents[1]

Step = dict[str, Any]


class Refused(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{errno.errorcode.get(number, number)}: {text}")
        self.errno = number


class Daemon:
    def __init__(self, binary: str, home: Path, name: str, address: str) -> None:
        self.address = address
        self.target = home / f"{name}.sock"
        self.log = home / f"{name}.log"
        self.command = [binary, "serve", "--address", address, "--socket", str(self.target), "--http", ""]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)

    def counter(self, name: str) -> int:
        command = [self.command[0], "counters", "--socket", str(self.target), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return next(int(c["value"]) for c in json.loads(done.stdout) if c["name"] == name)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class Lines:
    """The helper program that makes the calls."""

    def __init__(self, build: Path) -> None:
        self.process = subprocess.Popen([str(build / "runner")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *words: Any) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the helper is gone after {words[0]!r} (exit {self.process.wait()})")
        kind, _, rest = line.strip().partition(" ")
        if kind == "error":
            number, _, text = rest.partition(" ")
            raise Refused(int(number), text)
        return rest

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        if self.process.wait(20) != 0:
            raise AssertionError(f"the helper ended with {self.process.returncode}")


def payload(spec: Any, repetition: int) -> str:
    if isinstance(spec, str):
        data = spec.encode()
    elif "size" in spec:
        data = bytes(i % 251 for i in range(251)) * (spec["size"] // 251 + 1)
        data = data[: spec["size"]]
    else:
        data = str(repetition).encode()
    return data.hex() or "-"


class Scenario:
    def __init__(self, call: Lines, daemons: dict[str, Daemon], scenario: dict[str, Any]) -> None:
        self.call, self.daemons, self.scenario = call, daemons, scenario
        self.addresses: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.seen: dict[str, list[tuple[str, bool]]] = {}
        self.outcomes: dict[str, list[tuple[int, str, str]]] = {}
        self.borrowed: dict[str, list[str]] = {}

    def run(self) -> None:
        for name, daemon in self.daemons.items():
            self.call("client", name, daemon.target)
        try:
            for name in sorted(self.scenario.get("sockets", {})):
                self.do_bind({**self.scenario["sockets"][name], "on": name})
            for number, step in enumerate(self.scenario["steps"]):
                try:
                    self.step(step)
                except (AssertionError, Refused) as error:
                    raise AssertionError(f"step {number} {step}: {error}") from error
        finally:
            self.call("end")

    def step(self, step: Step) -> None:
        want = step.get("error")
        try:
            getattr(self, "do_" + step["op"])(step)
        except Refused as error:
            if want is None or error.errno != getattr(errno, want):
                raise
            return
        if want is not None:
            raise AssertionError(f"succeeded, want {want}")

    def host(self, name: str) -> str:
        return self.daemons[name].address if name in self.daemons else name

    def to(self, step: Step, key: str = "to") -> str:
        spec = step[key]
        if isinstance(spec, str):
            return self.addresses[spec]
        host = self.host(spec[0])
        return f"[{host}]:{spec[1]}" if ":" in host else f"{host}:{spec[1]}"

    def times(self, step: Step) -> int:
        n = step.get("repeat", 1)
        return self.counts[n] if isinstance(n, str) else n

    @staticmethod
    def timeout(step: Step) -> int:
        return step.get("timeout_ms", 5000)

    def do_bind(self, step: Step) -> None:
        address = f"{self.host(step.get('addr') or step['at'])}:{step.get('port', 0)}"
        flags = 1 if step.get("outcomes") else 0
        self.call("bind", step["on"], step["at"], address, step.get("send_buffer", 0), step.get("recv_buffer", 0), flags)
        self.addresses[step["on"]] = self.call("local", step["on"])

    def do_local(self, step: Step) -> None:
        host, _, port = self.call("local", step["on"]).rpartition(":")
        assert host == self.host(step["addr"]), host
        assert int(port) == step["port"] if step["port"] else int(port) > 0, port

    def do_send(self, step: Step) -> None:
        for i in range(self.times(step)):
            self.call("send", step["on"], self.to(step), payload(step["payload"], i), self.timeout(step))

    def do_try_send(self, step: Step) -> None:
        until, to = step.get("until_error"), self.to(step)
        if until is None:
            for i in range(self.times(step)):
                self.call("try", step["on"], to, payload(step["payload"], i))
            return
        for i in range(step["max"]):
            try:
                self.call("try", step["on"], to, payload(step["payload"], i))
            except Refused as error:
                assert error.errno == getattr(errno, until), error
                self.counts[step["count_as"]] = i
                return
        raise AssertionError(f"no {until} in {step['max']}")

    def do_send_batch(self, step: Step) -> None:
        words: list[str] = []
        for d in step["datagrams"]:
            words += [self.to(d), payload(d["payload"], 0)]
        answer = self.call("batch", step["on"], self.timeout(step), len(step["datagrams"]), *words).split()
        errors = {str(i): errno.errorcode[int(n)] for i, n in enumerate(answer) if n != "0"}
        assert errors == step.get("errors", {}), errors
        assert len(answer) - len(errors) == step["accepted"], answer

    def do_recv(self, step: Step) -> None:
        for i in range(self.times(step)):
            source, data = self.call("recv", step["on"], self.timeout(step)).split()
            if "as" in step:
                self.addresses[step["as"]] = source
            else:
                assert source == self.to(step, "from"), source
            if "payload" in step:
                assert data == payload(step["payload"], i), f"datagram {i}: {data[:60]}"

    def do_volley(self, step: Step) -> None:
        at, sent = self.daemons[step["at"]], 0
        was = at.counter("pair_datagrams")
        until = time.monotonic() + self.timeout(step) / 1000
        while True:
            self.call("volley", step["on"], self.to(step), step["to"], sent, step["count"], step["burst"], 5000)
            sent += step["count"]
            if not step.get("until_paired") or at.counter("pair_datagrams") > was:
                return
            assert time.monotonic() < until, f"no pair: {at.counter('pairs_offered')} were offered"

    def do_borrow(self, step: Step) -> None:
        kept = self.borrowed.setdefault(step["as"], [])
        for i in range(self.times(step)):
            source, data = self.call("borrow", step["on"], step["as"], self.timeout(step)).split()
            kept.append(payload(step["payload"], i))
            assert source == self.to(step, "from"), source
            assert data == kept[-1], f"datagram {i}: {data[:60]}"

    def do_release(self, step: Step) -> None:
        assert self.call("release", step["on"], step["as"]).split() == self.borrowed[step["as"]]

    def do_reserve(self, step: Step) -> None:
        self.call("reserve", step["on"], step["as"], self.to(step), step["size"], self.timeout(step))

    def do_commit(self, step: Step) -> None:
        self.call("commit", step["on"], step["as"], payload(step["payload"], 0))

    def do_abort(self, step: Step) -> None:
        self.call("abort", step["on"], step["as"])

    def do_request(self, step: Step) -> None:
        got = self.call("request", step["on"], self.to(step), payload(step["payload"], 0), self.timeout(step))
        assert got == payload(step["reply"], 0), got

    def do_reply(self, step: Step) -> None:
        self.call("reply", step["on"], self.to(step), payload(step["payload"], 0), self.timeout(step))

    def do_echo(self, step: Step) -> None:
        self.call("echo", step["on"], step["count"])

    def do_cancel(self, step: Step) -> None:
        cancelled = int(self.call("cancel", step["on"], self.to(step), self.timeout(step)).split()[0])
        want = step["cancelled"]
        assert cancelled == (self.counts[want] if isinstance(want, str) else want), cancelled

    def do_flush(self, step: Step) -> None:
        self.call("flush", step["on"], self.timeout(step))

    def do_outcomes(self, step: Step) -> None:
        got: dict[str, int] = {}
        while sum(got.values()) < sum(step["expect"].values()):
            for run in self.call("outcomes", step["on"], self.timeout(step)).strip(";").split(";"):
                _, count, kind, reason = run.strip().split(",", 3)
                got[kind] = got.get(kind, 0) + int(count)
                if kind != "delivered" and "reason" in step:
                    assert step["reason"] in reason, reason
        assert got == step["expect"], got

    def do_congested(self, step: Step) -> None:
        until = time.monotonic() + self.timeout(step) / 1000
        while self.call("congested", step["on"], self.to(step), self.timeout(step)) != str(int(step["is"])):
            assert time.monotonic() < until, "not in time"
            time.sleep(0.002)

    def do_watch(self, step: Step) -> None:
        self.call("watch", step["on"])
        self.seen[step["on"]] = []

    def do_event(self, step: Step) -> None:
        want = (self.to(step), bool(step["congested"]))
        while want not in self.seen[step["on"]]:
            address, congested, _ = self.call("event", step["on"], self.timeout(step)).rsplit(" ", 2)
            self.seen[step["on"]].append((address, congested == "1"))

    def do_peek(self, step: Step) -> None:
        want = "none" if step["size"] is None else str(step["size"])
        until = time.monotonic() + self.timeout(step) / 1000
        while (got := self.call("peek", step["on"])) != want:
            assert step["size"] is not None and time.monotonic() < until, got
            time.sleep(0.002)

    def do_close(self, step: Step) -> None:
        self.call("close", step["on"])


def wait_for_daemon(call: Lines, daemon: Daemon) -> None:
    until = time.monotonic() + 15
    call("client", "probe", daemon.target)
    while True:
        try:
            call("bind", "probe", "probe", f"{daemon.address}:0", 0, 0, 0)
            call("end")
            return
        except Refused as error:
            dead = daemon.process is None or daemon.process.poll() is not None
            if dead or time.monotonic() > until:
                raise AssertionError(f"rdsd did not start: {error}\n{daemon.log.read_text()[-2000:]}") from error
            time.sleep(0.05)


def killed_daemon(call: Lines, daemons: dict[str, Daemon]) -> None:
    """The daemon is killed and started again: same port, unknown outcomes, nothing lost that was received."""
    a, b = daemons["A"], daemons["B"]
    for name, daemon in daemons.items():
        call("client", name, daemon.target)
    call("bind", "a", "A", f"{a.address}:0", 0, 0, 1)
    call("bind", "b", "B", f"{b.address}:0", 0, 0, 0)
    call("bind", "c", "A", f"{a.address}:0", 0, 0, 0)
    where, other, third = call("local", "a"), call("local", "b"), call("local", "c")
    call("send", "a", third, b"unread".hex(), 5000)
    call("flush", "a", 5000)
    assert "delivered" in call("outcomes", "a", 5000)
    call("send", "a", "127.0.0.250:7", b"stuck".hex(), 5000)
    a.kill()
    while "unknown,daemon restarted" not in (got := call("outcomes", "a", 5000)):
        assert "delivered" in got, got
    try:
        call("send", "a", other, b"early".hex(), 100)
        raise AssertionError("a send without a daemon succeeded")
    except Refused as error:
        assert error.errno == errno.ETIMEDOUT, error
    try:
        call("try", "a", other, b"early".hex())
        raise AssertionError("a try without a daemon succeeded")
    except Refused as error:
        assert error.errno == errno.ESHUTDOWN, error
    assert call("recv", "c", 5000) == f"{where} {b'unread'.hex()}"
    a.start()
    call("send", "a", other, b"after".hex(), 15000)
    assert call("recv", "b", 15000) == f"{where} {b'after'.hex()}"
    assert call("local", "a") == where
    call("end")


def killed_beside_pair(call: Lines, daemons: dict[str, Daemon]) -> None:
    """The daemon is killed while a flow goes by a pair: what lies in it is read, and the flow goes on with the next daemon."""
    a = daemons["A"]
    call("client", "A", a.target)
    call("bind", "a", "A", f"{a.address}:0", 0, 0, 1)
    call("bind", "b", "A", f"{a.address}:0", 0, 0, 0)
    where, total = call("local", "b"), 0
    for round in range(3):
        was, sent, until = a.counter("pair_datagrams"), 0, time.monotonic() + 60
        while a.counter("pair_datagrams") == was:
            call("volley", "a", where, "b", sent, 2048, 64, 20000)
            sent += 2048
            assert time.monotonic() < until, "no pair"
        call("flush", "a", 20000)
        time.sleep(0.2)  # the daemon counts now and then: what follows is to be counted apart
        passed = a.counter("pair_datagrams")
        call("run", "a", where, 500, 20000)
        while a.counter("pair_datagrams") < passed + 500:
            assert time.monotonic() < until, "the run did not go by the pair"
            time.sleep(0.02)
        a.kill()
        if round == 1:
            a.start()
        call("drain", "b", 500, 20000)
        if round != 1:
            a.start()
        call("congested", "b", "127.0.0.250:7", 20000)  # answered when it is bound again
        call("volley", "a", where, "b", 0, 100, 10, 20000)
        total += sent + 600
    while total > 0:  # one outcome for each, and none is unknown
        for run in call("outcomes", "a", 20000).strip(";").split(";"):
            _, count, kind, _ = run.strip().split(",", 3)
            assert kind == "delivered", run
            total -= int(count)
    assert total == 0, total
    call("end")


def many_undecided(call: Lines, daemons: dict[str, Daemon]) -> None:
    """More datagrams at a time than a daemon keeps undecided: it goes on when it has room."""
    for name, daemon in daemons.items():
        call("client", name, daemon.target)
    call("bind", "a", "A", f"{daemons['A'].address}:0", 8 << 20, 0, 0)
    call("bind", "b", "B", f"{daemons['B'].address}:0", 0, 32 << 20, 0)
    other, n = call("local", "b"), 250000
    call("run", "a", other, n, 20000)
    call("drain", "b", n, 10000)
    call("flush", "a", 10000)
    call("end")


def example(build: Path, daemons: dict[str, Daemon], name: str, *args: str) -> str:
    env = dict(os.environ, RDSD_SOCKET=str(daemons["A"].target))
    done = subprocess.run([str(build / name), *args], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def server(build: Path, daemon: Daemon, name: str, *args: str) -> subprocess.Popen[str]:
    env = dict(os.environ, RDSD_SOCKET=str(daemon.target))
    return subprocess.Popen([str(build / name), *args], env=env, stdout=subprocess.PIPE, text=True)


def echo_example(build: Path, daemons: dict[str, Daemon]) -> None:
    there = f"{daemons['B'].address}:7007"
    echo = server(build, daemons["B"], "echo", there)
    try:
        assert echo.stdout and "echo at" in echo.stdout.readline()
        out = example(build, daemons, "echo", f"{daemons['A'].address}:0", there, "hello")
        assert f"{there} says hello" in out, out
    finally:
        echo.terminate()
        echo.wait(10)


def loop_example(build: Path, daemons: dict[str, Daemon]) -> None:
    there = f"{daemons['B'].address}:7008"
    collector = server(build, daemons["B"], "collect", there, "8")
    try:
        assert collector.stdout and "collecting at" in collector.stdout.readline()
        example(build, daemons, "report", f"{daemons['A'].address}:0", there, "8")
        assert "8 workers have reported" in collector.communicate(timeout=30)[0]
    finally:
        collector.kill()
        collector.wait(10)


def spool_example(build: Path, daemons: dict[str, Daemon]) -> None:
    there = f"{daemons['B'].address}:7009"
    drain = server(build, daemons["B"], "drain", there, "3000", "200")
    try:
        assert drain.stdout and "draining" in drain.stdout.readline()
        out = example(build, daemons, "spool", f"{daemons['A'].address}:0", there, "3000")
        assert "3000 delivered" in out, out
        assert drain.wait(30) == 0
    finally:
        drain.kill()
        drain.wait(10)


def guide(build: Path, daemons: dict[str, Daemon]) -> None:
    """Every C program of docs/c.md, as it stands there."""
    text = (HERE.parents[2] / "docs" / "c.md").read_text()
    programs = re.findall(r"```c\n(/\* (\w+)\.c.*?)```", text, re.S)
    assert programs, "docs/c.md has no program"
    for source, name in programs:
        path = build / f"guide_{name}.c"
        path.write_text(source)
        subprocess.run(
            [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{SDK / 'c' / 'include'}",
             str(path), str(build / "librdsd.a"), "-pthread", *os.environ.get("SAN", "").split(), "-o", str(path.with_suffix(""))],
            check=True)
        out = example(build, daemons, f"guide_{name}", daemons["A"].address)
        want = re.search(rf"<!-- {name} prints: (.*?) -->", text)
        assert want and want.group(1) in out, out


def bench(build: Path, daemons: dict[str, Daemon]) -> None:
    out = example(build, daemons, "rdsd-bench-c", "--seconds", "0.2", daemons["A"].address, daemons["A"].address)
    assert "ns a datagram" in out, out
    if not os.environ.get("SAN"):  # figures under sanitizers say nothing
        for line in out.splitlines():
            print("      REPORT C: " + line)


def main() -> int:
    build, binary, words = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    scenarios = json.loads((SDK / "scenario" / "scenario.json").read_text())["scenarios"]
    home = Path(tempfile.mkdtemp(prefix="rdsd-c-"))  # Unix socket paths must be short
    net = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
    daemons = {"A": Daemon(binary, home, "a", f"{net}.2"), "B": Daemon(binary, home, "b", f"{net}.3")}
    tests: list[tuple[str, Any]] = [
        (f"scenario {s['name']}", lambda call, s=s: Scenario(call, daemons, s).run()) for s in scenarios
    ]
    tests += [
        ("echo example", lambda call: echo_example(build, daemons)),
        ("collect and report examples", lambda call: loop_example(build, daemons)),
        ("spool and drain examples", lambda call: spool_example(build, daemons)),
        ("guide", lambda call: guide(build, daemons)),
        ("bench", lambda call: bench(build, daemons)),
        ("many undecided", lambda call: many_undecided(call, daemons)),
        ("killed daemon", lambda call: killed_daemon(call, daemons)),
        ("killed daemon beside a pair", lambda call: killed_beside_pair(call, daemons)),
    ]
    failed = 0
    try:
        call = Lines(build)
        for daemon in daemons.values():
            daemon.start()
        for daemon in daemons.values():
            wait_for_daemon(call, daemon)
        for name, run in tests:
            if words and not any(w in name for w in words):
                continue
            try:
                run(call)
                print(f"ok {name}", flush=True)
            except Exception as error:  # each test reports its own
                failed += 1
                print(f"FAIL {name}: {error}", flush=True)
                if call.process.poll() is None:
                    call.process.kill()
                call = Lines(build)
        call.close()
    finally:
        for daemon in daemons.values():
            daemon.stop()
        shutil.rmtree(home, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
