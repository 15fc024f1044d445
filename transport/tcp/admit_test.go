package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
)

// admitter says who is admitted, and writes down what it hears of them.
type admitter struct {
	mu     sync.Mutex
	refuse error
	keep   bool     // it answers requests itself
	aborts []func() // guarded by mu
	said   atomic.Int32
	gone   atomic.Int32
}

func (a *admitter) admit(local, remote netip.AddrPort, abort func()) (func(transport.ConnRequest) bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		return nil, a.refuse
	}
	a.aborts = append(a.aborts, abort)
	keep := a.keep
	var once atomic.Bool
	return func(q transport.ConnRequest) bool {
		if once.Swap(true) {
			panic("called twice")
		}
		if q == nil {
			a.gone.Add(1)
			return true
		}
		a.said.Add(1)
		if keep {
			q.Reject([]byte("kept"))
		}
		return !keep
	}, nil
}

func (a *admitter) abortAll() {
	a.mu.Lock()
	list := a.aborts
	a.mu.Unlock()
	for _, f := range list {
		f()
	}
}

func closedSoon(t *testing.T, what string, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%s: %d bytes, %v", what, n, err)
	}
}

// TestAdmit: who is not admitted is closed at once; who is can be closed until it has sent
// its request; and whoever admits hears of each once, with its request or without one, and
// may answer it.
func TestAdmit(t *testing.T) {
	p := newProvider(t)
	a := &admitter{}
	p.Admit = a.admit
	var taken atomic.Int32
	ln, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) { taken.Add(1); q.Reject([]byte("taken")) })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	asked := func(want string) {
		t.Helper()
		_, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
		if r, ok := errors.AsType[*transport.Refused](err); !ok || string(r.Private) != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	set := func(f func()) { a.mu.Lock(); f(); a.mu.Unlock() }
	set(func() { a.refuse = errors.New("no room") })
	closedSoon(t, "not admitted", dial())
	set(func() { a.refuse = nil })
	asked("taken")
	set(func() { a.keep = true })
	asked("kept")
	if taken.Load() != 1 || a.said.Load() != 2 {
		t.Errorf("%d were taken, %d have said what they want", taken.Load(), a.said.Load())
	}
	silent := dial()
	eventually(t, "the third", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.aborts) == 3 })
	a.abortAll() // those that have said what they want do not care
	closedSoon(t, "given up", silent)
	eventually(t, "its end", func() bool { return a.gone.Load() == 1 })
	last := dial()
	eventually(t, "the fourth", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.aborts) == 4 })
	ln.Close()
	closedSoon(t, "of a closed listener", last)
	if a.gone.Load() != 2 || a.said.Load() != 2 {
		t.Errorf("%d are gone, %d have said what they want", a.gone.Load(), a.said.Load())
	}
}

// TestAnswering: as many requests as may be are being answered, the others wait for that,
// and are still among those that can be given up.
func TestAnswering(t *testing.T) {
	p := newProvider(t)
	a := &admitter{}
	p.Admit = a.admit
	var now, most atomic.Int32
	goOn := make(chan struct{})
	ln, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-goOn
		now.Add(-1)
		q.Reject(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	const more = 20
	var conns []net.Conn
	for range maxAnswering + more {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write(handshake(transport.TagConnect, "private"))
		conns = append(conns, c)
	}
	eventually(t, "as many as may be", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.aborts) == len(conns) && now.Load() == maxAnswering
	})
	a.abortAll()
	eventually(t, "the end of the others", func() bool { return a.gone.Load() == more })
	close(goOn)
	ln.Close()
	if n := most.Load(); n != maxAnswering || a.said.Load() != maxAnswering {
		t.Errorf("%d were answered at a time, %d have said what they want", n, a.said.Load())
	}
}
