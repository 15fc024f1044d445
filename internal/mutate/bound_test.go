package main

import (
	"os"
	"syscall"
	"testing"
)

func TestParseStat(t *testing.T) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skipf("elsewhere: no /proc: %v", err)
	}
	pid, group, resident := parseStat(string(b))
	if pid != os.Getpid() || group != syscall.Getpgrp() || resident < 1<<20 || resident > 1<<30 {
		t.Errorf("process %d of group %d with %d bytes, and this is %d of %d", pid, group, resident, os.Getpid(), syscall.Getpgrp())
	}
	const odd = "7 (a ) (b) S 1 8 8 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 9999 3 0\n"
	if pid, group, resident := parseStat(odd); pid != 7 || group != 8 || resident != 3*os.Getpagesize() {
		t.Errorf("%d %d %d", pid, group, resident)
	}
	for _, bad := range []string{"", "7", "7 (a", "7 (a) S 1 8", "x (a) S 1 8 8 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 9999 3 0"} {
		if pid, _, _ := parseStat(bad); pid != 0 {
			t.Errorf("%q is process %d", bad, pid)
		}
	}
}
