package nbd

import (
	"net"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/reactor"
)

// onThread is a device that counts the batches another thread submits.
type onThread struct {
	counting
	r     *reactor.Reactor
	other int
}

func (d *onThread) Submit(batch []*blk.Request) {
	if !d.r.OnThread() {
		d.other++
	}
	d.counting.Submit(batch)
}

// TestLoop: the thread of the reactor reads and submits, goes on after it had no
// room, and what came together is answered together.
func TestLoop(t *testing.T) {
	if testReactor == nil {
		return // the suite runs a second time, on a reactor (TestMain)
	}
	d := &onThread{counting: counting{Device: memory(t, 1<<20)}, r: testReactor}
	_, socket := serve(t, Options{MaxRequests: 4, MaxBytes: 2 * recvSize}, Export{Device: d})
	c := enter(t, socket, "", false)
	for range 20 {
		var b []byte
		for i := range 32 {
			b = append(b, command(cmdRead, 0, uint64(i), 0, 64<<10, nil)...)
		}
		c.send(b)
		for i := range 32 {
			if r := c.reply(64 << 10); r.value != 0 || r.cookie != uint64(i) {
				t.Fatalf("reply %d: %v", i, r)
			}
		}
	}
	c.send(command(cmdDisc, 0, 0, 0, 0, nil))
	c.wantEnd("after disconnecting")
	if d.other != 0 || d.reads.Load() != 20*32 {
		t.Errorf("%d reads; %d batches came from another thread than the reactor's", d.reads.Load(), d.other)
	}
}

// TestLate: time is up for a client that has some and does not read its replies, and for no other.
func TestLate(t *testing.T) {
	past, future := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	for _, c := range []struct {
		full bool
		due  time.Time
		want bool
	}{
		{true, past, true}, {true, future, false}, {true, time.Time{}, false},
		{false, past, false}, {false, future, false}, {false, time.Time{}, false},
	} {
		l := &loop{c: &conn{s: &fdStream{fd: -1}}, full: c.full, due: c.due}
		if l.late(); l.c.broken.Load() != c.want {
			t.Errorf("%+v: ended %v", c, !c.want)
		}
	}
}

// TestLinger: a client that disconnects and does not read its replies is waited
// for so long and no longer; and the time a device takes does not count.
func TestLinger(t *testing.T) {
	const linger = 100 * time.Millisecond
	f := blk.NewFault(memory(t, 32<<20), 1)
	s, err := NewServer(Options{Linger: linger, Reactor: testReactor})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Add(Export{Device: f}); err != nil {
		t.Fatal(err)
	}
	begin := func() (*client, chan error) {
		ours, theirs := sockets(t)
		done := make(chan error, 1)
		go func(nc net.Conn) { done <- s.ServeKernel(nc, "") }(theirs)
		return &client{t, ours}, done
	}
	c, done := begin()
	began := time.Now()
	c.send(append(command(cmdRead, 0, 1, 0, 16<<20, nil), command(cmdDisc, 0, 0, 0, 0, nil)...))
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the connection of a client that does not read did not end")
	}
	if d := time.Since(began); d < linger {
		t.Errorf("it ended after %v; the client has %v", d, linger)
	}

	f.Add(blk.Rule{Chance: 1, Delay: 3 * linger})
	c, done = begin()
	c.send(append(command(cmdRead, 0, 2, 0, 4096, nil), command(cmdDisc, 0, 0, 0, 0, nil)...))
	if r := c.reply(4096); r.value != 0 || r.cookie != 2 {
		t.Error(r)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
