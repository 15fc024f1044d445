"""An application of the benchmark, in Python: sends or receives for ever.

Arguments: send, send-one, recv or recv-one; target of the daemon; local address
and port; destination address and port (senders); bytes of a datagram; datagrams
of a batch. Descriptor 3 is the board that the harness reads: the number of
datagrams received, and whether the socket is bound.
"""

import mmap
import struct
import sys

import rdsd

COUNT, READY = 0, 2 * 128  # words of the board (board_test.go)


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


mode, target, local, dst, size, batch = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
board = mmap.mmap(3, 128 << 10)
put = struct.Struct("<Q").pack_into
client = rdsd.Client(target, front_end="rings")
room = 256 << 10  # as the applications in Go
sock = client.bind(address(local), send_buffer=room, recv_buffer=room)
put(board, READY, 1)
total = 0
if mode == "send":
    datagrams = [(address(dst), bytes(size))] * batch
    while True:
        sock.send_batch(datagrams, timeout=60)
elif mode == "send-one":
    to, payload = address(dst), bytes(size)
    while True:
        sock.send(to, payload, timeout=60)
elif mode == "recv":
    while True:
        total += len(sock.recv_batch(1024, timeout=60))
        put(board, COUNT, total)
else:
    while True:
        sock.recv(timeout=60)
        total += 1
        put(board, COUNT, total)
