package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// turns is a table of dials whose waiters are asked for, and not waited for.
type turns struct {
	*testing.T
	dials
	most int
	list map[string]*asking
}

// asking is one who has asked for a turn.
type asking struct {
	x      *dial
	err    error
	done   chan struct{} // closed when x and err are set
	cancel context.CancelFunc
}

// ask has name ask for a connection to the peer of that number, and returns when it waits
// or has begun.
func (t *turns) ask(name string, peer byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &asking{done: make(chan struct{}), cancel: cancel}
	t.list[name] = a
	t.Cleanup(cancel)
	t.mu.Lock()
	before := t.n + t.waiting.Len()
	t.mu.Unlock()
	go func() { // ends when it is its turn, or with the test
		defer close(a.done)
		a.x, a.err = t.begin(ctx, netip.AddrFrom4([4]byte{10, 0, 0, peer}), func() int { return t.most })
	}()
	await.Until(t, 10*time.Second, "it has asked", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.n+t.waiting.Len() > before
	})
}

func (t *turns) end(name string, answered bool) {
	t.Helper()
	a := t.list[name]
	<-a.done
	if a.err != nil {
		t.Fatalf("%s: %v", name, a.err)
	}
	t.dials.end(a.x, answered, t.most)
	delete(t.list, name)
}

// begun checks who is at it: those named, and of the others nobody.
func (t *turns) begun(what string, names ...string) {
	t.Helper()
	t.mu.Lock()
	n := t.n
	t.mu.Unlock()
	if n != len(names) {
		t.Errorf("%s: %d are being made, want %d", what, n, len(names))
	}
	for _, name := range names {
		select {
		case <-t.list[name].done:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: %s waits", what, name)
		}
	}
}

const (
	answered = true
	silence  = false
)

// TestDialShares: no more connections are made at once than may be, of one peer a quarter,
// of those that failed the last time half in all; the others wait in turn, and one that
// may not have its turn keeps nobody else from it.
func TestDialShares(t *testing.T) {
	w := &turns{T: t, most: 8, list: map[string]*asking{}}
	for i := range 3 {
		w.ask(fmt.Sprint("a", i), 1)
	}
	w.begun("one peer has a quarter", "a0", "a1")
	w.ask("b", 2)
	w.begun("another does not wait for its third", "a0", "a1", "b")
	w.end("a1", answered)
	w.begun("a place of its own is its", "a0", "a2", "b")
	w.end("a0", answered)
	w.end("a2", answered)
	w.end("b", answered)
	// Six peers fail. Four of them may be tried again, and all others are there for those
	// that have not failed.
	for i := range 6 {
		w.ask(fmt.Sprint("dead", i), byte(10+i))
	}
	for i := range 6 {
		w.end(fmt.Sprint("dead", i), silence)
	}
	for i := range 6 {
		w.ask(fmt.Sprint("dead", i), byte(10+i))
	}
	w.begun("half for those that failed", "dead0", "dead1", "dead2", "dead3")
	for i := range 5 {
		w.ask(fmt.Sprint("new", i), byte(20+i))
	}
	all := []string{"dead0", "dead1", "dead2", "dead3", "new0", "new1", "new2", "new3"}
	w.begun("the rest for others", all...)
	w.end("dead0", answered)
	w.begun("in turn", append(all[1:], "dead4")...)
	w.end("new0", silence)
	w.begun("in turn, as far as they may", "dead1", "dead2", "dead3", "dead4", "new1", "new2", "new3", "new4")
	w.end("new1", answered)
	w.begun("a fifth that failed waits though there is a place", "dead1", "dead2", "dead3", "dead4", "new2", "new3", "new4")
	w.most = 10
	w.end("new2", answered)
	w.begun("with more in all, half is more", "dead1", "dead2", "dead3", "dead4", "dead5", "new3", "new4")
	for _, n := range []string{"dead1", "dead2", "dead3", "dead4", "dead5", "new3", "new4"} {
		w.end(n, answered)
	}
	// new0 alone failed the last time.
	if w.n != 0 || w.again != 0 || len(w.under) != 0 || w.waiting.Len() != 0 || len(w.failed) != 1 || w.order.Len() != 1 {
		t.Errorf("%d, %d again, %v, %d wait, %d and %d failed", w.n, w.again, w.under, w.waiting.Len(), len(w.failed), w.order.Len())
	}
}

// TestDialGivesUp: whoever waits until its time is over is told what it waited for and is
// counted, and its place in turn is gone.
func TestDialGivesUp(t *testing.T) {
	w := &turns{T: t, most: 1, list: map[string]*asking{}}
	w.ask("first", 1)
	w.ask("second", 2)
	w.ask("third", 3)
	w.list["second"].cancel()
	<-w.list["second"].done
	if err := w.list["second"].err; !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("%v", err)
	}
	w.end("first", answered)
	w.begun("the third", "third")
	if b := w.budget(1); b != (base.Budget{Name: "dials", Used: 1, Limit: 1, Refused: 1}) {
		t.Errorf("%+v", b)
	}
	w.end("third", answered)
}

// TestDialsForget: addresses that fail without an end are forgotten, the oldest first.
func TestDialsForget(t *testing.T) {
	var d dials
	for i := range dialsFailed + 10 {
		x, err := d.begin(context.Background(), netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), func() int { return 4 })
		if err != nil {
			t.Fatal(err)
		}
		d.end(x, silence, 4)
	}
	_, first := d.failed[netip.AddrFrom4([4]byte{10, 1, 0, 9})]
	_, next := d.failed[netip.AddrFrom4([4]byte{10, 1, 0, 10})]
	if len(d.failed) != dialsFailed || d.order.Len() != dialsFailed || first || !next {
		t.Errorf("%d and %d are remembered; the tenth: %v, the one after it: %v", len(d.failed), d.order.Len(), first, next)
	}
}

