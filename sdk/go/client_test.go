package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

func TestResolveTarget(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, target, want string }{
		{"", "", "unix:///run/rdsd/rdsd.sock"},
		{"/tmp/r.sock", "", "unix:///tmp/r.sock"},
		{"unix:///tmp/r.sock", "", "unix:///tmp/r.sock"},
		{"/tmp/r.sock", "/run/other.sock", "unix:///run/other.sock"},
		{"", "/tmp/a b#c?d%41", "unix:///tmp/a%20b%23c%3Fd%2541"},
		{"", "./r.sock", "unix:./r.sock"},
		{"", "x#1/r.sock", "unix://" + (&url.URL{Path: filepath.Join(here, "x#1/r.sock")}).EscapedPath()},
		{"", "r.sock", "unix:r.sock"},
		{"", "@rdsd", "unix-abstract:rdsd"},
		{"", "dns:///node7:16387", "dns:///node7:16387"},
		{"", "127.0.0.1:16387", "127.0.0.1:16387"},
	} {
		t.Setenv("RDSD_SOCKET", c.env)
		if got := resolveTarget(c.target); got != c.want {
			t.Errorf("RDSD_SOCKET=%q, target %q: %q, want %q", c.env, c.target, got, c.want)
		}
	}
}

func TestBindErrors(t *testing.T) {
	d := newFakeDaemon(t)
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, e := range []*rdserr.Error{rdserr.ErrAddrInUse, rdserr.ErrAddrNotAvail, rdserr.ErrPerm,
		rdserr.ErrTooMany, rdserr.ErrNoMemory, rdserr.ErrInvalid, rdserr.ErrRateLimited, rdserr.ErrShutdown} {
		done := goErr(func() error { _, err := c.Bind(testContext(t), localAddr); return err })
		st, _ := d.accept()
		st.finish(e)
		err := waitErr(t, done)
		wantErr(t, err, e, e.Errno)
		var op *OpError
		if !errors.As(err, &op) || op.Op != "bind" || op.Local != localAddr {
			t.Errorf("%+v", op)
		}
	}
	_, err = c.Bind(testContext(t), netip.AddrPort{})
	wantErr(t, err, rdserr.ErrInvalid)

	ctx := newExpiring()
	done := goErr(func() error { _, err := c.Bind(ctx, localAddr); return err })
	d.accept() // and no answer
	close(ctx.passed)
	wantErr(t, waitErr(t, done), rdserr.ErrTimeout, context.DeadlineExceeded)

	done = goErr(func() error { _, err := c.Bind(testContext(t), localAddr); return err })
	st, _ := d.accept()
	st.send(&rdsdv1.ServerMessage{})
	wantErr(t, waitErr(t, done), rdserr.ErrProtocol)
}

func TestBindWithoutDaemon(t *testing.T) {
	c, err := Dial(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Bind(testContext(t), localAddr)
	wantErr(t, err, rdserr.ErrShutdown)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	_, err = c.Bind(testContext(t), localAddr)
	wantErr(t, err, rdserr.ErrClosed)
}

func TestClientCloseClosesSockets(t *testing.T) {
	_, c, s, st := bindFake(t)
	st.answerClose()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	_, err := s.Recv(context.Background())
	wantErr(t, err, rdserr.ErrClosed)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestErrorTexts(t *testing.T) {
	op := &OpError{Op: "send", Local: localAddr, Remote: peerAddr, Err: rdserr.ErrCongested}
	if got := op.Error(); got != "rdsd: send 127.0.0.2:4000 to 127.0.0.3:5000: the destination port is congested" {
		t.Error(got)
	}
	if !op.Temporary() || op.Timeout() {
		t.Error("congestion passes, and is no timeout")
	}
	op = &OpError{Op: "recv", Local: localAddr, Err: errDeadline}
	if got := op.Error(); got != "rdsd: recv 127.0.0.2:4000: the deadline passed" || !op.Timeout() {
		t.Error(got)
	}
	op = &OpError{Op: "send", Err: errLost, Undecided: true}
	if got := op.Error(); got != "rdsd: send: the connection to the daemon was lost before it answered (it may have been accepted)" {
		t.Error(got)
	}
	be := &BatchError{Total: 3, Errors: []DatagramError{{1, op}, {2, op}}}
	if got := be.Error(); got != "rdsd: 2 of 3 datagrams not accepted, first the one at index 1: "+op.Error() {
		t.Error(got)
	}
	if n := len(be.Unwrap()); n != 1 {
		t.Errorf("%d different errors", n)
	}
	if err := errnoError(4095, "odd"); err == nil || rdserr.Errno(err) != 4095 {
		t.Errorf("unknown errno: %v", err)
	}
}
