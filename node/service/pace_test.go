package service

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
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
	c, more := conn(1, call)
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
	table := pacedTable(1000)
	c := table.wrap(s, config.Identity{UID: 1}, n.Account(quota.User(1)), func() {})
	c.pace.pay(3600*2000*paceCall, 1000, time.Now())
	owed := c.pace.due(1000, time.Now())
	done := make(chan error)
	go func() { // ends with the read
		n, err := c.Read(make([]byte, 1<<10))
		if n != 0 {
			err = fmt.Errorf("%d bytes are handed on", n)
		}
		done <- err
	}()
	c.Close()
	select {
	case err := <-done:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("held up for ever")
	}
	// What was handed on to nobody is not owed, and is no news for the log.
	if now := c.pace.due(1000, time.Now()); now > owed || table.count.ClientsRefused.Load() != 0 {
		t.Errorf("%v are owed, %v were; %d refused", now, owed, table.count.ClientsRefused.Load())
	}
}

// TestConnectingAnewIsPaced: as many connections as a user likes, each of which brings many calls
// with its first read, bring them at the pace of one.
func TestConnectingAnewIsPaced(t *testing.T) {
	n := quota.New(1<<30, nil)
	table := pacedTable(1000)
	calls := bytes.Repeat(h2frame(frameHeaders, 1, []byte("x")), 100)
	begun := time.Now()
	const conns = 5
	var wg sync.WaitGroup
	for range conns {
		s := &scripted{in: append(make([]byte, prefaceSize), calls...)}
		c := table.wrap(s, config.Identity{UID: 1}, n.Account(quota.User(1)), func() {})
		wg.Go(func() { // ends with the reads
			defer c.Close()
			readAll(t, c, s)
		})
	}
	wg.Wait()
	// The last one waits for what the others have brought.
	if took, least := time.Since(begun), (100*(conns-1)-paceBurst)*time.Second/2000; took < least {
		t.Errorf("%d calls of %d connections were read in %v, not %v and more", 100*conns, conns, took, least)
	}
}
