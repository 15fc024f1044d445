package nbd

import (
	"net"
	"sync"
	"testing"
	"time"
)

// purse is an account of all connections of a server.
type purse struct {
	mu    sync.Mutex
	limit int
	used  int // guarded by mu
	peak  int // guarded by mu
	grown int // guarded by mu; the most that one Grow took
}

func (p *purse) charge(net.Conn) Charge { return p }

func (p *purse) Take(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+n > p.limit {
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

// back waits until everything was given back.
func (p *purse) back(t *testing.T) {
	t.Helper()
	var used int
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		p.mu.Lock()
		used = p.used
		p.mu.Unlock()
		if used == 0 {
			return
		}
	}
	t.Errorf("%d bytes were not given back", used)
}

// TestHalfRequestsAreCharged: connections that send half a write each, and others
// that ask for reads and take no answer. What they hold stays within what there is,
// a further client is served all the same, and everything is given back.
func TestHalfRequestsAreCharged(t *testing.T) {
	const limit = 6 << 20
	p := &purse{limit: limit}
	// An honest client that has the reserve may have no turn for as long as a busy
	// machine likes; 500 ms is more than has been seen, and few enough are hostile for it.
	_, socket := serve(t, Options{Charge: p.charge, Linger: 500 * time.Millisecond}, Export{Device: memory(t, 64<<20)})
	var hostile []*client
	for range 10 {
		hostile = append(hostile, enter(t, socket, "", false))
	}
	honest := enter(t, socket, "", false)
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
		b := fill(1<<20, 7)
		if r := honest.do(cmdWrite, 0, 0, 1<<20, b); r.value != 0 {
			t.Fatalf("write: %v", r)
		}
		if r := honest.do(cmdRead, 0, 0, 1<<20, nil); r.value != 0 || len(r.data) != 1<<20 {
			t.Fatalf("read: %v", r)
		}
	}
	for _, c := range append(hostile, honest) {
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
