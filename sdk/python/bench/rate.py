#!/usr/bin/env python3
"""Datagrams per second to or from Python, over one front end or all.

    rate.py recv   SOCKET LOCAL - SIZE BATCH SECONDS      prints datagrams received a second
    rate.py send   SOCKET LOCAL TO SIZE BATCH SECONDS     prints datagrams accepted a second
    rate.py table  SOCKET HOST [SIZE BATCH SECONDS]       both ways over every front end

LOCAL and TO are addresses with a port. BATCH 1 is one by one, with send and recv;
more uses send_batch and recv_batch. $RDSD_FRONT_END chooses the front end. The
receiver prints the address it is bound to first, and counts from the first
datagram; it ends after the first pause of a second.
"""

import contextlib
import os
import subprocess
import sys
import time

import rdsd

BUFFER = 4 << 20


def send(sock: rdsd.Socket, to: str, size: int, batch: int, seconds: float) -> float:
    payload = bytes(size)
    host, port = to.rsplit(":", 1)
    where = rdsd.Address(host, int(port))
    datagrams = [(where, payload)] * batch
    count = 0
    begun = time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        if batch > 1:
            sock.send_batch(datagrams, timeout=30)
            count += batch
        else:  # looking at the clock would cost as much as sending
            for _ in range(64):
                sock.send(where, payload, 30)
            count += 64
    sock.flush(timeout=30)
    return count / took


def receive(sock: rdsd.Socket, batch: int, seconds: float) -> float:
    sock.recv(timeout=30)
    count = 0
    begun = last = time.perf_counter()
    with contextlib.suppress(rdsd.TimedOut):
        while last - begun < seconds:
            if batch > 1:
                count += len(sock.recv_batch(batch, timeout=1))
            else:
                for _ in range(64):
                    sock.recv(1)
                    count += 1
            last = time.perf_counter()
    return count / max(last - begun, 1e-9)


def one(role: str, target: str, local: str, to: str, size: int, batch: int, seconds: float) -> None:
    client = rdsd.Client(target)
    sock = client.bind(local, send_buffer=BUFFER, recv_buffer=BUFFER)
    if role == "send":
        print(f"{send(sock, to, size, batch, seconds):.0f}", flush=True)
    else:
        print(sock.local_address, flush=True)
        print(f"{receive(sock, batch, seconds):.0f}", flush=True)
        with contextlib.suppress(rdsd.TimedOut):
            while True:  # the sender may still be sending
                sock.recv_batch(1000, timeout=1)
    client.close()


def table(target: str, host: str, size: int, batch: int, seconds: float) -> None:
    print(f"{size} B, a sender and a receiver in Python on one daemon, datagrams a second")
    print(f"{'front end':10} {'batch':>6} {'sent':>12} {'received':>12}")
    for front_end in ("rings", "seqpacket", "grpc"):
        for many in (batch, 1):
            environment = {**os.environ, "RDSD_FRONT_END": front_end}
            rest = [str(size), str(many), str(seconds)]
            me = [sys.executable, __file__]
            reader = subprocess.Popen(
                [*me, "recv", target, f"{host}:0", "-", *rest],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert reader.stdout is not None
            to = reader.stdout.readline().strip()
            sent = subprocess.run(
                [*me, "send", target, f"{host}:0", to, *rest[:-1], str(seconds + 0.5)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            received = reader.stdout.readline()
            reader.wait()
            print(f"{front_end:10} {many:6} {int(sent):12,} {int(received):12,}", flush=True)


def main(args: list[str]) -> None:
    if len(args) in (3, 6) and args[0] == "table":
        size, batch, seconds = args[3:] or ("64", "256", "1")
        table(args[1], args[2], int(size), int(batch), float(seconds))
    elif len(args) == 7 and args[0] in ("send", "recv"):
        role, target, local, to = args[:4]
        one(role, target, local, to, int(args[4]), int(args[5]), float(args[6]))
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
