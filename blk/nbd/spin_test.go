package nbd

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSpinEnds: however long a connection may spin, a read of nothing comes back and says
// so, for the connection to be idle; it is not parked in there. Who does not spin looks once.
func TestSpinEnds(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	long := time.Now().Add(time.Hour)
	for _, c := range []struct {
		what  string
		s     rawStream
		alone string // what becomes of the time from when on spinning is worth trying again
	}{
		{"no spinning", rawStream{quick: true}, "unset"},
		{"the last wait was long", rawStream{spin: 1}, "unset"},
		{"others want the processor", rawStream{spin: time.Hour, quick: true, alone: long}, "kept"},
		{"two looks take longer than four times the spin", rawStream{spin: 1, quick: true}, "set"},
		{"until the spin is over", rawStream{spin: time.Millisecond, quick: true}, ""},
	} {
		b, s := make([]byte, 4), &c.s
		s.riov[0].Base, s.rn = &b[0], 1
		s.riov[0].SetLen(len(b))
		if !s.tryRead(uintptr(fds[0])) || s.rerr != errAgain {
			t.Errorf("%s: parked, or %v; want %v", c.what, s.rerr, errAgain)
		}
		switch c.alone {
		case "unset":
			if !s.alone.IsZero() {
				t.Errorf("%s: it looked more than once", c.what)
			}
		case "kept":
			if s.alone != long {
				t.Errorf("%s: it looked more than once", c.what)
			}
		case "set":
			if s.alone.IsZero() {
				t.Errorf("%s: it is tried again at once", c.what)
			}
		}
		if _, err := unix.Write(fds[1], []byte("four")); err != nil {
			t.Fatal(err)
		}
		if !s.tryRead(uintptr(fds[0])) || s.rerr != nil || s.got != 4 || string(b) != "four" {
			t.Errorf("%s: %d bytes, %q, %v", c.what, s.got, b, s.rerr)
		}
	}
}

// TestAttention: a wait keeps the thread for a moment, once, and only looks then; what is
// there ends it at once.
func TestAttention(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	s := &rawStream{}
	look := func() (took time.Duration, there bool) {
		begun := time.Now()
		there = s.tryWait(uintptr(fds[0]))
		return time.Since(begun), there
	}
	if took, there := look(); there || took < attention || !s.idle {
		t.Errorf("nothing is there: %v after %v, idle %v", there, took, s.idle)
	}
	quickest := time.Hour // of many: a busy machine may make any of them long
	for range 20 {
		took, there := look()
		if quickest = min(quickest, took); there {
			t.Error("something is there")
		}
	}
	if quickest >= attention {
		t.Errorf("one look more takes %v", quickest)
	}
	if _, err := unix.Write(fds[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, s.idle = range []bool{false, true} {
		if _, there := look(); !there {
			t.Errorf("what is there is not seen, idle %v", s.idle)
		}
	}
}

// TestPlainStream: a connection of any sort is read into the first memory there is, and
// written whole.
func TestPlainStream(t *testing.T) {
	nc := newTape([]byte("abcdef"), 9)
	s := &plainStream{nc: nc}
	a, b := make([]byte, 2), make([]byte, 3)
	if n, err := s.read(a, b); n != 2 || err != nil || string(a) != "ab" {
		t.Errorf("%d bytes, %q, %v", n, a, err)
	}
	if n, err := s.read(nil, b); n != 3 || err != nil || string(b) != "cde" {
		t.Errorf("%d bytes, %q, %v", n, b, err)
	}
	if n, err := s.read(a, nil); n != 1 || err != nil || a[0] != 'f' {
		t.Errorf("%d bytes, %q, %v", n, a, err)
	}
	if n, err := s.read(a, b); n != 0 || err == nil {
		t.Errorf("the end: %d bytes, %v", n, err)
	}
	v := [][]byte{[]byte("one"), []byte("two")}
	if n, err := s.write(v, true); n != 6 || err != nil || nc.out.String() != "onetwo" || string(v[0]) != "one" {
		t.Errorf("%d bytes, %v: %q", n, err, nc.out.String())
	}
	nc.writes = 1
	if n, err := s.write(v, true); n != 3 || err != errTape {
		t.Errorf("half of it: %d bytes, %v", n, err)
	}
	if s.inline() || s.wait() != nil {
		t.Error("it is not one that waits by itself")
	}
}
