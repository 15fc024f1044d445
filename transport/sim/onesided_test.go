package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/transporttest"
)

// provider steps the clock while it dials.
type provider struct{ *OneSided }

func (p provider) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (l transport.OneSided, rsp []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	over, n := false, p.h.n
	p.Dial(local.Port(), remote.Addr(), 30*time.Second, d, attr, private, func(k transport.OneSided, r []byte, e error) {
		l, rsp, err, over = k, r, e, true
	})
	for limit := n.now + time.Minute; !over; {
		if !n.Step(limit) {
			return nil, nil, ErrTimeout
		}
	}
	return l, rsp, err
}

func (p provider) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	p.Listen(accept)
	return listener{p.h, local}, nil
}

type listener struct {
	h    *Host
	addr netip.AddrPort
}

func (l listener) Addr() netip.AddrPort { return l.addr }
func (l listener) Close() error         { l.h.Accept = nil; return nil }

func TestOneSidedConformance(t *testing.T) {
	for _, v := range []struct {
		name string
		p    Profile
		dev  Device
	}{
		{"a device", Profile{Latency: time.Millisecond, SndBuf: 1 << 20, RcvBuf: 1 << 20},
			Device{Late: 5 * time.Millisecond, Slow: 5 * time.Millisecond, Nowhere: true, Blind: true, Pinned: true, Unguarded: true}},
		{"a device that tells", Profile{Latency: time.Millisecond, SndBuf: 1 << 20, RcvBuf: 1 << 20}, Device{Late: 5 * time.Millisecond}},
		{"fair", Profile{Latency: time.Millisecond, SndBuf: 1 << 20, RcvBuf: 1 << 20}, Device{}},
		{"chopped", Profile{Latency: time.Millisecond, Jitter: time.Millisecond, SndBuf: 1 << 16, RcvBuf: 5000, Chop: 1, Loss: 0.01, AckDelay: time.Millisecond}, Device{}},
	} {
		t.Run(v.name, func(t *testing.T) {
			n := NewNet(&Clock{}, rand.New(rand.NewSource(1)), v.p)
			a, b := n.AddHost(addrA), n.AddHost(addrB)
			transporttest.RunOneSided(t, transporttest.OneSided{A: provider{NewDevice(a, v.dev)}, B: provider{NewDevice(b, v.dev)},
				AddrA: netip.AddrPortFrom(addrA, 0), AddrB: netip.AddrPortFrom(addrB, 0),
				Step: func() {
					for range 10 {
						n.Step(n.Now() + time.Millisecond)
					}
				}})
		})
	}
}

// recorder is a handler that notes what is called.
type recorder struct {
	log []string
	end error
}

func (r *recorder) Begin()   {}
func (r *recorder) End()     {}
func (r *recorder) Sent(int) {}
func (r *recorder) Written(w transport.Placed) error {
	r.log = append(r.log, fmt.Sprint("written ", w.N, w.Imm))
	return nil
}
func (r *recorder) Received(data []byte, imm uint32, _ bool) error {
	r.log = append(r.log, fmt.Sprint("received ", len(data), imm))
	return nil
}
func (r *recorder) Invalidated(key uint32, _ int) error {
	r.log = append(r.log, fmt.Sprint("invalidated ", key))
	return nil
}
func (r *recorder) Revoked(uint32, int) error { panic("the simulated links revoke at once") }
func (r *recorder) Closed(err error)          { r.end = err }

// oneTwo is a world of two hosts with a one-sided link between them.
type oneTwo struct {
	*Net
	ha, hb *Host
	a, b   *link
	ra, rb *recorder
	db     transport.Domain
}

func newOneTwo(t *testing.T, seed int64, p Profile) *oneTwo {
	t.Helper()
	w := &oneTwo{Net: NewNet(&Clock{}, rand.New(rand.NewSource(seed)), p), ra: &recorder{}, rb: &recorder{}}
	w.ha, w.hb = w.AddHost(addrA), w.AddHost(addrB)
	pa, pb := NewOneSided(w.ha), NewOneSided(w.hb)
	w.db = pb.NewDomain()
	pb.Listen(func(q transport.ConnRequest) {
		l, err := q.Accept(w.db, transport.LinkAttr{}, nil)
		if err != nil {
			t.Error(err)
			return
		}
		w.b = l.(*link)
		l.Start(w.rb, transport.MaxSend)
	})
	pa.Dial(40000, addrB, 10*time.Second, pa.NewDomain(), transport.LinkAttr{}, nil, func(l transport.OneSided, _ []byte, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		w.a = l.(*link)
		l.Start(w.ra, transport.MaxSend)
	})
	w.run(5 * time.Second)
	if w.a == nil || w.b == nil {
		t.Fatal("no link")
	}
	return w
}

