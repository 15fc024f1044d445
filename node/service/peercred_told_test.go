package service

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// TestSoManyAreTold: maxRefusals connections at a time live to be told why they are not served, and not one
// more; when one of them ends the next is told.
func TestSoManyAreTold(t *testing.T) {
	memory := quota.New(1<<20, nil)
	table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
	c := &peerCreds{calls: table, guard: &guard.Guard{}, memory: memory, closers: access.NewClosers(nil, 1)}
	why := errors.New("no more")
	var theirs net.Conn
	refuse := func() (net.Conn, error) {
		var mine net.Conn
		mine, theirs = net.Pipe()
		t.Cleanup(func() { mine.Close() })
		conn, info, err := c.refuse(mine, config.Identity{UID: 7}, credentials.NoSecurity, why)
		if err == nil && info.(authInfo).refused == nil {
			t.Error("it is served")
		}
		return conn, err
	}
	var told []net.Conn
	for i := range maxRefusals {
		conn, err := refuse()
		if err != nil {
			t.Fatalf("number %d: %v", i+1, err)
		}
		told = append(told, conn)
	}
	for range 2 {
		if _, err := refuse(); err != credentials.ErrConnDispatched {
			t.Errorf("one more than are told at a time: %v", err)
		}
		if _, err := theirs.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("it is not closed: %v", err)
		}
	}
	told[0].Close()
	await.Until(t, 10*time.Second, "it is closed", func() bool {
		_, err := refuse()
		return err == nil
	})
}

// slowClose is a connection whose close stands still until it is let go.
type slowClose struct {
	net.Conn
	let chan struct{}
}

func (c slowClose) Close() error {
	<-c.let
	return c.Conn.Close()
}

// TestRefusedThatStandStill: connections whose close stands still are no more in the way of what others
// are told than others are. Their user is told nothing until one of them has ended.
func TestRefusedThatStandStill(t *testing.T) {
	memory := quota.New(1<<20, nil)
	table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
	c := &peerCreds{calls: table, guard: &guard.Guard{}, memory: memory, closers: access.NewClosers(nil, 1)}
	let := make(chan struct{})
	release := sync.OnceFunc(func() { close(let) })
	defer release()
	told := func(uid uint32) bool {
		mine, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		conn, _, err := c.refuse(slowClose{mine, let}, config.Identity{UID: uid}, credentials.NoSecurity, errors.New("no more"))
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	for range maxRefusals {
		if !told(7) {
			t.Fatal("one of the first is not told")
		}
	}
	await.Until(t, 10*time.Second, "another user is told", func() bool { return told(8) })
	if told(7) {
		t.Error("a user whose connections stand still is told all the same")
	}
	hold := func(n int) { // as if so many more users had one that stands still
		c.refusals.mu.Lock()
		defer c.refusals.mu.Unlock()
		c.refusals.held += n
	}
	hold(heldRefusals)
	if told(9) {
		t.Error("more stand still than may")
	}
	hold(-heldRefusals)
	release()
	await.Until(t, 10*time.Second, "the first user is told again", func() bool { return told(7) })
}
