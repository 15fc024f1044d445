//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/shm"
)

// life ends the daemon of two sockets and begins the next one's.
func (d *ringDaemon) life(t *testing.T, a, b *Socket) {
	t.Helper()
	was := [2]*ringLink{linkOf(a), linkOf(b)}
	d.stop()
	d.start()
	eventually(t, "the next life", func() bool {
		now := [2]*ringLink{linkOf(a), linkOf(b)}
		return now[0] != nil && now[1] != nil && now[0] != was[0] && now[1] != was[1]
	})
}

// volley is datagrams of different lengths, which are a train with a table, and some of one.
func volley(life int) (ds []Datagram) {
	for i := range 8 {
		p := fmt.Appendf(nil, "%d.%d:", life, i)
		if i < 4 {
			p = append(p, make([]byte, 10*i)...)
		}
		ds = append(ds, Datagram{Addr: peerAddr, Payload: p})
	}
	return ds
}

// TestFormerLivesKeepNothing: a program that does not read one of its sockets keeps what came, in order, and
// for no life of the daemon that has ended a descriptor or a mapping.
func TestFormerLivesKeepNothing(t *testing.T) {
	const lives = 30
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	send := func(life int) {
		t.Helper()
		if n, err := a.SendBatch(ctx, volley(life)); n != len(volley(life)) || err != nil {
			t.Fatal(n, err)
		}
		if err := a.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// A part of the first train is read and lent when its life ends.
	send(0)
	into := make([]Datagram, 3)
	n, lease, err := b.Borrow(ctx, into)
	if n == 0 || err != nil {
		t.Fatal(n, err)
	}
	d.life(t, a, b)
	lease.Release()
	fds, maps := openHere(t)
	for life := 1; life <= lives; life++ {
		send(life)
		d.life(t, a, b)
	}
	wantOpenHere(t, fds, maps)
	send(lives + 1)
	for life := 0; life <= lives+1; life++ {
		for i, want := range volley(life) {
			if life == 0 && i < n {
				continue
			}
			got, err := b.Recv(ctx)
			if err != nil || got.Addr != localAddr || !bytes.Equal(got.Payload, want.Payload) {
				t.Fatalf("life %d, datagram %d: %q from %v, %v", life, i, got.Payload, got.Addr, err)
			}
		}
	}
	if r := ringsOf(b); r.left != 0 || r.private != 0 {
		t.Errorf("%d bytes count as unread, %d as kept, and all is read", r.left, r.private)
	}
}

// TestFormerLivesLent: what is borrowed, or reserved, of a life of the daemon that has ended keeps its mapping, and
// no descriptor.
func TestFormerLivesLent(t *testing.T) {
	const lives = 20
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	fds, maps := openHere(t)
	var lent []Datagram
	var leases []Lease
	var slots []*Slot
	for life := range lives {
		if err := a.Send(ctx, peerAddr, fmt.Append(nil, life)); err != nil {
			t.Fatal(err)
		}
		into := make([]Datagram, 1)
		_, l, err := b.Borrow(ctx, into)
		if err != nil {
			t.Fatal(err)
		}
		sl, err := a.Reserve(ctx, peerAddr, 10)
		if err != nil {
			t.Fatal(err)
		}
		lent, leases, slots = append(lent, into[0]), append(leases, l), append(slots, sl)
		d.life(t, a, b)
	}
	wantOpenHere(t, fds, math.MaxInt)
	for life := range lives {
		if string(lent[life].Payload) != fmt.Sprint(life) {
			t.Fatalf("what was borrowed in life %d has become %q", life, lent[life].Payload)
		}
		slots[life].Bytes()[9] = 1
		leases[life].Release()
		slots[life].Abort()
	}
	wantOpenHere(t, fds, maps)
}

// TestFormerLivesAreBounded: who reads nothing over several lives of the daemon is sent less in the next ones, until
// that is read.
func TestFormerLivesAreBounded(t *testing.T) {
	const buffer = 128 << 10
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr, WithRecvBuffer(buffer))
	ctx := testContext(t)
	asked := func() uint64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.socks[peerAddr].binds.GetRecvBufferBytes()
	}
	for i := range manyLeft {
		if got := asked(); got != buffer {
			t.Fatalf("life %d: a buffer of %d bytes is asked for", i, got)
		}
		if err := a.Send(ctx, peerAddr, make([]byte, buffer)); err != nil {
			t.Fatal(err)
		}
		if err := a.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		d.life(t, a, b)
	}
	for range 2 { // also after a life with the small one
		if got := asked(); got != leastLeft {
			t.Fatalf("with %d buffers unread one of %d bytes is asked for", manyLeft, got)
		}
		d.life(t, a, b)
	}
	for range manyLeft {
		if got, err := b.Recv(ctx); err != nil || len(got.Payload) != buffer {
			t.Fatal(len(got.Payload), err)
		}
	}
	d.life(t, a, b)
	if got := asked(); got != buffer {
		t.Errorf("all is read, and a buffer of %d bytes is asked for", got)
	}
}

// TestFormerPairTakesWhatItNeeds: the small records of a pair are kept in little more memory than they have.
func TestFormerPairTakesWhatItNeeds(t *testing.T) {
	d := newRingDaemon(t)
	s := d.bindRing(localAddr)
	_, out := pairFrom(t, s, 7, peerAddr)
	n := 0
	for ; out.Begin(8) != nil && out.Put(8, 1); n++ {
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	was, l := heap(), linkOf(s)
	d.stop()
	eventually(t, "the end of the link", func() bool { return linkOf(s) != l })
	if now := heap(); now > was+uint64(n)*1024+1<<20 {
		t.Errorf("%d records of 8 bytes are kept in %d bytes", n, now-was)
	}
	d.start()
	for i := range n {
		if got, err := s.Recv(testContext(t)); err != nil || len(got.Payload) != 8 {
			t.Fatal(i, len(got.Payload), err)
		}
	}
}

// TestDoorbellOfDaemonThatLives: while a daemon lives it charges for a region until the doorbell is closed, which
// is therefore not before the region is unmapped.
func TestDoorbellOfDaemonThatLives(t *testing.T) {
	alarm, ear, err := shm.NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	var b doorbell
	if err := b.open(ear); err != nil {
		unix.Close(ear)
		t.Fatal(err)
	}
	defer b.close()
	if alarm.Mute(); b.quiet() || b.kick >= 0 || alarm.LetGo() {
		t.Error("the doorbell is let go of while the daemon lives")
	}
	alarm.Close()
	if !b.quiet() || b.fd >= 0 {
		t.Error("the doorbell of a daemon that is gone is kept")
	}
}
