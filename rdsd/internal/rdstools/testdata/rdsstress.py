"""rds-stress's protocol over the kernel's AF_RDS, written from its description: the far end of a test.

    rdsstress.py LOCAL passive PORT
    rdsstress.py LOCAL active PORT REMOTE SECONDS
    (both may be given, one after the other; they run at the same time)

Prints one JSON object for each side; a datagram that is not as it must be ends it with an error.
"""

import json
import os
import select
import socket
import struct
import sys
import time

AF_RDS = 21
OPTIONS = struct.Struct(">6I2HI15B3I")
HEADER = struct.Struct(">3I3HBBQQQQII3B")
REQUEST, ACK = 1, 2
VERIFY, ONE_WAY = 12, 22  # places in OPTIONS


def ip(text):
    return struct.unpack(">I", socket.inet_aton(text))[0]


def pattern(length):
    out, k = bytearray(), 11
    for i in range(length):
        out.append(k & 255)
        k = 41 * (k + 3) + ((i + 1) >> 8)
    return bytes(out)


class Pair:
    def __init__(self):
        self.send_seq = self.recv_seq = self.send_index = self.recv_index = self.pending = self.unacked = 0


class Task:
    def __init__(self, side, number):
        self.side = side
        self.at = (side.local, side.port + 1 + number)
        self.sock = socket.socket(AF_RDS, socket.SOCK_SEQPACKET, 0)
        self.sock.bind(self.at)
        self.sock.setblocking(False)
        self.pairs = [Pair() for _ in range(side.tasks)]
        self.counts = {"req_tx": 0, "req_rx": 0, "ack_tx": 0, "ack_rx": 0}

    def send(self, number, pair, op, index, size):
        to = (self.side.remote, self.side.port + 1 + number)
        head = HEADER.pack(pair.send_seq, ip(self.at[0]), ip(to[0]), self.at[1], to[1], index, op, *[0] * 10)
        try:
            self.sock.sendto(head + self.side.pattern[: size - HEADER.size], to)
        except (BlockingIOError, OSError) as e:
            if e.errno in (11, 105):  # send buffer full, congested: later
                return False
            raise
        pair.send_seq += 1
        self.counts["req_tx" if op == REQUEST else "ack_tx"] += 1
        return True

    def fill(self):
        side = self.side
        for number, pair in enumerate(self.pairs):
            while pair.unacked:
                if not self.send(number, pair, ACK, (pair.recv_index - pair.unacked) % side.depth, side.ack_size):
                    break
                pair.unacked -= 1
            while side.asks and not pair.unacked and pair.pending < side.depth:
                if not self.send(number, pair, REQUEST, pair.send_index, side.req_size):
                    break
                pair.send_index = (pair.send_index + 1) % side.depth
                pair.pending += 1

    def drain(self):
        side = self.side
        while True:
            try:
                data, source = self.sock.recvfrom(1 << 20)
            except BlockingIOError:
                return
            if not data:
                continue  # a congestion notice
            pair = self.pairs[source[1] - side.port - 1]
            got = HEADER.unpack_from(data)
            op = got[6]
            index = pair.recv_index if op == REQUEST else (pair.send_index - pair.pending) % side.depth
            want = (pair.recv_seq, ip(source[0]), ip(self.at[0]), source[1], self.at[1], index, op)
            if got[:7] != want or len(data) != (side.req_size if op == REQUEST else side.ack_size):
                raise SystemExit("%s from %s: %d bytes, header %r, expected %r" % (self.at, source, len(data), got, want))
            if side.verify and data[HEADER.size:] != side.pattern[: len(data) - HEADER.size]:
                raise SystemExit("%s from %s: contents differ" % (self.at, source))
            pair.recv_seq += 1
            if op == REQUEST:
                pair.recv_index = (pair.recv_index + 1) % side.depth
                pair.unacked += 1
                self.counts["req_rx"] += 1
            else:
                pair.pending -= 1
                self.counts["ack_rx"] += 1


class Side:
    def __init__(self, local, remote, options, active):
        (self.depth, self.req_size, self.ack_size), self.port, self.tasks = options[:3], options[6], options[7]
        self.verify = options[VERIFY]
        self.asks = active or not options[ONE_WAY]
        self.local, self.remote = local, remote
        self.pattern = pattern(max(self.req_size, self.ack_size))
        self.team = [Task(self, n) for n in range(self.tasks)]

    def run(self, control, seconds):
        """Until the control connection closes, or for so many seconds."""
        end = time.monotonic() + seconds if seconds else None
        by_sock = {t.sock: t for t in self.team}
        while end is None or time.monotonic() < end:
            for t in self.team:
                t.fill()
            ready, _, _ = select.select([control, *by_sock], [], [], 0.01)
            if control in ready:
                break
            for s in ready:
                by_sock[s].drain()
        return {k: sum(t.counts[k] for t in self.team) for k in self.team[0].counts}


def receive(control, length):
    data = b""
    while len(data) < length:
        more = control.recv(length - len(data))
        if not more:
            raise SystemExit("the control connection was closed after %d of %d bytes" % (len(data), length))
        data += more
    return data


def passive(local, port):
    listener = socket.create_server((local, port))
    control, peer = listener.accept()
    raw = receive(control, OPTIONS.size)
    options = OPTIONS.unpack(raw)
    remote = socket.inet_ntoa(struct.pack(">I", options[5]))
    side = Side(local, remote, options, False)
    receive(control, 1)
    control.send(b"\0")
    return {"side": "passive", "options": raw.hex(), **side.run(control, 0)}


def active(local, port, remote, seconds):
    options = (4, 3000, 200, 0, ip(remote), ip(local), port, 2, seconds,
               0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 255, 0, 0, 1, 0, 0)
    for _ in range(100):
        control = socket.socket()
        control.bind((local, 0))
        if control.connect_ex((remote, port)) == 0:
            break
        time.sleep(0.1)
    control.send(OPTIONS.pack(*options))
    side = Side(local, remote, options, True)
    control.send(b"\0")
    receive(control, 1)
    return {"side": "active", **side.run(control, seconds)}


def main():
    local, args = sys.argv[1], sys.argv[2:]
    children = []
    while args:
        if args[0] == "passive":
            work, args = (passive, local, int(args[1])), args[2:]
        else:
            work, args = (active, local, int(args[1]), args[2], int(args[3])), args[4:]
        pid = os.fork()
        if pid == 0:
            print(json.dumps(work[0](*work[1:])), flush=True)
            os._exit(0)
        children.append(pid)
    for pid in children:
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("one side failed")


main()
