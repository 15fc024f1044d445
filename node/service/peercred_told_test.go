package service

import (
	"errors"
	"io"
	"log/slog"
	"net"
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
	await.Until(t, 10*time.Second, "it is closed", func() bool { return c.refusals.Load() < maxRefusals })
	if _, err := refuse(); err != nil {
		t.Errorf("after one had ended: %v", err)
	}
}
