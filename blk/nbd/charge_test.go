package nbd

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// purse is an account of all connections of a server.
type purse struct {
	mu    sync.Mutex
	limit int
	used  int // guarded by mu
	peak  int // guarded by mu
	grown int // guarded by mu; the most that one Grow took
	noes  int // guarded by mu; Takes that were refused
}

func (p *purse) charge(net.Conn) Charge { return p }

func (p *purse) Take(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+n > p.limit {
		p.noes++
		return false
	}
	p.used += n
	p.peak = max(p.peak, p.used)
	return true
}

func (p *purse) Grow(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used += n
	p.peak, p.grown = max(p.peak, p.used), max(p.grown, n)
}

func (p *purse) Give(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
}

func (p *purse) Close() {}

func (p *purse) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// back waits until everything was given back.
func (p *purse) back(t *testing.T) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if p.held() == 0 {
			return
		}
	}
	t.Errorf("%d bytes were not given back", p.held())
}

func (p *purse) refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noes
}

// grower is the purse as the account of one connection, which is told when that
// connection was given the reserve.
type grower struct {
	*purse
	at atomic.Pointer[time.Time]
}

func (g *grower) Grow(n int) {
	now := time.Now()
	g.at.Store(&now)
	g.purse.Grow(n)
}

// honest is a client that does as it should, and connects anew when it had the reserve
// for longer than linger: on a busy machine that may have been too long without a turn.
type honest struct {
	t      *testing.T
	socket string
	linger time.Duration
	latest *atomic.Pointer[grower] // the account of the connection opened last
	nc     *client
}

// do sees one request through.
func (h *honest) do(cmd uint16, n uint32, payload []byte) {
	h.t.Helper()
	for {
		if h.nc == nil {
			h.nc = enter(h.t, h.socket, "", false)
		}
		g := h.latest.Load()
		g.at.Store(nil)
		reply := make([]byte, 16)
		if cmd == cmdRead {
			reply = make([]byte, 16+n)
		}
		_, err := h.nc.nc.Write(command(cmd, 0, 0, 0, n, payload))
		if err == nil {
			_, err = io.ReadFull(h.nc.nc, reply)
		}
		if err == nil {
			if e := binary.BigEndian.Uint32(reply[4:]); e != 0 {
				h.t.Fatalf("command %d: error %d", cmd, e)
			}
			return
		}
		if at := g.at.Load(); at == nil || time.Since(*at) < h.linger {
			h.t.Fatalf("command %d: %v; it had the reserve from %v, and that is no %v", cmd, err, at, h.linger)
		}
		h.nc.nc.Close()
		h.nc = nil
	}
}

// TestHalfRequestsAreCharged: connections that send half a write each, and others
// that ask for reads and take no answer. What they hold stays within what there is,
// a further client is served all the same, and everything is given back.
func TestHalfRequestsAreCharged(t *testing.T) {
	const limit = 6 << 20
	const linger = 200 * time.Millisecond
	p := &purse{limit: limit}
	var latest atomic.Pointer[grower]
	charge := func(net.Conn) Charge {
		g := &grower{purse: p}
		latest.Store(g)
		return g
	}
	_, socket := serve(t, Options{Charge: charge, Linger: linger}, Export{Device: memory(t, 64<<20)})
	var hostile []*client
	for range 10 {
		hostile = append(hostile, enter(t, socket, "", false))
	}
	good := &honest{t: t, socket: socket, linger: linger, latest: &latest, nc: enter(t, socket, "", false)}
	for i, c := range hostile {
		if i%2 == 0 {
			c.nc.Write(command(cmdWrite, 0, 1, 0, 1<<20, make([]byte, 64<<10))) // it may have been ended
			continue
		}
		var b []byte
		for k := range uint64(200) {
			b = append(b, command(cmdRead, 0, k, 0, 256<<10, nil)...)
		}
		c.nc.Write(b)
	}
	for range 3 {
		good.do(cmdWrite, 1<<20, fill(1<<20, 7))
		good.do(cmdRead, 1<<20, nil)
	}
	for _, c := range append(hostile, good.nc) {
		c.nc.Close()
	}
	p.back(t)
	if p.peak > limit+2<<20 {
		t.Errorf("%d bytes were held, %d allowed and one request of 1 MiB", p.peak, limit)
	}
	if p.peak < limit/2 {
		t.Errorf("no more than %d bytes were held: this does not test what it says", p.peak)
	}
}

