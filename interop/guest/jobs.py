"""What a job in the guest can do. Each runs in a process of its own.

A job is called with its arguments and a Link: say() reports progress,
told() waits for the test's next word to this job.
"""

import errno
import json
import os
import select
import time

import rdssock
import signed


class Link:
    def __init__(self, job, out, ctl):
        self.job, self.out, self.ctl = job, out, ctl
        self.words = b""

    def say(self, **fields):
        fields["id"] = self.job
        os.write(self.out, (json.dumps(fields) + "\n").encode())

    def told(self, timeout=None):
        """The next word for this job; None at the timeout (seconds)."""
        while b"\n" not in self.words:
            if not select.select([self.ctl], [], [], timeout)[0]:
                return None
            part = os.read(self.ctl, 4096)
            if not part:
                raise SystemExit(0)
            self.words += part
        word, self.words = self.words.split(b"\n", 1)
        return word.decode()


# A sender that waits longer than this for a wake-up has lost it (seconds).
WAKE_LIMIT = 20


def send(link, local, dst, flow, count, size, sndbuf=0, nonblock=False, tick=0,
         empties=False, pause_every=0, pause_ms=0, until_congested=False):
    """Send `count` signed datagrams, then hold the socket until told.

    With empties an empty one goes before each; pause_every and pause_ms make a
    steady sender. With until_congested it sends more than `count` until it is
    told that the port is congested: the buffers on the way take some first.

    Holding matters: closing an RDS socket cancels what is unacknowledged.
    With nonblock, EAGAIN and ENOBUFS are waited out by poll, the latter with
    congestion monitoring; without it the kernel does the waiting.
    """
    s = rdssock.RDS(local[0], local[1], sndbuf=sndbuf)
    s.to(dst[0], dst[1])
    stats = {"sent": 0, "enobufs": 0, "eagain": 0, "wakes": 0}
    began = time.monotonic()
    if nonblock:
        s.setblocking(False)
        s.monitor()
    poller = select.poll()
    poller.register(s, select.POLLIN)
    longest = 0.0
    n = -1
    while n + 1 < count or until_congested and not stats["enobufs"]:
        n += 1
        if empties:
            s.send(b"")
        data = signed.make(flow, n, signed.size(size, n))
        while True:
            try:
                s.send(data)
                break
            except OSError as e:
                if e.errno == errno.EAGAIN:
                    stats["eagain"] += 1
                    poller.modify(s, select.POLLOUT)
                elif e.errno == errno.ENOBUFS:
                    stats["enobufs"] += 1
                    if stats["enobufs"] == 1:
                        link.say(event="congested", sent=stats["sent"])
                    poller.modify(s, select.POLLIN)
                else:
                    raise
                since = time.monotonic()
                if not poller.poll(WAKE_LIMIT * 1000):
                    raise TimeoutError("no wake-up after %s, datagram %d" % (e, n))
                stats["wakes"] += 1
                longest = max(longest, time.monotonic() - since)
                # A notification is read off with an empty message.
                if e.errno == errno.ENOBUFS:
                    try:
                        s.recvmsg(16, 1024)
                    except BlockingIOError:
                        pass
        stats["sent"] += 1
        if tick and stats["sent"] % tick == 0:
            link.say(event="progress", sent=stats["sent"])
        if pause_every and stats["sent"] % pause_every == 0:
            time.sleep(pause_ms / 1000)
    stats["seconds"] = time.monotonic() - began
    stats["longest_wait"] = longest
    link.say(event="sent", **stats)
    link.told()
    return stats


def recv(link, local, want, rcvbuf=0, timeout=60, start_paused=False, nap_every=0,
         nap_ms=0, tick=0, linger=0.0, slot=65536):
    """Receive until every wanted datagram is there; `timeout` bounds each wait.

    nap_every and nap_ms make a slow reader, which stops every so often;
    linger is how long to look for doubles afterwards, seconds; slot is the
    longest datagram there is room for.
    """
    s = rdssock.RDS(local[0], local[1], rcvbuf=rcvbuf)
    link.say(event="bound", port=s.port())
    check = signed.Check(want)
    if start_paused:
        link.told()
    quiet = False
    began = time.monotonic()
    seen = 0
    # A slow reader takes one at a time, so that it stops where it says.
    batch = rdssock.Batch(s, 1 if nap_every else max(1, min(64, (4 << 20) // slot)), slot)
    batch.timeout(timeout)
    while check.left > 0:
        views = batch.recv()
        if not views:
            quiet = True
            break
        for view in views:
            check.add(view)
        before, seen = seen, seen + len(views)
        if tick and seen // tick != before // tick:
            link.say(event="progress", got=seen)
        if nap_every and seen % nap_every == 0:
            time.sleep(nap_ms / 1000)
    took = time.monotonic() - began
    if linger:
        batch.timeout(linger)
        while views := batch.recv():
            for view in views:
                check.add(view)
    return dict(check.report(), seconds=took, timeout=quiet)


def ping(link, local, dst, count=1, timeout=10):
    """rds-ping: an empty datagram to port 0, answered by the peer itself."""
    s = rdssock.RDS(local[0], 0)
    s.to(dst[0], 0)
    s.settimeout(timeout)
    rtt = []
    for _ in range(count):
        at = time.monotonic()
        s.send(b"")
        data, source = s.recvfrom(64)
        rtt.append((time.monotonic() - at) * 1e6)
        if data or source[1] != 0:
            raise ValueError("pong of %d bytes from %r" % (len(data), source))
    return {"rtt_us": rtt}


JOBS = {"send": send, "recv": recv, "ping": ping}