func (w *oneTwo) run(d time.Duration) {
	for end := w.Now() + d; w.Step(end); {
	}
}

// TestOneSidedCutInsideAWrite: the connection breaks while a write is placed,
// at every stage of it; the memory outside is untouched, and the write's key is
// busy until the link has ended.
func TestOneSidedCutInsideAWrite(t *testing.T) {
	p := fair()
	p.SndBuf, p.RcvBuf = 1<<14, 1<<14
	partial := 0
	for seed := range int64(60) {
		w := newOneTwo(t, seed, p)
		mem := make([]byte, 200<<10)
		key, addr := w.db.Register(mem[1000 : 199<<10])
		data := bytes.Repeat([]byte{1}, 190<<10)
		w.a.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr + 1000, Data: data})
		w.a.Flush()
		w.run(time.Duration(seed) * time.Millisecond)
		under := w.b.in.Partial() && len(w.rb.log) == 0
		idle := w.db.Revoke(key) == transport.Idle
		if under && w.b.in.Partial() && bytes.Contains(mem, []byte{1}) {
			partial++
			if idle {
				t.Fatalf("seed %d: idle with a write under way", seed)
			}
		}
		placed := bytes.Count(mem, []byte{1})
		if seed%2 == 0 {
			w.a.End().Break(false)
		}
		w.run(time.Minute)
		if under && w.rb.end == nil {
			t.Fatalf("seed %d: the link of a revoked write goes on", seed)
		}
		if bytes.Count(mem, []byte{1}) != placed || bytes.Contains(mem[:2000], []byte{1}) {
			t.Fatalf("seed %d: bytes were placed behind Revoke, or outside", seed)
		}
	}
	if partial < 10 {
		t.Errorf("only %d of 60 runs met a write under way", partial)
	}
}

// TestOneSidedRepeats: the same seed, the same run.
func TestOneSidedRepeats(t *testing.T) {
	p := fair()
	p.Chop, p.Loss, p.Jitter, p.RcvBuf = 1, 0.05, time.Millisecond, 3000
	run := func() string {
		w := newOneTwo(t, 7, p)
		mem := make([]byte, 100000)
		key, addr := w.db.Register(mem)
		for i := range uint32(200) {
			w.a.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: mem[:i*37%5000], Imm: i})
			w.b.Post(&transport.Op{Kind: transport.OpSendImm, Imm: i, Data: mem[:i]})
			w.a.Flush()
			w.b.Flush()
			w.run(time.Millisecond)
		}
		w.a.Post(&transport.Op{Kind: transport.OpSendInval, Key: key})
		w.a.Flush()
		w.run(time.Minute)
		w.hb.Kill()
		w.run(time.Minute)
		if len(w.rb.log) != 201 || w.rb.end != nil || w.ra.end == nil {
			t.Errorf("%d events, ended with %v and %v", len(w.rb.log), w.rb.end, w.ra.end)
		}
		return fmt.Sprint(w.ra.log, w.rb.log, w.ra.end, key, addr, w.Ran())
	}
	if a, b := run(), run(); a != b {
		t.Error("two runs of one seed differ")
	}
}

// TestOneSidedSlowWorld: requests that meet silence.
func TestOneSidedSlowWorld(t *testing.T) {
	n := NewNet(&Clock{}, rand.New(rand.NewSource(1)), fair())
	ha, hb := n.AddHost(addrA), n.AddHost(addrB)
	pa := NewOneSided(ha)
	hb.Accept = func(*End, netip.AddrPort) {} // takes the connection and says nothing
	var got error
	pa.Dial(1, addrB, 3*time.Second, pa.NewDomain(), transport.LinkAttr{}, nil, func(_ transport.OneSided, _ []byte, err error) { got = err })
	for n.Step(10 * time.Second) {
	}
	if got != ErrTimeout {
		t.Errorf("nobody answers: %v", got)
	}
	asked := false
	NewOneSided(hb).Listen(func(transport.ConnRequest) { asked = true })
	var e *End
	ha.Dial(2, addrB, time.Second, func(x *End, err error) { e = x })
	for n.Step(20 * time.Second) {
	}
	if over, _ := e.Ended(); !over || asked {
		t.Errorf("a connection that shows nothing lives on, or was a request: %v", asked)
	}
}
