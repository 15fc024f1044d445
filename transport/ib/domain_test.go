package ib

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

func write(key uint32, addr uint64, s string) transport.Op {
	return transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: []byte(s)}
}

// TestRevokesAtOnce: a device that ends keys at once says so, and how much was written.
func TestRevokesAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	mem := make([]byte, 10)
	key, addr := y.d.Register(mem)
	x.post(write(key, addr, "abc"))
	w.wantTold(y, "written 3 0x0")
	if n, r := y.d.Take(key); n != 3 || r != transport.Idle {
		t.Errorf("%d bytes, %v", n, r)
	}
	if n, r := y.d.Take(key); n != 0 || r != transport.Idle {
		t.Errorf("again: %d bytes, %v", n, r)
	}
	if r := y.d.Revoke(99); r != transport.Idle {
		t.Errorf("a key that never was: %v", r)
	}
}

// TestRevokesLater: a device that ends keys by a work request says Pending, and which key is
// at rest on one of the domain's links.
func TestRevokesLater(t *testing.T) {
	w := newWorld(t, func(v *fakeVerbs) { v.info.Caps.Pending = true })
	x, y := w.started()
	mem := make([]byte, 10)
	key, addr := y.d.Register(mem)
	x.post(write(key, addr, "abc"))
	w.wantTold(y, "written 3 0x0")
	if n, r := y.d.Take(key); n != transport.Unfilled || r != transport.Pending {
		t.Errorf("%d bytes, %v", n, r)
	}
	w.wantTold(y, "written 3 0x0", fmt.Sprintf("revoked %#x 3", key))
	// Whoever is told may end the link.
	key, _ = y.d.Register(mem)
	fails := errors.New("not that key")
	y.on = func(string) error { return fails }
	if r := y.d.Revoke(key); r != transport.Pending {
		t.Error(r)
	}
	if err := w.wantClosed(y); err != fails {
		t.Errorf("closed with %v", err)
	}
	// A link that is to end is told nothing more.
	_, y = w.started()
	key, _ = y.d.Register(mem)
	w.locked(func() bool { w.b.Slow = true; return true })
	y.l.Close()
	y.d.Revoke(key)
	w.settled()
	if len(y.told()) > 0 {
		t.Errorf("told %q", y.told())
	}
	w.b.flush()
	w.wantClosed(y)
	// Nobody is there to be told.
	key, _ = y.d.Register(mem)
	if r := y.d.Revoke(key); r != transport.Pending {
		t.Error(r)
	}
	w.settled()
}

// TestCannotTell: what a device does not know is not made up.
func TestCannotTell(t *testing.T) {
	w := newWorld(t, func(v *fakeVerbs) { v.info.Caps = Caps{AnyMemory: true, PeerRevokes: true} })
	x, y := w.started()
	mem := make([]byte, 10)
	key, addr := y.d.Register(mem)
	x.post(write(key, addr, "abc"), transport.Op{Kind: transport.OpSendInval, Key: key})
	w.wantTold(y, "written 3 0x0 somewhere", fmt.Sprintf("invalidated %d", transport.Unfilled))
	key, _ = y.d.Register(mem)
	if n, r := y.d.Take(key); n != transport.Unfilled || r != transport.Idle {
		t.Errorf("%d bytes, %v", n, r)
	}
	if _, ok := y.d.(transport.Guarded); ok {
		t.Error("a domain is guarded that cannot be")
	}
}

// TestGuard: the owner of a domain is asked before bytes are placed; what it refuses ends the
// link with its reason.
func TestGuard(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	mem := make([]byte, 10)
	var asked []string
	y.d.(transport.Guarded).Guard(func(p []byte) error {
		asked = append(asked, fmt.Sprintf("%d at %d: %q", len(p), cap(mem)-cap(p), mem))
		if len(asked) > 1 {
			return errGuard
		}
		return nil
	})
	x.l.Start(x, 16)
	y.l.Start(y, 16)
	key, addr := y.d.Register(mem)
	x.post(write(key, addr+2, "abc"), write(key, addr+5, "de"))
	if err := w.wantClosed(y); err != errGuard {
		t.Errorf("closed with %v", err)
	}
	if fmt.Sprint(asked) != `[3 at 2: "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" 2 at 5: "\x00\x00abc\x00\x00\x00\x00\x00"]` {
		t.Errorf("asked about %v", asked)
	}
	if string(mem[5:]) != "\x00\x00\x00\x00\x00" {
		t.Errorf("placed %q", mem)
	}
	w.wantTold(y, "written 3 0x0")
}

// TestDefersReads: bytes that their owner cannot take yet are not taken, for a third of a second at
// most, and are not lost.
func TestDefersReads(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	var defers atomic.Bool
	defers.Store(true)
	var asked atomic.Int32
	mem := make([]byte, 10)
	y.d.(transport.Guarded).Guard(func(p []byte) error {
		asked.Add(1)
		if defers.Load() && cap(p) == cap(mem) {
			return fmt.Errorf("%w (%w)", errGuard, transport.ErrNotYet)
		}
		return nil
	})
	y.d.(transport.Guarded).DeferReads(defers.Load)
	x.l.Start(x, 16)
	y.l.Start(y, 16)
	key, addr := y.d.Register(mem)
	x.post(write(key, addr, "abc"))
	w.until("The guard was asked three times.", func() bool { return asked.Load() >= 3 })
	if len(y.told()) > 0 || mem[0] != 0 {
		t.Error("bytes were taken that were to wait")
	}
	defers.Store(false)
	w.wantTold(y, "written 3 0x0")
	defers.Store(true)
	before := time.Now() // a pause behind the post is a part of the wait
	x.post(write(key, addr, "def"))
	if err := w.wantClosed(y); !errors.Is(err, errGuard) {
		t.Errorf("closed with %v", err)
	}
	if d := time.Since(before); d < deferFor {
		t.Errorf("they waited for %v, and were to for %v", d, deferFor)
	}
	w.wantTold(y, "written 3 0x0")
}

