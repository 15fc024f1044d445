#!/usr/bin/env python3
"""Runs every test of the project and ends with one line of counts.

Each phase is a command. Go phases run `go test -json`, whose events are
counted; the Python phase leaves a JUnit file, the C phase a line for each test. What was skipped is listed with
its reason at the end. With CI set, a skip is a failure unless its reason
begins with "elsewhere:" (something no machine of this kind can do).
"""
import json
import os
import re
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
CI = bool(os.environ.get("CI"))


class Tally:
    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.ends: dict[str, list[str]] = {}  # of the logs of Go tests that failed
        self.whys: dict[str, str] = {}  # what each Go test that failed said


def why(text: str) -> str:
    """What a failed test said first and last, on one line: of a long log somebody may see the FAIL lines alone."""
    said = [x.strip()[:300] for x in text.splitlines() if re.search(r"_test\.go:\d+: (?!note: )|panic:|DATA RACE|timed out", x)]
    if len(said) > 5:
        said = said[:3] + said[-2:]
    return ": " + " | ".join(said) if said else ""


def go_phase(tally: Tally, args: list[str], first: list[str] | None = None) -> bool:
    """Runs go test -json and prints a line for each package and each failure."""
    proc = subprocess.Popen([*(first or []), "go", "test", "-json", *args], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    output: dict[tuple[str, str], list[str]] = {}
    assert proc.stdout is not None
    for line in proc.stdout:
        try:
            ev = json.loads(line)
        except ValueError:
            print(line, end="")
            continue
        pkg, test, action = ev.get("Package", ev.get("ImportPath", "")), ev.get("Test", ""), ev["Action"]
        key = (pkg, test)
        short = pkg.removeprefix("github.com/rdsd/rdsd/")
        if action in ("output", "build-output"):
            output.setdefault(key, []).append(ev.get("Output", ""))
            continue
        text = "".join(output.pop(key, []))
        if action == "fail":
            print(text, end="")
            if not test:  # those that the end of their program, such as a time-out, has met
                for other in [k for k in output if k[0] == pkg]:
                    said = "".join(output.pop(other))
                    print(f"{said}UNFINISHED  {short} {other[1]}{why(said)}", flush=True)
                    tally.ends[f"{short} {other[1]}"] = [x for x in said.splitlines() if re.search(r"_test\.go:|^panic:|running tests|^\t+Test", x)] or said.splitlines()
                    tally.whys[f"{short} {other[1]}"] = why(said)
            name = f"{short} {test}".strip()
            tally.whys[name] = why(text) or "".join(
                w for n, w in tally.whys.items() if n.startswith((name + "/", name + " "))
            )
            print(f"FAIL  {name}{tally.whys[name]}", flush=True)
            tally.failed.append(name)
            if test:
                tally.ends[f"{short} {test}"] = text.splitlines()
        elif action == "build-fail":
            print(text, end="", flush=True)
        elif action == "pass" and test:
            tally.passed += 1
            for shown in text.splitlines():
                if "REPORT" in shown:  # figures a test wants to be seen
                    print("      " + shown.strip())
        elif action == "pass":
            print(f"ok    {short}  {ev.get('Elapsed', 0):.1f} s", flush=True)
        elif action == "skip" and test:
            reason = [s.strip() for s in text.splitlines() if s.startswith("    ") and ": " in s]
            tally.skipped.append((f"{short} {test}", reason[-1].split(": ", 1)[1] if reason else "no reason given"))
    return proc.wait() == 0


def python_phase(tally: Tally) -> bool:
    report = OUT / "pytest.xml"
    report.unlink(missing_ok=True)
    env = dict(os.environ, RDSD_BIN=str(ROOT / "bin" / "rdsd"), PYTEST_ADDOPTS=f"--junitxml={report}")
    done = subprocess.run(["sdk/python/test.sh"], cwd=ROOT, env=env)
    if report.exists():
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"python {case.get('classname')}.{case.get('name')}"
            skip = case.find("skipped")
            if skip is not None:
                tally.skipped.append((name, skip.get("message") or "no reason given"))
            elif case.find("failure") is not None or case.find("error") is not None:
                tally.failed.append(name)
            else:
                tally.passed += 1
    if done.returncode != 0:
        tally.failed.append("sdk/python/test.sh")
    return done.returncode == 0


def c_phase(tally: Tally) -> bool:
    """Runs sdk/c/test.sh, which prints "ok NAME", "FAIL NAME: why" and "skip NAME: why"."""
    env = dict(os.environ, RDSD_BIN=str(ROOT / "bin" / "rdsd"))
    proc = subprocess.Popen(["sdk/c/test.sh"], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert proc.stdout is not None
    for line in proc.stdout:
        kind, _, rest = line.rstrip().partition(" ")
        if kind == "ok":
            tally.passed += 1
        elif kind == "skip":
            name, _, why = rest.partition(": ")
            tally.skipped.append((f"C {name}", why))
        else:
            print(line, end="", flush=True)
            if kind == "FAIL":
                tally.failed.append(f"C {rest.partition(': ')[0]}")
    return proc.wait() == 0


def command(tally: Tally, name: str, args: list[str]) -> bool:
    done = subprocess.run(args, cwd=ROOT)
    if done.returncode == 0:
        tally.passed += 1
    else:
        tally.failed.append(name)
    return done.returncode == 0


def packages(*without: str) -> list[str]:
    out = subprocess.run(["go", "list", "./..."], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [p for p in out if not any(p.endswith(w) for w in without)]


class Beside:
    """Phases that mostly wait, run by a program of their own beside one that computes.

    What they print is shown when they have ended, whole.
    """

    def __init__(self, names: list[str]) -> None:
        self.tally = OUT / "beside.json"
        self.log = OUT / "beside.log"
        self.tally.unlink(missing_ok=True)
        with self.log.open("w") as log:
            self.proc = subprocess.Popen([sys.executable, __file__, "--tally", str(self.tally), *names], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def join(self, tally: Tally) -> None:
        code = self.proc.wait()
        print(self.log.read_text(errors="replace"), end="", flush=True)
        if not self.tally.exists():
            tally.failed.append(f"{self.log.name}: its program ended with {code} and counted nothing")
            return
        theirs = json.loads(self.tally.read_text())
        tally.passed += theirs["passed"]
        tally.failed += theirs["failed"]
        tally.skipped += [(name, reason) for name, reason in theirs["skipped"]]
        tally.ends.update(theirs["ends"])
        tally.whys.update(theirs["whys"])


def processor() -> float:
    """Seconds of processor time that this process's children have used which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one_phase(tally: Tally, name: str, run: Callable[[], bool]) -> None:
    print(f"== {name}", flush=True)
    begun, used = time.monotonic(), processor()
    before = len(tally.failed)
    if not run() and len(tally.failed) == before:
        tally.failed.append(name)
    print(f"== {name}: {time.monotonic() - begun:.0f} s, {processor() - used:.0f} s of processors", flush=True)


def main() -> int:
    OUT.mkdir(exist_ok=True)
    tally = Tally()
    heavy = ("/interop", "/interop/kernelnbd", "/internal/simtest", "/internal/volumetest", "/internal/adversary", "/internal/pagetest", "/test/vm")
    # One thread each: the race detector would find nothing, and takes nine times as long.
    alone = ("/internal/tidy",)
    lean = ("blk", "blk/nbd", "node/volume", "rnbd", "rtrs", "transport", "transport/tcp", "transport/ib", "transport/ib/soft", "roce", "shm", "rds", "conn", "wire", "wire/rnbd", "internal/reactor")
    # The adversary's latencies are at their bars here, in one run below and in the next above: docs/testing.md.
    # Its acts are the same in each run here, and drawn anew by make soak and by hand.
    phases = [
        ("format, vet, staticcheck", lambda: command(tally, "make verify", ["make", "-s", "verify"])),
        ("Go, race detector", lambda: go_phase(tally, ["-race", "-timeout", "10m", "-p", "3", *packages(*heavy, *alone)])),
        ("memory, allocations, long loops", lambda: go_phase(tally, ["-run", "Alloc|Idle|Memory|PairScribbled", *[f"./{p}" for p in lean]])),
        ("house rules", lambda: go_phase(tally, [f".{p}" for p in alone])),
        ("simulation", lambda: go_phase(tally, ["-timeout", "15m", "./internal/simtest/..."], first=["nice"])),
        ("mutants", lambda: command(tally, "make mutants", ["nice", "make", "-s", "mutants"])),
        ("volumes of real processes", lambda: go_phase(tally, ["-count=1", "-timeout", "10m", "./internal/volumetest"])),
        ("the page in a browser", lambda: go_phase(tally, ["-count=1", "-timeout", "6m", "./internal/pagetest"])),
        ("adversary", lambda: go_phase(tally, ["-count=1", "-timeout", "10m", "./internal/adversary", "-adversary.seed=20261122", "-adversary.slack=1.5"])),
        ("kernel interop", lambda: go_phase(tally, ["-count=1", "-timeout", "20m", "./interop"])),
        ("kernel's NBD client", lambda: go_phase(tally, ["-count=1", "-timeout", "12m", "./interop/kernelnbd"])),
        ("kernel's RoCE, RTRS and RNBD", lambda: go_phase(tally, ["-count=1", "-timeout", "15m", "./test/vm"])),
        ("C library", lambda: c_phase(tally)),
        ("Python", lambda: python_phase(tally)),
    ]
    words = sys.argv[1:]
    counted = None
    if words[:1] == ["--tally"]:  # of a Beside
        counted, words = Path(words[1]), words[2:]
    if words:
        phases = [p for p in phases if any(w in p[0].lower() for w in words)]
    # These compute on every processor and nothing of theirs is a matter of time; the others wait most of theirs.
    computing = [name for name, _ in phases if name in ("simulation", "mutants")]
    waiting = [name for name, _ in phases if name in ("C library", "Python") and computing]
    for name, run in phases:
        if name in waiting:
            continue
        if waiting and name == computing[0]:
            beside = Beside([n.lower() for n in waiting])
        one_phase(tally, name, run)
        if waiting and name == computing[-1]:
            beside.join(tally)
    if counted:
        counted.write_text(json.dumps(vars(tally)))
        return 1 if tally.failed else 0
    bad_skips = [s for s in tally.skipped if CI and not s[1].startswith("elsewhere:")]
    if tally.skipped:
        print(f"\nSKIPPED {len(tally.skipped)}:")
        for name, reason in tally.skipped:
            print(f"  {name}: {reason}")
    if bad_skips:
        print("With CI set nothing that this kind of machine can do may be skipped.")
        tally.failed += [f"skipped in CI: {name}" for name, _ in bad_skips]
    # Of a long log somebody may see the end alone.
    for name, lines in tally.ends.items():
        print(f"\nEND OF {name}:")
        for shown in lines[-max(24 // len(tally.ends), 3):]:
            print("  " + shown.strip()[:400])
    for name in tally.failed:
        print(f"FAILED {name}{tally.whys.get(name, '')}")
    print(f"\n{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