// TestDialsAreShared: connections of volumes and of datagrams are made in the same turn: what
// volumes are making keeps datagrams of the same peer waiting; a peer that refuses is there,
// and one that says nothing is not.
func TestDialsAreShared(t *testing.T) {
	r := newRegistry(t, func(c *config.Config) { c.Limits.MaxDials = 4 })
	mute, err := net.Listen("tcp", "127.0.0.98:0") // it accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	to := mute.Addr().(*net.TCPAddr).AddrPort()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := r.OneSided()[0].Provider
	over := make(chan error, 1)
	go func() { // ends with ctx
		_, _, err := p.DialOneSided(ctx, netip.AddrPort{}, to, p.NewDomain(), transport.LinkAttr{}, nil)
		over <- err
	}()
	used := func() base.Budget { return r.Budgets()[1] }
	await.Until(t, 10*time.Second, "volumes are connecting", func() bool { return used().Used == 1 })
	short, cancelShort := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancelShort()
	if _, err := r.Frames().Dial(short, netip.MustParseAddrPort("127.0.0.1:0"), to, 0); !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("a connection for datagrams: %v", err)
	}
	if l, _, err := p.DialOneSided(short, netip.AddrPort{}, to, p.NewDomain(), transport.LinkAttr{}, nil); l != nil || !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("another one for volumes: %v, %v", l, err)
	}
	cancel()
	if err := <-over; err == nil {
		t.Error("a mute peer was connected to")
	}
	if _, failed := r.dials.failed[to.Addr()]; !failed || used().Used != 0 || used().Refused != 2 {
		t.Errorf("failed: %v, %+v", failed, used())
	}
	ln, err := p.ListenOneSided(netip.MustParseAddrPort("127.0.0.98:0"), func(q transport.ConnRequest) { q.Reject(nil) })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, _, err = p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
	if _, ok := errors.AsType[*transport.Refused](err); !ok {
		t.Errorf("%v", err)
	}
	if len(r.dials.failed) != 0 {
		t.Error("a peer that answered counts as one that is not there")
	}
}

// TestDialThatPanics: a connection whose making panics gives its turn back, and its peer
// counts as one that is not there.
func TestDialThatPanics(t *testing.T) {
	r := newRegistry(t, func(*config.Config) {})
	p, one := &paced{r: r}, &pacedOneSided{r: r} // without a transport
	ctx := context.Background()
	for name, dial := range map[string]func(to netip.AddrPort){
		"127.0.0.91:1": func(to netip.AddrPort) { p.Dial(ctx, netip.AddrPort{}, to, 0) },
		"127.0.0.92:1": func(to netip.AddrPort) {
			one.DialOneSided(ctx, netip.AddrPort{}, to, r.OneSided()[0].Provider.NewDomain(), transport.LinkAttr{}, nil)
		},
	} {
		to := netip.MustParseAddrPort(name)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v: it did not panic", to)
				}
			}()
			dial(to)
		}()
		if _, failed := r.dials.failed[to.Addr()]; !failed {
			t.Errorf("%v: it counts as one that answered", to)
		}
	}
	if b := r.Budgets()[1]; b.Used != 0 {
		t.Errorf("%d turns are kept", b.Used)
	}
}

// met is a transport whose dials end with what it is told.
type met struct {
	transport.Provider
	transport.OneSidedProvider
	err error
}

func (m *met) Dial(context.Context, netip.AddrPort, netip.AddrPort, int) (transport.Link, error) {
	return nil, m.err
}

func (m *met) DialOneSided(context.Context, netip.AddrPort, netip.AddrPort, transport.Domain, transport.LinkAttr, []byte) (transport.OneSided, []byte, error) {
	return nil, nil, m.err
}

func (m *met) NewDomain() transport.Domain { return nil }

// TestWhoAnswersIsThere: a peer counts as one that is not there after each attempt that nobody
// answered, and no longer after one that somebody did, if only with a refusal.
func TestWhoAnswersIsThere(t *testing.T) {
	r := newRegistry(t, func(*config.Config) {})
	m := &met{}
	p, one := &paced{m, r}, &pacedOneSided{m, r}
	to := netip.MustParseAddrPort("127.0.0.91:1")
	dial := map[string]func() error{
		"frames": func() error { _, err := p.Dial(t.Context(), netip.AddrPort{}, to, 0); return err },
		"one-sided": func() error {
			_, _, err := one.DialOneSided(t.Context(), netip.AddrPort{}, to, nil, transport.LinkAttr{}, nil)
			return err
		},
	}
	gone, refused := errors.New("nobody answers"), error(&transport.Refused{Remote: to})
	for _, s := range []struct {
		kind   string
		err    error
		failed bool
	}{
		{"frames", nil, false}, {"frames", gone, true}, {"frames", gone, true}, {"frames", nil, false},
		{"one-sided", gone, true}, {"one-sided", refused, false}, {"one-sided", gone, true}, {"one-sided", nil, false},
	} {
		m.err = s.err
		if err := dial[s.kind](); err != s.err {
			t.Errorf("%s that end with %v: %v", s.kind, s.err, err)
		}
		if _, failed := r.dials.failed[to.Addr()]; failed != s.failed {
			t.Errorf("%s that end with %v: it counts as not there: %v", s.kind, s.err, failed)
		}
	}
	if b := r.Budgets()[1]; b.Used != 0 {
		t.Errorf("%d turns are kept", b.Used)
	}
}
