//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// TestRingLinkEnds: a link says why it has ended: what the daemon said last, that what it
// said made no sense, or that it has gone.
func TestRingLinkEnds(t *testing.T) {
	l, err := shm.Listen(filepath.Join(t.TempDir(), "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	region := linkOf(newRingDaemon(t).bindRing(localAddr)).region
	for what, c := range map[string]struct {
		daemon func(c *shm.Conn)
		want   error
	}{
		"nonsense":       {func(c *shm.Conn) { _ = c.WriteMessage([]byte{0xff, 0xff, 0xff}) }, rdserr.ErrProtocol},
		"its own words":  {func(c *shm.Conn) { sayClosing(c, closing(syscall.ENOMEM, "words")) }, rdserr.ErrNoMemory},
		"nothing at all": {func(*shm.Conn) {}, rdserr.ErrShutdown},
		"both, in a hurry": {func(c *shm.Conn) {
			sayClosing(c, closing(syscall.ENOMEM, "words"))
			sayClosing(c, closing(syscall.EACCES, "the last ones"))
		}, rdserr.ErrPerm},
	} {
		ours, err := shm.Dial(context.Background(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := l.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		c.daemon(theirs)
		theirs.Close()
		link := &ringLink{conn: ours, region: region, down: make(chan struct{}), stop: func() bool { return true }}
		link.refs.Store(2) // one stays, so that the region does
		wantErr(t, link.read(), c.want)
		if _, open := <-link.down; open || link.refs.Load() != 1 || t.Failed() {
			t.Fatalf("%s: %d references are left", what, link.refs.Load())
		}
	}
}
