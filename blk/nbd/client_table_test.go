package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// TestBlockSizes: which sizes a server may name, at their edges, and what becomes of
// the largest.
func TestBlockSizes(t *testing.T) {
	for _, x := range []struct {
		least, preferred, most uint32
		max                    uint32 // 0: refused
	}{
		{1, 1, 1, 1}, {1, 4096, 4096, 4096}, {512, 512, 512, 512}, {512, 512, 1535, 1024}, {512, 4096, maxPayload, maxPayload},
		{512, 4096, maxPayload + 512, maxPayload}, {512, 4096, math.MaxUint32, maxPayload}, {maxPayload, maxPayload, maxPayload, maxPayload},
		{0, 512, 512, 0}, {3, 4, 512, 0}, {512, 511, 4096, 0}, {512, 256, 4096, 0}, {512, 512, 511, 0}, {1024, 1024, 512, 0},
		{2 * maxPayload, 2 * maxPayload, 2 * maxPayload, 0}, {513, 1024, 4096, 0},
	} {
		var c Client
		err := c.blockSizes(x.least, x.preferred, x.most)
		if (err == nil) != (x.max != 0) || err != nil && !errors.Is(err, rdserr.ErrProtocol) {
			t.Errorf("%d, %d, %d: %v", x.least, x.preferred, x.most, err)
		}
		if i := c.info; err == nil && (i.MaxBytes != x.max || i.LogicalBlock != x.least || i.PhysicalBlock != x.preferred) {
			t.Errorf("%d, %d, %d: %+v", x.least, x.preferred, x.most, i)
		}
	}
}

// TestDescribed: each transmission flag means one thing and no other.
func TestDescribed(t *testing.T) {
	for flag, want := range map[uint16]blk.Info{
		0: {}, FlagReadOnly: {ReadOnly: true}, FlagRotational: {Rotational: true}, FlagCanMultiConn: {MultiConn: true},
		FlagSendFUA: {FUA: true}, FlagSendFlush: {WriteCache: true}, FlagSendFastZero: {FastZero: true},
		FlagSendTrim: {MaxDiscard: math.MaxUint32}, FlagSendWriteZeroes: {MaxWriteZeroes: math.MaxUint32},
	} {
		want.Size = math.MaxInt64
		var c Client
		if err := c.described(math.MaxInt64, flag|FlagHasFlags); err != nil || c.info != want || c.zeroes != (flag == FlagSendWriteZeroes) {
			t.Errorf("flag %#x: %+v, %v, %v", flag, c.info, c.zeroes, err)
		}
	}
	var c Client
	if err := c.described(math.MaxInt64+1, FlagHasFlags); !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("an export larger than an offset can say: %v", err)
	}
}

// TestExtentsOfAStatus: what a server may say of a range.
func TestExtentsOfAStatus(t *testing.T) {
	const context = 7
	be := func(v ...int) (b []byte) {
		for _, x := range v {
			b = append(b, u32(x)...)
		}
		return b
	}
	for what, x := range map[string]struct {
		k    call
		b    []byte
		want []blk.Extent // nil: refused
	}{
		"exactly":        {call{cmd: cmdBlockStatus, context: context, n: 1024}, be(context, 512, stateHole, 512, stateZero), []blk.Extent{{Len: 512, Hole: true}, {Len: 512, Zero: true}}},
		"both and none":  {call{cmd: cmdBlockStatus, context: context, n: 1024}, be(context, 512, stateHole|stateZero, 512, 0), []blk.Extent{{Len: 512, Hole: true, Zero: true}, {Len: 512}}},
		"beyond":         {call{cmd: cmdBlockStatus, context: context, n: 1024}, be(context, 512, 0, 4096, 0), []blk.Extent{{Len: 512}, {Len: 512}}},
		"behind the end": {call{cmd: cmdBlockStatus, context: context, n: 512}, be(context, 512, 0, 4096, stateHole), []blk.Extent{{Len: 512}}},
		"less":           {call{cmd: cmdBlockStatus, context: context, n: 1024}, be(context, 1, 0), []blk.Extent{{Len: 1}}},
		"of no length":   {call{cmd: cmdBlockStatus, context: context, n: 1024}, be(context, 0, 0), nil},
		"of a read":      {call{cmd: cmdRead, context: context, n: 1024}, be(context, 512, 0), nil},
		"of another":     {call{cmd: cmdBlockStatus, context: context, n: 1024}, be(context+1, 512, 0), nil},
		"twice":          {call{cmd: cmdBlockStatus, context: context, n: 1024, extents: []blk.Extent{{Len: 512}}}, be(context, 512, 0), nil},
	} {
		k := x.k
		err := k.status(x.b)
		if x.want == nil {
			if !errors.Is(err, rdserr.ErrProtocol) {
				t.Errorf("%s: %v", what, err)
			}
		} else if err != nil || fmt.Sprint(k.extents) != fmt.Sprint(x.want) {
			t.Errorf("%s: %v, %v", what, k.extents, err)
		}
	}
}

