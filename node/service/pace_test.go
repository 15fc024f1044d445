package service

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

func pacedTable(perSecond float64) *callTable {
	return &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}, perSecond: func() float64 { return perSecond }}
}

// readAll reads until nothing is left and returns what was read at once at most.
func readAll(t *testing.T, c *callConn, s *scripted) (most int) {
	t.Helper()
	buf := make([]byte, 32<<10)
	for len(s.in) > 0 {
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
	}
	return most
}

// TestCallsArePaced: what begins calls is read at twice the pace a user may make
// them, over all of its connections together, and other users are not held up.
func TestCallsArePaced(t *testing.T) {
	n := quota.New(1<<30, nil)
	table := pacedTable(1000)
	conn := func(uid uint32, in []byte) (*callConn, *scripted) {
		s := &scripted{in: append(make([]byte, prefaceSize), in...)}
		c := table.wrap(s, config.Identity{UID: uid}, n.Account(quota.User(uid)), func() {})
		t.Cleanup(func() { c.Close() })
		return c, s
	}
	call := h2frame(frameHeaders, 1, bytes.Repeat([]byte("x"), 40))
	const calls = 600 // 0.3 s of them, and 64 at once
	a, from := conn(1, bytes.Repeat(call, calls/2))
	b, beside := conn(1, bytes.Repeat(call, calls/2))
	begun := time.Now()
	readAll(t, a, from)
	a.Close() // to connect anew pays for nothing
	readAll(t, b, beside)
	table.sweep(time.Now())
	// The first read brings what it brings; the next one is after its time.
	c, more := conn(1, bytes.Repeat(call, 2))
	more.in = more.in[:len(more.in)-len(call)]
	readAll(t, c, more)
	more.in = call
	readAll(t, c, more)
	if took, least := time.Since(begun), (calls-paceBurst)*time.Second/2000; took < least {
		t.Errorf("%d calls of a user who may make 1,000 a second were read in %v, not %v and more", calls, took, least)
	}
	// Whoever owes an hour: another user's calls, and its own messages, come at once.
	a.pace.pay(3600*2000*paceCall, 1000, time.Now())
	d, other := conn(2, call)
	readAll(t, d, other)
	e, data := conn(1, bytes.Repeat(h2frame(frameData, 1, make([]byte, 1000)), 1000))
	if most := readAll(t, e, data); most < 16<<10 {
		t.Errorf("messages are read by %d bytes", most)
	}
}

// TestPaceEndsWithTheConnection: a reader that is held up ends when its connection is closed.
func TestPaceEndsWithTheConnection(t *testing.T) {
	n := quota.New(1<<30, nil)
	s := &scripted{in: append(make([]byte, prefaceSize), h2frame(frameHeaders, 1, []byte("x"))...)}
	c := pacedTable(1000).wrap(s, config.Identity{UID: 1}, n.Account(quota.User(1)), func() {})
	buf := make([]byte, 1<<10)
	if _, err := c.Read(buf); err != nil {
		t.Fatal(err)
	}
	c.pace.pay(3600*2000*paceCall, 1000, time.Now())
	done := make(chan struct{})
	go func() { // ends with the read
		defer close(done)
		c.Read(buf)
	}()
	c.Close()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("held up for ever")
	}
}
