package nbd

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
)

// faulty is a device whose next request comes back as nobody's, which makes whoever is
// told panic, and whose next Map panics; it tells how many requests it holds.
type faulty struct {
	blk.Device
	mu    sync.Mutex
	spoil bool
	maps  bool
	held  []*blk.Request
	hold  bool
	// refuse fails requests with an error whose text panics when it is asked for.
	refuse bool
}

func (f *faulty) Submit(batch []*blk.Request) {
	f.mu.Lock()
	hold, spoil := f.hold, f.spoil
	f.spoil = false
	if f.refuse {
		f.mu.Unlock()
		for _, r := range batch {
			r.Err = untold{}
		}
		blk.Complete(batch)
		return
	}
	if hold && !spoil {
		f.held = append(f.held, batch...)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	if !spoil {
		f.Device.Submit(batch)
		return
	}
	batch = slices.Clone(batch) // the slice is the caller's again when this returns
	go func() {                 // as a worker of a store does
		for _, r := range batch {
			r.Ctx = nil
		}
		blk.Complete(batch)
	}()
}

func (f *faulty) Map(off, n uint64, out []blk.Extent) ([]blk.Extent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.maps {
		f.maps = false
		panic("in a map")
	}
	return append(out, blk.Extent{Len: n}), nil
}

func faultyServer(t *testing.T) (f *faulty, g *guard.Guard, p *purse, socket string) {
	var log bytes.Buffer
	g = &guard.Guard{Log: slog.New(slog.NewTextHandler(&log, nil)), Exit: func(int) { panic("the process would end") }}
	f = &faulty{Device: memory(t, 1<<20)}
	p = &purse{limit: 64 << 20}
	_, socket = serve(t, Options{Guard: g, Charge: p.charge}, Export{Device: f})
	return f, g, p, socket
}

// TestPanicOfACompletion: a panic while a connection is told of a completion is the end
// of that connection, which gives back all it holds; others are served, before and after.
func TestPanicOfACompletion(t *testing.T) {
	f, g, p, socket := faultyServer(t)
	other := enter(t, socket, "", true)
	c := enter(t, socket, "", true)
	f.mu.Lock()
	f.hold = true
	f.mu.Unlock()
	c.nc.Write(command(cmdWrite, 0, 1, 0, 64<<10, make([]byte, 64<<10)))
	waitFor(t, "a write is at the device", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.held) == 1 })
	f.mu.Lock()
	f.spoil = true
	f.mu.Unlock()
	c.nc.Write(command(cmdRead, 0, 2, 0, 4096, nil))
	waitFor(t, "the panic is counted", func() bool { return g.Count(guard.Volume) == 1 })
	if n, err := c.nc.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the connection goes on: %d bytes, %v", n, err)
	}
	f.mu.Lock()
	f.hold = false
	held := f.held
	f.mu.Unlock()
	other.nc.Write(command(cmdRead, 0, 3, 0, 4096, nil))
	if n, err := other.nc.Read(make([]byte, 1)); n != 1 {
		t.Errorf("another connection: %v", err)
	}
	f.Device.Submit(held) // what the connection has waited for
	other.nc.Close()
	p.back(t)
}

// TestPanicOfALookUp: a panic in a command that waits for the medium in a call fails
// that command.
func TestPanicOfALookUp(t *testing.T) {
	f, g, p, socket := faultyServer(t)
	c := enter(t, socket, "", true)
	f.mu.Lock()
	f.maps = true
	f.mu.Unlock()
	if r := c.do(cmdBlockStatus, 0, 0, 4096, nil); r.value != errIO {
		t.Errorf("block status: %v", r)
	}
	if r := c.do(cmdBlockStatus, 0, 0, 4096, nil); r.value != 0 {
		t.Errorf("block status once more: %v", r)
	}
	if n := g.Count(guard.Volume); n != 1 {
		t.Errorf("%d panics counted", n)
	}
	c.nc.Close()
	p.back(t)
}

// untold is an error that cannot even be put into words.
type untold struct{}

func (untold) Error() string { panic("in an error's text") }

// TestPanicOfAReply: a panic while a reply is being written is counted and is the end of
// that connection, which gives back all it holds, the reply that was lost included.
func TestPanicOfAReply(t *testing.T) {
	f, g, p, socket := faultyServer(t)
	other := enter(t, socket, "", true)
	c := enter(t, socket, "", true)
	f.mu.Lock()
	f.refuse = true
	f.mu.Unlock()
	c.nc.Write(command(cmdRead, 0, 1, 0, 64<<10, nil))
	waitFor(t, "the panic is counted", func() bool { return g.Count(guard.Volume) == 1 })
	if n, err := c.nc.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the connection goes on: %d bytes, %v", n, err)
	}
	if r := other.do(cmdBlockStatus, 0, 0, 4096, nil); r.value != 0 {
		t.Errorf("another connection: %v", r)
	}
	other.nc.Close()
	p.back(t)
}

// panickyConn panics when it is read.
type panickyConn struct{ net.Conn }

func (panickyConn) Read([]byte) (int, error) { panic("while a client is read") }

// TestPanicOfANegotiation: a panic during a client's negotiation is the end of that
// client, counted once, and whoever serves it is told why.
func TestPanicOfANegotiation(t *testing.T) {
	g := &guard.Guard{Log: slog.New(slog.DiscardHandler), Exit: func(int) { panic("the process would end") }}
	s, socket := serve(t, Options{Guard: g}, Export{Device: memory(t, 1<<20)})
	client, server := net.Pipe()
	go io.Copy(io.Discard, client) // ends with server, which ServeConn closes
	if err := s.ServeConn(panickyConn{server}); err == nil || !strings.Contains(err.Error(), "a panic in the work for this volume") {
		t.Errorf("ServeConn: %v", err)
	}
	if n := g.Count(guard.Volume); n != 1 {
		t.Errorf("%d panics counted", n)
	}
	client.Close()
	enter(t, socket, "", true).nc.Close() // others are served
}

// TestTheReserveOutlivesAFault: a connection that ends by a panic while its request was taken
// without memory for it leaves the next one that there is for others.
func TestTheReserveOutlivesAFault(t *testing.T) {
	const size = 8 << 20
	g := &guard.Guard{Log: slog.New(slog.DiscardHandler), Exit: func(int) { panic("the process would end") }}
	f := &faulty{Device: memory(t, 2*size), spoil: true}
	p := &purse{limit: 2 * connMemory}
	s, socket := serve(t, Options{Guard: g, Charge: p.charge, Linger: time.Hour}, Export{Device: f})
	c, other := enter(t, socket, "", false), enter(t, socket, "", false)
	c.send(command(cmdRead, 0, 1, 0, size, nil))
	c.wantEnd("after a panic")
	waitFor(t, "the reserve is nobody's", func() bool { return s.reserve.Load() == nil })
	other.send(command(cmdRead, 0, 2, 0, size, nil))
	if r := other.reply(size); r.value != 0 {
		t.Errorf("the other one: %v", r)
	}
	other.nc.Close()
	p.back(t)
}