// TestFirstErrorCounts: of several errors in one reply the caller gets the first.
func TestFirstErrorCounts(t *testing.T) {
	k := call{cmd: cmdWrite, off: 512, n: 4096}
	k.fail(uint32(unix.ENOSPC), "full")
	k.fail(uint32(unix.EIO), "")
	if !errors.Is(k.err, unix.ENOSPC) || k.err.Error() != "write at 512, 4096 bytes: full" {
		t.Errorf("%v", k.err)
	}
	k = call{cmd: cmdFlush}
	k.fail(uint32(unix.EIO), "")
	if !errors.Is(k.err, unix.EIO) || !strings.Contains(k.err.Error(), "flush") || !strings.Contains(k.err.Error(), "input/output error") {
		t.Errorf("%v", k.err)
	}
}

// TestLongRanges: what is longer than one request may be is asked for in pieces that
// cover it exactly; the first that fails ends it.
func TestLongRanges(t *testing.T) {
	info := everything
	info.Size = 3<<30 + 4096
	d := newNoting(info)
	_, socket := serve(t, Options{}, Export{Device: d})
	c := dial(t, socket, "")
	const gib = 1 << 30
	pieces := func(op blk.Op) string {
		var l []string
		for _, p := range [][2]int{{512, gib}, {512 + gib, gib}, {512 + 2*gib, gib}, {512 + 3*gib, 512}} {
			l = append(l, fmt.Sprintf("%v %d+%d %v", op, p[0], p[1], blk.Flags(0)))
		}
		return strings.Join(l, ", ")
	}
	for op, do := range map[blk.Op]func(off, n int64) error{blk.OpWriteZeroes: c.WriteZeroes, blk.OpDiscard: c.Trim} {
		if err := do(512, 3*gib+512); err != nil {
			t.Error(err)
		}
		got := d.asked()
		if op == blk.OpWriteZeroes { // whatever it says of holes
			got, _ = withoutFlags(got)
			want, _ := withoutFlags(pieces(op))
			if got != want {
				t.Errorf("%v: %s, want %s", op, got, want)
			}
		} else if got != pieces(op) {
			t.Errorf("%v: %s", op, got)
		}
		if err := do(0, 0); err != nil || d.asked() != "" {
			t.Errorf("%v of nothing: %v", op, err)
		}
	}
	d.mu.Lock()
	d.err = unix.ENOSPC
	d.mu.Unlock()
	for what, do := range map[string]func() error{
		"write": func() error { return second(c.WriteAt(make([]byte, maxPayload+512), 0)) },
		"read":  func() error { return second(c.ReadAt(make([]byte, maxPayload+512), 0)) },
		"zero":  func() error { return c.WriteZeroes(0, 2*gib) },
		"trim":  func() error { return c.Trim(0, 2*gib) },
		"flush": c.Flush,
	} {
		if err := do(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s on a full store: %v", what, err)
		}
		if got := d.asked(); strings.Count(got, "+") != 1 {
			t.Errorf("%s went on after an error: %s", what, got)
		}
	}
}

func withoutFlags(s string) (string, int) {
	var l []string
	for _, x := range strings.Split(s, ", ") {
		if f := strings.Fields(x); len(f) > 1 {
			l = append(l, strings.Join(f[:len(f)-1], " "))
		}
	}
	return strings.Join(l, ", "), len(l)
}

// TestWhatAServerLacks: without trim, flush or block status nothing is asked for;
// zeroes go as data, in pieces no longer than one request may be, every byte once.
func TestWhatAServerLacks(t *testing.T) {
	m := memory(t, 8<<20)
	d := newNoting(everything)
	_, socket := serve(t, Options{}, Export{Device: m}, Export{Name: "noting", Device: d})
	c := dial(t, socket, "")
	b := fill(int(m.Info().Size), 1)
	if _, err := c.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	c.zeroes, c.info.MaxBytes = false, 3<<19
	if err := c.WriteZeroes(4096, 5<<20+512); err != nil {
		t.Error(err)
	}
	clear(b[4096:][:5<<20+512])
	got := make([]byte, len(b))
	if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, b) {
		t.Errorf("zeroes as data lie otherwise: %v", err)
	}
	k := dial(t, socket, "noting")
	k.zeroes, k.info.MaxBytes = false, 3<<18
	if err := k.WriteZeroes(0, 1<<20); err != nil {
		t.Error(err)
	}
	if got, n := withoutFlags(d.asked()); got != fmt.Sprintf("%[1]v 0+%[2]d, %[1]v %[2]d+%[3]d", blk.OpWrite, 3<<18, 1<<18) || n != 2 {
		t.Errorf("zeroes as data: %s", got)
	}
	d.mu.Lock()
	d.err = unix.EIO
	d.mu.Unlock()
	if err := k.WriteZeroes(0, 1<<20); !errors.Is(err, syscall.EIO) {
		t.Errorf("zeroes as data, on a broken store: %v", err)
	}
	d.asked()
	k.info.MaxDiscard, k.info.WriteCache, k.allocation = 0, false, false
	es, err := k.BlockStatus(512, 1024)
	if err := errors.Join(k.Trim(0, 4096), k.Flush(), err); err != nil || len(es) != 1 || es[0] != (blk.Extent{Len: 1024}) || d.asked() != "" {
		t.Errorf("trim, flush and status of a server without them: %v, %v, %q", err, es, d.asked())
	}
}

