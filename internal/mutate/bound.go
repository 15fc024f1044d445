package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// memory is what a process of a test command may have resident: an edit that makes it
// take ever more is noticed by that, and not by the machine's running out. It is no
// limit of the kernel's, for those count what is mapped and never touched, too: looking at
// a ledger maps more than this.
const memory = 8 << 30

// bound ends processes of a group that take more than memory, until done is closed.
func bound(group int, done <-chan struct{}) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, name := range stats {
			if b, err := os.ReadFile(name); err == nil {
				if pid, in, resident := parseStat(string(b)); in == group && resident > memory {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	}
}

// parseStat reads a line of /proc/PID/stat: the process, its group and what it has
// resident, in bytes. All are 0 if it is no such line.
func parseStat(line string) (pid, group, resident int) {
	first, rest, ok := strings.Cut(line, " (") // the name may have spaces and parentheses
	end := strings.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return 0, 0, 0
	}
	f := strings.Fields(rest[end+1:]) // from the third field of the line on
	if len(f) < 22 {
		return 0, 0, 0
	}
	pid, err := strconv.Atoi(first)
	group, err2 := strconv.Atoi(f[2])
	pages, err3 := strconv.Atoi(f[21])
	if err != nil || err2 != nil || err3 != nil {
		return 0, 0, 0
	}
	return pid, group, pages * os.Getpagesize()
}