// TestDefersNothingThatHasRoom: whoever has pages is not asked to send again because others want
// some: a kernel does not bear that.
func TestDefersNothingThatHasRoom(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	var asked, deferred atomic.Int32
	y.d.(transport.Guarded).Guard(func([]byte) error { asked.Add(1); return nil })
	y.d.(transport.Guarded).DeferReads(func() bool { deferred.Add(1); return true })
	x.l.Start(x, 16)
	y.l.Start(y, 16)
	mem := make([]byte, 10)
	key, addr := y.d.Register(mem)
	x.post(write(key, addr, "abc"), write(key, addr, "def"))
	w.wantTold(y, "written 3 0x0", "written 3 0x0")
	if n, d := asked.Load(), deferred.Load(); n != 2 || d != 0 {
		t.Errorf("of two writes the guard was asked %d times, and %d times whether they are to wait", n, d)
	}
}

// TestDefersUntilItIsGranted: memory that is granted between the refusal and the question
// whether to wait ends no link.
func TestDefersUntilItIsGranted(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	var asked atomic.Int32
	y.d.(transport.Guarded).Guard(func([]byte) error {
		if asked.Add(1) == 1 {
			return transport.ErrNotYet
		}
		return nil
	})
	y.d.(transport.Guarded).DeferReads(func() bool { return false })
	x.l.Start(x, 16)
	y.l.Start(y, 16)
	key, addr := y.d.Register(make([]byte, 10))
	x.post(write(key, addr, "abc"))
	w.wantTold(y, "written 3 0x0")
}

// TestNoDomain: without a domain nothing can be registered, and who wants a link learns why.
func TestNoDomain(t *testing.T) {
	w := newWorld(t, nil)
	none := errors.New("no protection domain is left")
	w.a.Refuse = none
	d := w.pa.NewDomain()
	w.a.Refuse = nil
	if key, _ := d.Register(make([]byte, 1)); key != 0 {
		t.Errorf("key %#x", key)
	}
	if n, r := d.Take(1); n != 0 || r != transport.Idle {
		t.Errorf("%d bytes, %v", n, r)
	}
	ln := w.listen(func(q transport.ConnRequest) { q.Reject(nil) })
	if _, _, err := w.dial(ln, d, nil); !errors.Is(err, none) {
		t.Errorf("dialled: %v", err)
	}
	d.Close()
	other := w.pa.NewDomain()
	if other.Close(); w.a.domains != 0 {
		t.Errorf("the device has %d domains when all are closed", w.a.domains)
	}
	if _, _, err := w.dial(ln, w.pb.NewDomain(), nil); err == nil || !strings.Contains(err.Error(), "another device") {
		t.Errorf("dialled in the domain of another device: %v", err)
	}
}

// TestGrant: the key is the peer's to revoke, at the address that is asked for; without room
// the link ends.
func TestGrant(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	mem := make([]byte, 10)
	key, addr := y.l.Grant(mem, 0)
	key2, addr2 := y.l.Grant(mem[5:], 1<<20)
	if addr2 != 1<<20 || addr == 0 || addr%4096 != 0 || key == key2 {
		t.Errorf("keys %#x and %#x at %#x and %#x", key, key2, addr, addr2)
	}
	x.post(write(key, addr, "abc"), write(key2, addr2, "de"), transport.Op{Kind: transport.OpSendInval, Key: key})
	w.wantTold(y, "written 3 0x0", "written 2 0x0", "invalidated 3")
	if string(mem[:7]) != "abc\x00\x00de" {
		t.Errorf("placed %q", mem)
	}
	none := errors.New("no key is left")
	w.locked(func() bool { w.b.Refuse = none; return true })
	y.l.Grant(mem, 0)
	w.locked(func() bool { w.b.Refuse = nil; return true })
	if err := w.wantClosed(y); !errors.Is(err, none) {
		t.Errorf("closed with %v", err)
	}
}

// TestSlowly: bytes are not taken for a time that begins with the first that is to wait, and
// ends at its limit, or when some are taken.
func TestSlowly(t *testing.T) {
	var s slowly
	const at = time.Second
	for i, c := range []struct {
		now   time.Duration
		taken bool
		want  bool
	}{
		{at, true, false}, {at + 1, false, true}, {at + deferFor, false, true}, {at + deferFor + 1, false, false},
		{at + 2*deferFor, false, false}, {at + 3*deferFor, true, false}, {at + 3*deferFor, false, true}, {at + 3*deferFor, false, true},
	} {
		if c.taken {
			s.over()
		} else if got := s.wait(c.now); got != c.want {
			t.Errorf("look %d: to wait: %v", i, got)
		}
	}
}