// TestExportNames: names and descriptions up to 255 bytes.
func TestExportNames(t *testing.T) {
	m := memory(t, 1<<20)
	for n, ok := range map[int]bool{0: true, maxName: true, maxName + 1: false} {
		for what, e := range map[string]Export{"name": {Name: strings.Repeat("x", n), Device: m}, "description": {Description: strings.Repeat("y", n), Device: m}} {
			if _, err := newExport(e); (err == nil) != ok {
				t.Errorf("a %s of %d bytes: %v", what, n, err)
			}
		}
	}
}

// TestSplitWhereNeeded: a device that takes all a client may ask for is asked as it
// is; one that does not is asked in pieces; what a device has not is not split.
func TestSplitWhereNeeded(t *testing.T) {
	for what, x := range map[string]struct {
		change func(*blk.Info)
		split  bool
	}{
		"everything":         {func(*blk.Info) {}, false},
		"short requests":     {func(i *blk.Info) { i.MaxBytes = blk.MaxIO - 512 }, true},
		"short discards":     {func(i *blk.Info) { i.MaxDiscard = blk.MaxSize - 512 }, true},
		"the least discards": {func(i *blk.Info) { i.MaxDiscard = 1 }, true},
		"no discards":        {func(i *blk.Info) { i.MaxDiscard = 0 }, false},
		"short zeroes":       {func(i *blk.Info) { i.MaxWriteZeroes = blk.MaxSize - 512 }, true},
		"no zeroes":          {func(i *blk.Info) { i.MaxWriteZeroes = 0 }, false},
	} {
		info := everything
		x.change(&info)
		d := newNoting(info)
		e, err := newExport(Export{Device: d})
		if err != nil {
			t.Fatal(what, err)
		}
		if split := e.dev != blk.Device(d); split != x.split {
			t.Errorf("%s: split %v", what, split)
		}
	}
	bad := everything
	bad.LogicalBlock = 500
	if _, err := newExport(Export{Device: newNoting(bad)}); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a device with blocks of 500 bytes: %v", err)
	}
}

// TestGoneWhileNegotiating: an export that is taken away, and a server that leaves,
// while a client negotiates end its connection as if it had been served before.
func TestGoneWhileNegotiating(t *testing.T) {
	for what, gone := range map[string]func(*Server) error{
		"removed": func(s *Server) error { return s.Remove(context.Background(), "x") },
		"left": func(s *Server) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stopping, s.leaving = true, true
			return nil
		},
	} {
		s, err := NewServer(Options{Reactor: testReactor})
		if err != nil {
			t.Fatal(err)
		}
		d := newNoting(everything)
		if err := s.Add(Export{Name: "x", Device: d}); err != nil {
			t.Fatal(err)
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, ours := connOf(t, fds[0]), connOf(t, fds[1])
		h, err := s.open(ours)
		if err != nil {
			t.Fatal(err)
		}
		x, err := s.lookup("x")
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		delete(s.sessions, h) // Remove waits for the sessions there are; this one is between
		s.mu.Unlock()
		if err := gone(s); err != nil {
			t.Fatal(what, err)
		}
		done := make(chan struct{})
		go func() { // ends with the connection
			defer close(done)
			s.transmission(h, &agreed{x: x}, nil)
		}()
		c := &client{t: t, nc: theirs}
		if what == "removed" {
			c.send(command(cmdWrite, 0, 1, 0, 512, make([]byte, 512)))
			if r := c.reply(0); r.value != errShutdown {
				t.Errorf("%s: a write is answered by %v", what, r)
			}
		}
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the connection goes on", what)
		}
		if got := d.asked(); got != "" {
			t.Errorf("%s: the device was asked %s", what, got)
		}
		theirs.Close()
		s.drop(h)
	}
}

func connOf(t *testing.T, fd int) net.Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	nc, err := net.FileConn(f) // a duplicate
	if err != nil {
		t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	return nc
}
