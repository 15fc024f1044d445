"""The guest's first process: loads RDS, then serves the test.

One JSON object a line, both ways, on the first serial line. Long work (send, recv, ping) runs
in a forked process, which the test can speak to by the job's id.

Arguments: key=value, as handed over on the kernel's command line.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import traceback
import tty

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jobs
import rdssock

SYS_FINIT_MODULE = 313  # x86-64
SYS_DELETE_MODULE = 176
LINUX_REBOOT_POWER_OFF = 0x4321FEDC

LINE = "/dev/ttyS0"
libc = rdssock.libc


def mount(kind, where):
    rdssock.check(libc.mount(kind, where, kind, 0, None), "mount %r" % where)


def module_path(name):
    root = "/usr/lib/uml/modules/" + os.uname().release
    for top, _, files in os.walk(root + "/kernel"):
        for ending in (".ko", ".ko.xz"):
            if name + ending in files:
                return os.path.join(top, name + ending)
    raise FileNotFoundError("no module %s under %s" % (name, root))


def load_module(name):
    path = module_path(name)
    if path.endswith(".xz"):
        import lzma

        with lzma.open(path) as f:
            image = f.read()
        result = libc.syscall(175, image, ctypes.c_ulong(len(image)), b"")
    else:
        fd = os.open(path, os.O_RDONLY)
        result = libc.syscall(SYS_FINIT_MODULE, fd, b"", 0)
        os.close(fd)
    rdssock.check(result, "load " + name)


def unload_module(name):
    rdssock.check(
        libc.syscall(SYS_DELETE_MODULE, name.encode(), os.O_NONBLOCK), "unload " + name
    )


def run(argv):
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=30, text=True,
    )
    if done.returncode:
        raise OSError("%s: %s" % (" ".join(argv), done.stdout.strip()))
    return done.stdout


class Agent:
    def __init__(self, line_fd):
        self.line_fd = line_fd
        self.running = {}  # job id -> (pid, control fd, report fd)
        self.partial = {}  # report fd -> bytes of an unfinished line
        self.heard = b""

    def write(self, fields):
        line = (json.dumps(fields) + "\n").encode()
        while line:
            line = line[os.write(self.line_fd, line):]

    def start(self, ident, op, args):
        report_r, report_w = os.pipe()
        ctl_r, ctl_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            link = jobs.Link(ident, report_w, ctl_r)
            try:
                os.close(report_r)
                os.close(ctl_w)
                for _, ctl, rep in self.running.values():
                    os.close(ctl)
                    os.close(rep)
                link.say(done=jobs.JOBS[op](link, **args))
            except BaseException as e:
                link.say(error="%s: %s" % (type(e).__name__, e),
                         trace=traceback.format_exc(limit=4))
            os._exit(0)
        os.close(report_w)
        os.close(ctl_r)
        self.running[ident] = (pid, ctl_w, report_r)

    def finish(self, ident):
        pid, ctl, rep = self.running.pop(ident)
        os.close(ctl)
        os.close(rep)
        self.partial.pop(rep, None)
        os.waitpid(pid, 0)

    def command(self, ident, op, args):
        if op in jobs.JOBS:
            self.start(ident, op, args)
            return None
        if op == "tell":
            os.write(self.running[args["job"]][1], (args["word"] + "\n").encode())
            return {}
        if op == "kill":
            if args["job"] in self.running:
                os.kill(self.running[args["job"]][0], signal.SIGKILL)
            return {}
        if op == "run":
            return {"out": run(args["argv"])}
        if op == "write":
            with open(args["path"], "w") as f:
                f.write(args["data"])
            return {}
        if op == "counters":
            return rdssock.counters()
        if op == "load":
            load_module(args["name"])
            return {}
        if op == "unload":
            unload_module(args["name"])
            return {}
        if op == "hello":
            return {"release": os.uname().release, "python": sys.version.split()[0]}
        raise ValueError("no such command: %r" % op)

    def line(self, raw):
        try:
            request = json.loads(raw)
        except ValueError as e:
            self.write({"id": 0, "error": "bad line %r: %s" % (raw[:200], e)})
            return
        ident = request.pop("id")
        try:
            done = self.command(ident, request.pop("op"), request)
            if done is not None:
                self.write({"id": ident, "done": done})
        except Exception as e:
            self.write({"id": ident, "error": "%s: %s" % (type(e).__name__, e)})

    def serve(self):
        while True:
            reports = {rep: ident for ident, (_, _, rep) in self.running.items()}
            ready, _, _ = select.select([self.line_fd] + list(reports), [], [])
            for fd in ready:
                data = os.read(fd, 65536)
                if fd == self.line_fd:
                    if not data:
                        return
                    self.heard += data
                    *lines, self.heard = self.heard.split(b"\n")
                    for raw in lines:
                        if raw.strip():
                            self.line(raw)
                    continue
                if not data:
                    self.finish(reports[fd])
                    continue
                *lines, rest = (self.partial.pop(fd, b"") + data).split(b"\n")
                self.partial[fd] = rest
                for raw in lines:
                    self.write(json.loads(raw))


def loopback_up():
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 0x41))


def main():
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    options = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
    line_fd = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line_fd, termios.TCSANOW)
    agent = Agent(line_fd)
    try:
        mount(b"proc", b"/proc")
        mount(b"sysfs", b"/sys")
        loopback_up()
        for name in ("crc-ccitt", "ipv6", "rds", "rds_tcp", "sch_netem"):
            load_module(name)
        dev = options["dev"]
        if "cut" in options:  # nothing leaves until the test clears it
            run(["tc", "qdisc", "replace", "dev", dev, "root", "netem", "loss", "100%"])
        for addr in options["addr"].split(","):
            run(["ip", "addr", "add", addr, "dev", dev]
                + (["nodad"] if ":" in addr else []))
        run(["ip", "link", "set", dev, "up"])
        for knob in ("wmem_max", "rmem_max"):
            with open("/proc/sys/net/core/" + knob, "w") as f:
                f.write("8388608")
    except Exception as e:
        agent.write({"id": 0, "error": "boot: %s: %s" % (type(e).__name__, e)})
    else:
        agent.write({"id": 0, "done": {"release": os.uname().release}})
        agent.serve()
    libc.sync()
    libc.reboot(ctypes.c_int(LINUX_REBOOT_POWER_OFF))


main()
