"""AF_RDS sockets for the guest.

Python's socket module opens and reads sockets of family 21, but cannot build
an address for them: bind, connect and sendto go through libc by ctypes.
Only the standard library is used; the interpreter is the host's.
"""

import ctypes
import os
import socket
import struct

AF_RDS = 21
SOL_RDS = 276
RDS_CANCEL_SENT_TO = 1
RDS_CONG_MONITOR = 6
RDS_INFO_COUNTERS = 10000

libc = ctypes.CDLL(None, use_errno=True)


def sockaddr(addr, port):
    """A sockaddr_in or sockaddr_in6 as the kernel's RDS takes it."""
    if ":" in addr:
        return struct.pack(
            "=H2sI16sI",
            socket.AF_INET6,
            struct.pack("!H", port),
            0,
            socket.inet_pton(socket.AF_INET6, addr),
            0,
        )
    return struct.pack(
        "=H2s4s8x", socket.AF_INET, struct.pack("!H", port), socket.inet_aton(addr)
    )


def check(result, what):
    if result < 0:
        err = ctypes.get_errno()
        raise OSError(err, "%s: %s" % (what, os.strerror(err)))
    return result


class RDS(socket.socket):
    """A bound AF_RDS socket; send and recv_into are the base class's own."""

    def __init__(self, addr, port, sndbuf=0, rcvbuf=0):
        super().__init__(AF_RDS, socket.SOCK_SEQPACKET, 0)
        sa = sockaddr(addr, port)
        check(libc.bind(self.fileno(), sa, len(sa)), "bind %s:%d" % (addr, port))
        if sndbuf:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
        if rcvbuf:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)

    def to(self, addr, port):
        """Remember the default destination, so that plain send() works."""
        sa = sockaddr(addr, port)
        check(libc.connect(self.fileno(), sa, len(sa)), "connect")

    def port(self):
        return self.getsockname()[1]

    def monitor(self):
        self.setsockopt(SOL_RDS, RDS_CONG_MONITOR, 1)


def counters():
    """The kernel's RDS counters by name (rds-info -c)."""
    with socket.socket(AF_RDS, socket.SOCK_SEQPACKET, 0) as s:
        buf = ctypes.create_string_buffer(65536)
        size = ctypes.c_uint32(len(buf))
        item = check(
            libc.getsockopt(
                s.fileno(), SOL_RDS, RDS_INFO_COUNTERS, buf, ctypes.byref(size)
            ),
            "counters",
        )
        out = {}
        for at in range(0, size.value, item):
            name, value = struct.unpack_from("=32sQ", buf.raw, at)
            out[name.split(b"\0")[0].decode()] = value
        return out
