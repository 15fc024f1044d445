package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// flow is datagrams from one socket to another, and the account of them.
type flow struct {
	what     string
	from, to netip.AddrPort
	sock     *rdsd.Socket // of the sender
	bytes    int

	seq                                   uint64 // owned by the sender
	accepted, refused                     atomic.Uint64
	delivered, cancelled, failed, unknown atomic.Uint64
	received, disorder                    atomic.Uint64
	wakes                                 chan struct{} // poked when received moves
}

func newFlow(what string, sock *rdsd.Socket, to netip.AddrPort, bytes int) *flow {
	return &flow{what: what, from: sock.LocalAddr(), to: to, sock: sock, bytes: bytes, wakes: make(chan struct{}, 1)}
}

func (f *flow) payload() []byte {
	p := make([]byte, max(f.bytes, 8))
	binary.BigEndian.PutUint64(p, f.seq)
	return p
}

// send gives one datagram to the daemon: at once if it can, otherwise it waits
// for the destination to clear. congested is called when it has to wait.
func (f *flow) send(ctx context.Context, congested func()) error {
	p := f.payload()
	err := f.sock.TrySend(f.to, p)
	if errors.Is(err, rdserr.ErrCongested) || errors.Is(err, rdserr.ErrWouldBlock) {
		f.refused.Add(1)
		if congested != nil && errors.Is(err, rdserr.ErrCongested) {
			congested()
		}
		err = f.sock.Send(ctx, f.to, p)
	}
	if err != nil {
		return err
	}
	f.seq++
	f.accepted.Add(1)
	return nil
}

// took checks that what was received is the next of this flow.
func (f *flow) took(p []byte) {
	n := f.received.Add(1)
	if len(p) < 8 || binary.BigEndian.Uint64(p) != n-1 {
		f.disorder.Add(1)
	}
	select {
	case f.wakes <- struct{}{}:
	default:
	}
}

// decided is how many accepted datagrams have their outcome.
func (f *flow) decided() uint64 {
	return f.delivered.Load() + f.cancelled.Load() + f.failed.Load() + f.unknown.Load()
}

// settled reports whether every datagram has its outcome, and those delivered
// were read.
func (f *flow) settled() bool {
	return f.decided() >= f.accepted.Load() && f.received.Load() >= f.delivered.Load()
}

// count takes the outcomes of a sending socket until ctx ends.
func (f *flow) count(ctx context.Context) {
	for o, err := range f.sock.Outcomes(ctx) {
		if err != nil {
			return
		}
		switch o.Kind {
		case rdsd.Delivered:
			f.delivered.Add(1)
		case rdsd.Cancelled:
			f.cancelled.Add(1)
		case rdsd.Failed:
			f.failed.Add(1)
		default:
			f.unknown.Add(1)
		}
	}
}

// gate lets a reader through, or not.
type gate struct {
	mu     sync.Mutex
	open   chan struct{} // closed while the gate is open
	isOpen bool
}

func newGate() *gate {
	g := &gate{open: make(chan struct{}), isOpen: true}
	close(g.open)
	return g
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if open == g.isOpen {
		return
	}
	g.isOpen = open
	if open {
		close(g.open)
	} else {
		g.open = make(chan struct{})
	}
}

func (g *gate) pass(ctx context.Context) bool {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-open:
		return true
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
