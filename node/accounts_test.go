package node

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
)

// TestPeerBytes: what devices keep for a peer is charged to it by whatever form of its address,
// is given back as it was taken, and leaves nothing. What is refused is not charged.
func TestPeerBytes(t *testing.T) {
	memory := quota.New(64<<20, nil)
	p := &peerBytes{memory: memory, of: map[netip.Addr]*peerAccount{}}
	used := func() int64 { return memory.Kinds()[quota.Peers].Used }
	a, mapped, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fe80::1")
	zoned := b.WithZone("eth0")
	for i, c := range []struct {
		peer     netip.Addr
		n        int
		refused  bool
		used     int64
		accounts int
	}{
		{a, 1000, false, 1000, 1},
		{mapped, 24, false, 1024, 1},
		{b, 1, false, 1025, 2},
		{zoned, -1, false, 1024, 1},
		{b, 1 << 40, true, 1024, 1},
		{a, 1 << 40, true, 1024, 1},
		{a, -1000, false, 24, 1},
		{b, 0, false, 24, 1},
		{a, -24, false, 0, 0},
		{netip.Addr{}, 7, false, 7, 1}, // the node itself
		{netip.Addr{}, -7, false, 0, 0},
	} {
		if err := p.charge(c.peer, c.n); (err != nil) != c.refused || used() != c.used || len(p.of) != c.accounts {
			t.Errorf("step %d, %d for %v: %v, %d bytes in %d accounts; want %d in %d", i, c.n, c.peer, err, used(), len(p.of), c.used, c.accounts)
		}
	}
}

// TestKeeperReads: of a line of statm the second and third field count, in pages; of one that
// is none nothing is read.
func TestKeeperReads(t *testing.T) {
	k, says := kept(t)
	says(40<<20, 24<<20)
	if r, s, ok := k.read(); r != 40<<20 || s != 24<<20 || !ok {
		t.Errorf("%d, %d, %v", r, s, ok)
	}
	for line, right := range map[string]bool{"1 2 3": true, "1 2": false, "": false, "1 a 3": false, "1 2 b": false} {
		if err := k.file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := k.file.WriteAt([]byte(line), 0); err != nil {
			t.Fatal(err)
		}
		if r, s, ok := k.read(); ok != right || ok && (r != 2*k.page || s != 3*k.page) {
			t.Errorf("%q: %d, %d, %v", line, r, s, ok)
		}
	}
}

// TestErrorsAreShortened: a text of others is cut to its bound, and not before.
func TestErrorsAreShortened(t *testing.T) {
	for n, want := range map[int]int{maxErrorBytes - 1: maxErrorBytes - 1, maxErrorBytes: maxErrorBytes, maxErrorBytes + 1: maxErrorBytes, 10000: maxErrorBytes} {
		if got := len(shorten(strings.Repeat("x", n))); got != want {
			t.Errorf("%d of %d bytes are kept, want %d", got, n, want)
		}
	}
}

// TestLogOfLessThanALine: with a rate below one line a second there is one line all the same,
// also when the rate is changed later.
func TestLogOfLessThanALine(t *testing.T) {
	var b bytes.Buffer
	log := limitLog(slog.New(slog.NewTextHandler(&b, nil)), 5, new(atomic.Uint64))
	shared := log.Handler().(*limitHandler).shared
	now := time.Now() // the limiter that is changed looks at the clock itself
	shared.now = func() time.Time { return now }
	lines := func() int {
		b.Reset()
		for range 10 {
			log.Warn("reset")
		}
		return strings.Count(b.String(), "msg=reset")
	}
	if n := lines(); n != 5 {
		t.Errorf("%d lines at 5 a second", n)
	}
	shared.setPerSecond(0.1)
	now = now.Add(11 * time.Second)
	if n := lines(); n != 1 {
		t.Errorf("%d lines at one in ten seconds", n)
	}
	shared.setPerSecond(3)
	now = now.Add(11 * time.Second)
	if n := lines(); n != 3 {
		t.Errorf("%d lines at 3 a second", n)
	}
}

// TestSuppressedIsTheLinesOwn: that lines are missing is said of a line, and not in the caller's.
func TestSuppressedIsTheLinesOwn(t *testing.T) {
	var b bytes.Buffer
	log := limitLog(slog.New(slog.NewTextHandler(&b, nil)), 1, new(atomic.Uint64))
	h := log.Handler().(*limitHandler)
	now := time.Unix(1000, 0)
	h.shared.now = func() time.Time { return now }
	log.Warn("reset")
	log.Warn("reset")
	now = now.Add(2 * time.Second)
	// Eight attributes: beyond those that are inline they have a slice with room for one more,
	// which copies of the record share.
	r := slog.NewRecord(now, slog.LevelWarn, "reset", 0)
	r.Add("a", 1, "b", 2, "c", 3, "d", 4, "e", 5, "f", 6, "g", 7, "h", 8)
	mine := r
	if err := h.Handle(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	mine.AddAttrs(slog.Int("mine", 1))
	mine.Attrs(func(a slog.Attr) bool {
		if a.Key == "suppressed" || a.Key == "!BUG" {
			t.Errorf("the caller's record has %v", a)
		}
		return true
	})
	if !strings.Contains(b.String(), "suppressed=1") {
		t.Errorf("the gap is not told:\n%s", b.String())
	}
}

// TestLogWriterToTheByte: lines have a place up to the last byte of the bound, and nothing is said
// to be lost when nothing was.
func TestLogWriterToTheByte(t *testing.T) {
	s := &stuck{free: make(chan struct{})}
	w := NewLogWriter(s)
	line := bytes.Repeat([]byte("x"), 1<<10)
	for range logQueueBytes / len(line) {
		w.Write(line)
	}
	if n := w.lost.Load(); n != 0 {
		t.Errorf("%d lines are lost of as many bytes as there is room for", n)
	}
	w.Write([]byte("y"))
	if n := w.lost.Load(); n != 1 {
		t.Errorf("%d lines are lost with a byte too many", n)
	}
	close(s.free)
	w.Flush(20 * time.Second)
	if out := s.b.String(); strings.Count(out, "x") != logQueueBytes || !strings.Contains(out, "lines=1\n") {
		t.Errorf("%d bytes, %s", len(out), out[max(0, len(out)-200):])
	}
	at := s.b.Len()
	w.Write([]byte("z"))
	w.Flush(20 * time.Second)
	if got := s.b.String()[at:]; got != "z" {
		t.Errorf("nothing was lost, and what stands there is %q", got)
	}
}
