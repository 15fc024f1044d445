"""AF_RDS sockets for the guest.

Python's socket module opens and reads sockets of family 21, but cannot build
an address for them: bind, connect and sendto go through libc by ctypes.
Only the standard library is used; the interpreter is the host's.
"""

import ctypes
import errno
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


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _Mmsghdr(ctypes.Structure):
    # struct msghdr, then msg_len
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.POINTER(_Iovec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_size_t),  # an int and its padding
        ("len", ctypes.c_uint32),
    ]


class Batch:
    """Many datagrams with one system call, of which the guest has few to spend.

    Sending has no such way: sendmmsg marks all but the last with MSG_BATCH,
    and RDS refuses any flag it does not know.
    """

    MSG_WAITFORONE = 0x10000

    def __init__(self, sock, slots, length):
        self.sock, self.slots = sock, slots
        sock.setblocking(True)  # recvmmsg does the waiting
        self.bufs = [bytearray(length) for _ in range(slots)]
        self.views = [memoryview(b) for b in self.bufs]
        self.iovs = (_Iovec * slots)()
        self.hdrs = (_Mmsghdr * slots)()
        for i, buf in enumerate(self.bufs):
            whole = (ctypes.c_char * length).from_buffer(buf)
            self.iovs[i].base, self.iovs[i].len = ctypes.addressof(whole), length
            self.hdrs[i].iov = ctypes.pointer(self.iovs[i])
            self.hdrs[i].iovlen = 1

    def timeout(self, seconds):
        self.sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO,
            struct.pack("=qq", int(seconds), int(seconds % 1 * 1e6)),
        )

    def recv(self):
        """Views of at least one datagram; empty when the time is over."""
        n = libc.recvmmsg(
            self.sock.fileno(), self.hdrs, self.slots, self.MSG_WAITFORONE, None
        )
        if n < 0:
            err = ctypes.get_errno()
            if err in (errno.ETIMEDOUT, errno.EAGAIN):
                return []
            raise OSError(err, "recvmmsg: " + os.strerror(err))
        return [self.views[i][: self.hdrs[i].len] for i in range(n)]


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
