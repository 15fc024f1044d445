#!/usr/bin/env python3
"""Compares rdsd's own figures of this tree with those of another commit.

    scripts/bench_pair.py BASE [-r ROUNDS] [-d LENGTH] [--pin] [NAME ...]

Both are built, and their programs of `make bench` run in turn, one round of one,
one of the other, so that what the machine does beside hits both. NAME: only rows
whose name contains it. --pin: daemons on one processor, everything else on the
others; where three processes that spin share two processors, which of them
share one decides a round trip more than the code does. Ends with status 1 if the median of a row's ratios, this
tree's figure by the other's, is worse by more than 3 % and more than half of the
rounds are worse at all.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLACK = 0.03


class Tree:
    """A checkout with its daemon and its programs built."""

    def __init__(self, root: Path, tests: Path, pin: bool) -> None:
        # Both daemons lie side by side, so that nothing but the code differs.
        self.root, self.tests = root, tests
        self.daemon, self.before = tests.with_suffix(".daemon"), []
        subprocess.run(["make", "-s", "build"], cwd=root, check=True, stdout=subprocess.DEVNULL)
        shutil.copy2(root / "bin" / "rdsd", self.daemon)
        subprocess.run(["go", "test", "-c", "-o", tests, "./internal/bench"], cwd=root, check=True)
        if pin:
            first, *others = sorted(os.sched_getaffinity(0))
            pinned = tests.with_suffix(".rdsd")
            pinned.write_text(f'#!/bin/sh\nexec taskset -c {first} {self.daemon} "$@"\n')
            pinned.chmod(0o755)
            self.daemon, self.before = pinned, ["taskset", "-c", ",".join(map(str, others or [first]))]

    def round(self, name: str, length: str) -> dict[str, tuple[str, str, float]]:
        """Measures the rows once: unit, what is better, figure, by row."""
        args = ["-test.run", "TestBenchReport$", "-test.timeout", "30m", "-bench.report", "-bench.ours"]
        args += ["-bench.rounds", "1", "-bench.for", length, "-bench.only", name]
        env = dict(os.environ, RDSD_BIN=str(self.daemon))
        out = subprocess.run([*self.before, self.tests, *args], cwd=self.root / "internal" / "bench", env=env, capture_output=True, text=True)
        for line in out.stderr.splitlines():
            if not line.startswith("round "):
                print(line, file=sys.stderr)
        rows = {}
        for line in out.stdout.splitlines():
            if line.startswith("figure\t"):
                _, row, unit, better, value = line.split("\t")
                rows[row] = (unit, better, float(value))
        return rows


def main() -> int:
    args = argparse.ArgumentParser(description="rdsd's own figures of make bench: this tree against a commit")
    args.add_argument("base", help="the commit to compare with")
    args.add_argument("-r", "--rounds", type=int, default=7)
    args.add_argument("-d", "--length", default="700ms", help="of one measurement")
    args.add_argument("--pin", action="store_true", help="daemons on one processor, the rest on the others")
    args.add_argument("names", nargs="*", default=[""], help="only rows whose name contains one of these")
    opt = args.parse_intermixed_args()
    seen: dict[str, list[tuple[tuple[str, str, float], tuple[str, str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="rdsd-bench-") as tmp:
        other = Path(tmp, "base")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", other, opt.base], cwd=ROOT, check=True)
        try:
            ours, base = Tree(ROOT, Path(tmp, "this.test"), opt.pin), Tree(other, Path(tmp, "base.test"), opt.pin)
            for i in range(opt.rounds):
                for name in opt.names:
                    # Who goes first changes: the machine may warm up or tire.
                    first, second = (ours, base) if i % 2 else (base, ours)
                    a, b = first.round(name, opt.length), second.round(name, opt.length)
                    ra, rb = (a, b) if first is ours else (b, a)
                    for row in ra.keys() & rb.keys():
                        seen.setdefault(row, []).append((ra[row], rb[row]))
                print(f"round {i + 1} of {opt.rounds}", file=sys.stderr)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    print("| row | this tree | the other | ratio: median (least to most) | better in | |\n|---|---|---|---|---|---|")
    worse = 0
    for row, pairs in seen.items():
        unit, better, _ = pairs[0][0]
        mine, theirs = [p[0][2] for p in pairs], [p[1][2] for p in pairs]
        ratios = [m / t for m, t in zip(mine, theirs, strict=True) if t]
        if not ratios:
            continue
        gains = [r if better == "more" else 1 / r for r in ratios if r]
        won = sum(g > 1 for g in gains)
        bad = statistics.median(gains) < 1 - SLACK and 2 * won < len(gains)
        worse += bad
        print(f"| {row} | {statistics.median(mine):.4g} {unit} | {statistics.median(theirs):.4g} {unit} | "
              f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}), {better} is better | {won} of {len(gains)} | {'WORSE' if bad else ''} |")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
