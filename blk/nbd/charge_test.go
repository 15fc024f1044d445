package nbd

import (
	"net"
	"sync"
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

// TestSlowStoreIsNotTheClient: who has the one place for requests without memory, and
// whose store takes its time, is not ended for that when its client then is slower
// than its socket; its client has the time that Linger gives, all waits together, and
// not one that is as long.
func TestSlowStoreIsNotTheClient(t *testing.T) {
	const linger = 400 * time.Millisecond
	p := &purse{limit: connMemory * 2}
	f := blk.NewFault(memory(t, 64<<20), 1)
	_, socket := serve(t, Options{Charge: p.charge, Linger: linger}, Export{Device: f})
	slow, other := enter(t, socket, "", false), enter(t, socket, "", false)
	f.Add(blk.Rule{Count: 1, Delay: 2 * linger})
	began := time.Now()
	takes := func(n uint64, size uint32) { // and has the place
		for p.held() > 2*connMemory { // the one before
			time.Sleep(time.Millisecond)
		}
		slow.send(command(cmdRead, 0, n, 0, size, nil))
		for p.held() <= 2*connMemory {
			time.Sleep(time.Millisecond)
		}
	}
	takes(1, 4<<20)
	other.send(command(cmdRead, 0, 2, 0, 4<<20, nil)) // and this one wants it, every 5 ms
	if _, err := slow.nc.Read(make([]byte, 1)); err != nil || time.Since(began) < 2*linger {
		t.Fatalf("the first byte after %v: %v", time.Since(began), err)
	}
	time.Sleep(linger / 8) // its socket is full
	slow.recv(16 + 4<<20 - 1) // of a simple reply
	if r := other.reply(4 << 20); r.value != 0 {
		t.Errorf("the next one: %v", r)
	}
	// Now by drops, each well below linger.
	takes(3, 16<<20)
	other.send(command(cmdRead, 0, 4, 0, 4<<20, nil))
	b := make([]byte, 64<<10)
	began = time.Now()
	for {
		if _, err := slow.nc.Read(b); err != nil {
			break
		}
		time.Sleep(linger / 16)
		if time.Since(began) > 20*linger {
			t.Fatal("a client that reads by drops has the place for as long as it likes")
		}
	}
	if r := other.reply(4 << 20); r.value != 0 {
		t.Errorf("who waited for a client that reads by drops: %v", r)
	}
	slow.nc.Close()
	other.nc.Close()
	p.back(t)
}