// TestSlowStoreIsNotTheClient: a request that has the reserve stays at the store for
// longer than a client may take, while another waits for memory. Its client takes the
// answer in time, and gets it.
func TestSlowStoreIsNotTheClient(t *testing.T) {
	const linger, size = 300 * time.Millisecond, 8 << 20
	for range 20 {
		p := &purse{limit: 2 * connMemory}
		f := &faulty{Device: memory(t, 64<<20), hold: true}
		s, socket := serve(t, Options{Charge: p.charge, Linger: linger}, Export{Device: f})
		slow, other := enter(t, socket, "", false), enter(t, socket, "", false)
		slow.send(command(cmdRead, 0, 1, 0, size, nil))
		taken := func() []*blk.Request {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.held
		}
		waitFor(t, "the store to have it", func() bool { return len(taken()) == 1 })
		begun := time.Now()
		other.send(command(cmdRead, 0, 2, 0, size, nil))
		waitFor(t, "the store to have taken too long for a client", func() bool { return time.Since(begun) > linger })
		f.mu.Lock()
		f.hold = false
		f.mu.Unlock()
		answered := time.Now()
		f.Device.Submit(taken())
		waitFor(t, "the answer to fill the socket", func() bool {
			c := s.reserve.Load()
			return c != nil && c.stuck.since.Load() != 0
		})
		noes := p.refused()
		waitFor(t, "the other to have asked again", func() bool { return p.refused() > noes+2 })
		_, err := io.ReadFull(slow.nc, make([]byte, 16+size))
		took := time.Since(answered)
		if err != nil && took >= linger {
			continue // nobody can tell on a machine as busy as this
		}
		if err != nil {
			t.Fatalf("ended %v after the store had answered, although it may take %v: %v", took, linger, err)
		}
		if r := other.reply(size); r.value != 0 {
			t.Errorf("the other one: %v", r)
		}
		slow.nc.Close()
		other.nc.Close()
		p.back(t)
		return
	}
	t.Error("the answer was not taken in time in any of 20 attempts")
}

// TestNoMemoryForRequests: nothing can be had at all. Requests of any size are
// carried out one after the other.
func TestNoMemoryForRequests(t *testing.T) {
	p := &purse{}
	_, socket := serve(t, Options{Charge: p.charge}, Export{Device: memory(t, 64<<20)})
	c := enter(t, socket, "", false)
	for _, n := range []int{4096, 100 << 10, 1 << 20, maxPayload} {
		b := fill(n, byte(n>>9))
		if r := c.do(cmdWrite, 0, 0, uint32(n), b); r.value != 0 {
			t.Fatalf("write of %d: %v", n, r)
		}
	}
	var b []byte
	const reads = 64
	for k := range uint64(reads) {
		b = append(b, command(cmdRead, 0, k, 0, 256<<10, nil)...)
	}
	c.send(b)
	for range reads {
		c.recv(16 + 256<<10)
	}
	p.mu.Lock()
	if p.grown > maxPayload {
		t.Errorf("%d bytes were taken at once, want one request at a time", p.grown)
	}
	p.mu.Unlock()
	d, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := d.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a second connection, for which there is no memory, was greeted")
	}
	c.nc.Close()
	p.back(t)
}

// TestDropsAddUp: who has the one place for requests without memory and takes the
// answer by drops has the time that Linger gives for all of them together.
func TestDropsAddUp(t *testing.T) {
	const linger = 400 * time.Millisecond
	p := &purse{limit: connMemory * 2}
	_, socket := serve(t, Options{Charge: p.charge, Linger: linger}, Export{Device: memory(t, 64<<20)})
	slow, other := enter(t, socket, "", false), enter(t, socket, "", false)
	slow.send(command(cmdRead, 0, 3, 0, 16<<20, nil))
	waitFor(t, "it to have the place", func() bool { return p.held() > 2*connMemory })
	other.send(command(cmdRead, 0, 4, 0, 4<<20, nil))
	b := make([]byte, 64<<10)
	for left := 16 + 16<<20; ; time.Sleep(linger / 16) {
		n, err := slow.nc.Read(b)
		if left -= n; left == 0 {
			t.Fatal("a client that reads by drops has the place for as long as it likes")
		}
		if err != nil {
			break
		}
	}
	if r := other.reply(4 << 20); r.value != 0 {
		t.Errorf("who waited for a client that reads by drops: %v", r)
	}
	slow.nc.Close()
	other.nc.Close()
	p.back(t)
}
