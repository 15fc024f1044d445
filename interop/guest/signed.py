"""Signed datagrams: the twin of sign.go.

Layout, big-endian: magic u32, flow u32, number u64, length u32, crc32 u32 of
the 20 bytes before it and of the body behind it. The body is a slice of one
fixed pattern, chosen by flow and number, so it costs nothing to make and any
byte that is lost, moved or changed shows in the sum.
"""

import struct
import zlib

MAGIC = 0x52445331
HEAD = struct.Struct("!IIQI")
SUM = struct.Struct("!I")
MIN = HEAD.size + SUM.size

# The pattern repeats after a prime, so a slip of any power of two is seen.
PERIOD = 65521
_base = bytes((i * i + 7 * i + (i >> 8)) & 0xFF for i in range(PERIOD))
_pattern = _base * 18


def size(spec, n):
    """Length of datagram n: min..max, with one in big_every of big bytes."""
    if spec.get("big_every") and n % spec["big_every"] == spec["big_every"] - 1:
        return spec["big"]
    lo, hi = spec.get("min", 64), spec.get("max", 64)
    return lo + (n * 2654435761 % 4294967296 >> 7) % (hi - lo + 1)


def make(flow, n, length):
    head = HEAD.pack(MAGIC, flow, n, length)
    start = (flow * 31 + n * 17) % PERIOD
    body = _pattern[start : start + length - MIN]
    return head + SUM.pack(zlib.crc32(body, zlib.crc32(head))) + body


def open_(view):
    """(flow, number) of a whole datagram, or None when it is damaged."""
    if len(view) < MIN:
        return None
    magic, flow, n, length = HEAD.unpack_from(view)
    if magic != MAGIC or length != len(view):
        return None
    want = SUM.unpack_from(view, HEAD.size)[0]
    if zlib.crc32(view[MIN:], zlib.crc32(view[: HEAD.size])) != want:
        return None
    return flow, n


class Check:
    """Judges what arrives: one per receiving socket."""

    def __init__(self, want):
        self.want = {int(f): n for f, n in want.items()}
        self.next = dict.fromkeys(self.want, 0)
        self.got = dict.fromkeys(self.want, 0)
        self.back = dict.fromkeys(self.want, 0)
        self.gaps = dict.fromkeys(self.want, 0)
        self.bad = 0
        self.empty = 0
        self.strange = 0
        self.notes = []
        self.left = sum(self.want.values())

    def note(self, text):
        if len(self.notes) < 20:
            self.notes.append(text)

    def add(self, view):
        if len(view) == 0:  # nothing to sign: counted only
            self.empty += 1
            return
        opened = open_(view)
        if opened is None:
            self.bad += 1
            self.note("damaged datagram of %d bytes" % len(view))
            return
        flow, n = opened
        if flow not in self.want:
            self.strange += 1
            self.note("unknown flow %d number %d" % (flow, n))
            return
        expected = self.next[flow]
        self.got[flow] += 1
        if n == expected:
            self.next[flow] = n + 1
            self.left -= 1
        elif n < expected:
            self.back[flow] += 1
            self.note("flow %d: %d after %d" % (flow, n, expected - 1))
        else:
            self.gaps[flow] += n - expected
            self.note("flow %d: %d to %d missing" % (flow, expected, n - 1))
            self.left -= n + 1 - expected
            self.next[flow] = n + 1

    def report(self):
        return {
            "got": sum(self.got.values()),
            "missing": sum(self.gaps.values()) + self.left,
            "back": sum(self.back.values()),
            "bad": self.bad,
            "empty": self.empty,
            "strange": self.strange,
            "notes": self.notes,
        }
