package rdsd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// Which errors pass by themselves, which end a socket, and which are about a limit.
func TestErrorClasses(t *testing.T) {
	for _, c := range []struct {
		err                           error
		temporary, retry, limit, away bool
	}{
		{rdserr.ErrWouldBlock, true, false, false, false},
		{rdserr.ErrCongested, true, false, false, false},
		{rdserr.ErrTimeout, true, true, false, false},
		{rdserr.ErrCanceled, false, true, false, false},
		{rdserr.ErrNoMemory, true, true, true, false},
		{rdserr.ErrRateLimited, true, true, false, true},
		{rdserr.ErrShutdown, true, true, false, true},
		{rdserr.ErrReset, false, true, false, true},
		{rdserr.ErrIO, false, true, false, true},
		{rdserr.ErrAddrInUse, false, true, true, false},
		{rdserr.ErrAddrNotAvail, false, true, false, true},
		{rdserr.ErrTooMany, false, true, true, false},
		{rdserr.ErrHostDown, false, true, false, true},
		{rdserr.ErrRefused, false, true, false, true},
		{rdserr.ErrPerm, false, false, false, false},
		{rdserr.ErrInvalid, false, false, false, false},
		{rdserr.ErrClosed, false, false, false, false},
		{rdserr.ErrTooLarge, false, false, false, false},
		{dismissed{rdserr.ErrReset}, false, false, false, false}, // an administrator closed the socket
	} {
		wrapped := fmt.Errorf("somewhere: %w", c.err)
		got := []bool{(&OpError{Err: wrapped}).Temporary(), worthRetry(wrapped), isLimit(wrapped), isAway(wrapped)}
		if want := []bool{c.temporary, c.retry, c.limit, c.away}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: temporary, worth a retry, a limit, away: %v, want %v", c.err, got, want)
		}
		if got := (&OpError{Err: wrapped}).Timeout(); got != (c.err == rdserr.ErrTimeout) {
			t.Errorf("%v is a timeout: %v", c.err, got)
		}
	}
}

// An errno of the daemon's becomes its sentinel, in the daemon's words where it has some.
func TestErrnoErrors(t *testing.T) {
	for _, c := range []struct {
		errno   syscall.Errno
		message string
		is      error
		says    string
	}{
		{syscall.EACCES, "", rdserr.ErrPerm, rdserr.ErrPerm.Text},
		{syscall.EACCES, rdserr.ErrPerm.Text, rdserr.ErrPerm, rdserr.ErrPerm.Text},
		{syscall.EACCES, "not you", rdserr.ErrPerm, "not you"},
		{syscall.ETIMEDOUT, "whatever", rdserr.ErrTimeout, errDeadline.text},
		{syscall.EXDEV, "odd", syscall.EXDEV, "odd: " + syscall.EXDEV.Error()},
		{syscall.EXDEV, "", syscall.EXDEV, syscall.EXDEV.Error()},
	} {
		err := errnoError(int32(c.errno), c.message)
		if !errors.Is(err, c.is) || !errors.Is(err, c.errno) || err.Error() != c.says {
			t.Errorf("%v with %q: %v", c.errno, c.message, err)
		}
	}
	if err := errnoError(0, "words without an errno"); err != nil {
		t.Errorf("no errno: %v", err)
	}
	if errnoError(int32(syscall.EACCES), "") != error(rdserr.ErrPerm) {
		t.Error("an errno without words is not the sentinel itself")
	}
	// The end of a call's time is the context's error too, and a timeout to package net.
	var timeout net.Error
	for err, want := range map[error]bool{errDeadline: true, errCanceled: false} {
		if got := err.(interface{ Timeout() bool }).Timeout(); got != want {
			t.Errorf("%v is a timeout: %v", err, got)
		}
		if errors.As(error(&OpError{Err: err}), &timeout) && timeout.Timeout() != want {
			t.Errorf("%v is a timeout to package net: %v", err, !want)
		}
	}
	if !errors.Is(errnoError(int32(syscall.ETIMEDOUT), ""), context.DeadlineExceeded) {
		t.Error("the daemon's ETIMEDOUT is not the end of a deadline")
	}
}

// statusError turns what grpc-go says into the daemon's errors.
func TestStatusErrors(t *testing.T) {
	if err := statusError(nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	if err := statusError(status.Error(codes.DeadlineExceeded, "late")); err != error(errDeadline) {
		t.Errorf("a deadline: %v", err)
	}
	if err := statusError(rdsdv1.StatusFromErrno(rdserr.ErrPerm).Err()); !errors.Is(err, rdserr.ErrPerm) {
		t.Errorf("a refusal: %v", err)
	}
	if opError("op", localAddr, peerAddr, nil) != nil || (&Socket{}).opErr("op", peerAddr, nil) != nil {
		t.Error("an error of nothing")
	}
	if got := (&BatchError{}).Error(); got == "" {
		t.Error("an empty batch error says nothing")
	}
	a, b := &OpError{Op: "a", Err: errLost}, &OpError{Op: "b", Err: errLost}
	be := &BatchError{Errors: []DatagramError{{0, a}, {1, a}, {2, b}, {3, a}}}
	if got := be.Unwrap(); len(got) != 3 || got[0] != error(a) || got[1] != error(b) || got[2] != error(a) {
		t.Errorf("the errors of neighbours: %v", got)
	}
}

// Where no daemon was found the error says where, and any other refusal stays what it is.
func TestConnectErrors(t *testing.T) {
	s := &stream{Socket: &Socket{client: &Client{target: "unix:///x"}}}
	for _, c := range []struct {
		err, want error
		where     bool
	}{
		{io.EOF, rdserr.ErrShutdown, true},
		{status.Error(codes.Unavailable, "no"), rdserr.ErrShutdown, true},
		{rdsdv1.StatusFromErrno(rdserr.ErrPerm).Err(), rdserr.ErrPerm, false},
	} {
		err := s.connectError(c.err)
		if got := strings.Contains(err.Error(), "unix:///x"); !errors.Is(err, c.want) || got != c.where {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	closing := func(e syscall.Errno) error {
		c := &rdsdv1.Closing{}
		c.SetErrno(int32(e))
		return closingError(c)
	}
	for e, retry := range map[syscall.Errno]bool{0: true, syscall.ESHUTDOWN: true, syscall.ECONNRESET: false, syscall.EACCES: false} {
		if err := closing(e); err == nil || worthRetry(err) != retry {
			t.Errorf("closed with %v: %v, worth a retry: %v", e, err, !retry)
		}
	}
}

func TestFrontEndWords(t *testing.T) {
	for text, want := range map[string]FrontEnd{"": Auto, "auto": Auto, "grpc": GRPC, "rings": Rings} {
		f := FrontEnd(77)
		if err := f.set(text); err != nil || f != want || text != "" && f.String() != text {
			t.Errorf("%q: %v, %v", text, f, err)
		}
	}
	f := GRPC
	if err := f.set("ring"); !errors.Is(err, rdserr.ErrInvalid) || f != GRPC {
		t.Errorf("a word nobody knows: %v, %v", f, err)
	}
	t.Setenv("RDSD_FRONT_END", "carrier pigeon")
	if _, err := Dial("/x"); !errors.Is(err, rdserr.ErrInvalid) || !strings.Contains(err.Error(), "carrier pigeon") {
		t.Errorf("dialled with it: %v", err)
	}
	c, err := Dial("/x", WithFrontEnd(GRPC)) // the program's choice comes before the environment's
	if err != nil || c.frontEnd != GRPC {
		t.Fatalf("%v, %v", c, err)
	}
	if c.Target() != "unix:///x" {
		t.Errorf("target %q", c.Target())
	}
	c.Close()
	t.Setenv("RDSD_FRONT_END", "rings")
	if _, err := Dial("127.0.0.1:1"); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("rings to another machine: %v", err)
	}
	for target, want := range map[string]string{"unix:///a/b": "/a/b.rings", "unix:a": "a.rings", "unix:": "", "unix://": "", "dns:///a": "", "a": ""} {
		if path, ok := ringsPath(target); ok != (want != "") || ok && path != want {
			t.Errorf("rings of %q: %q, %v", target, path, ok)
		}
	}
	if _, err := Dial("dns:///%%", WithFrontEnd(GRPC)); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a target that cannot be: %v", err)
	}
}

// Every option of a bind has its effect on its own field, the defaults stay where nothing
// is said, and what is out of bounds is brought within.
func TestBindOptions(t *testing.T) {
	def := bindConfig{windowDatagrams: 4096, windowBytes: 4 << 20, reconnect: true, spin: 50 * time.Microsecond}
	with := func(edit func(*bindConfig)) bindConfig {
		c := def
		edit(&c)
		return c
	}
	for i, c := range []struct {
		opts []BindOption
		want bindConfig
	}{
		{nil, def},
		{[]BindOption{WithSendBuffer(7)}, with(func(c *bindConfig) { c.sendBuffer = 7 })},
		{[]BindOption{WithRecvBuffer(8)}, with(func(c *bindConfig) { c.recvBuffer = 8 })},
		{[]BindOption{WithLabel("l")}, with(func(c *bindConfig) { c.label = "l" })},
		{[]BindOption{WithOutcomes()}, with(func(c *bindConfig) { c.outcomes = true })},
		{[]BindOption{WithReconnect(false)}, with(func(c *bindConfig) { c.reconnect = false })},
		{[]BindOption{WithReconnect(false), WithReconnect(true)}, def},
		{[]BindOption{WithCongestionMask(9)}, with(func(c *bindConfig) { c.mask = 9 })},
		{[]BindOption{WithRecvWindow(1, 1)}, with(func(c *bindConfig) { c.windowDatagrams, c.windowBytes = 1, 1 })},
		{[]BindOption{WithRecvWindow(5, 6)}, with(func(c *bindConfig) { c.windowDatagrams, c.windowBytes = 5, 6 })},
		{[]BindOption{WithRecvWindow(5, 6), WithRecvWindow(0, 0)}, def},
		{[]BindOption{WithRecvWindow(-1, -1)}, def},
		{[]BindOption{WithRecvWindow(1<<31, 6)}, with(func(c *bindConfig) { c.windowDatagrams, c.windowBytes = 1<<30, 6 })},
		{[]BindOption{WithSpin(0)}, with(func(c *bindConfig) { c.spin = 0 })},
		{[]BindOption{WithSpin(-1)}, with(func(c *bindConfig) { c.spin = 0 })},
		{[]BindOption{WithSpin(time.Millisecond)}, with(func(c *bindConfig) { c.spin = time.Millisecond })},
		{[]BindOption{WithSpin(time.Hour)}, with(func(c *bindConfig) { c.spin = 10 * time.Millisecond })},
	} {
		if got := newBindConfig(c.opts); got != c.want {
			t.Errorf("%d: %+v, want %+v", i, got, c.want)
		}
	}
}

// What a bind asks for reaches the daemon over a stream.
func TestBindSaysAll(t *testing.T) {
	d := newFakeDaemon(t)
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(localAddr.Addr().As16()), localAddr.Port())
	var s *Socket
	done := goErr(func() (err error) {
		s, err = c.Bind(testContext(t), mapped, WithSendBuffer(1111), WithRecvBuffer(2222), WithLabel("name"), WithRecvWindow(33, 4444))
		return err
	})
	st, b := d.accept()
	if endpointFromProto(b.GetLocal()) != localAddr || b.GetSendBufferBytes() != 1111 || b.GetRecvBufferBytes() != 2222 || b.GetLabel() != "name" ||
		b.GetInitialCreditDatagrams() != 33 || b.GetInitialCreditBytes() != 4444 || b.HasRing() {
		t.Errorf("%v", b)
	}
	answer := bound(b)
	answer.SetSendWindowBytes(0) // a daemon that names no window gets one batch at a time
	answer.SetSendWindowBatches(0)
	answer.SetMaxDatagramBytes(99)
	st.sendBound(answer)
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	if sess := streamOf(s).sess; sess.windowBytes != 1 || sess.windowBatches != 1 || sess.maxBytes != 99 || s.LocalAddr() != localAddr || s.FrontEnd() != GRPC {
		t.Errorf("%+v at %v", sess, s.LocalAddr())
	}
	st.answerClose()
	c.Close()
	for _, o := range []BindOption{WithSendBuffer(-1), WithRecvBuffer(-1)} {
		if _, err := c.Bind(testContext(t), localAddr, o); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("a negative buffer: %v", err)
		}
	}
}

// The receive window: what a new stream starts with, and when credit goes back.
func TestReceiveWindowEdges(t *testing.T) {
	for _, c := range []struct {
		windowN, windowB, n, bytes int
		wantN                      uint32
		wantB                      uint64
	}{
		{10, 100, 0, 0, 10, 100}, {10, 100, 3, 40, 7, 60}, {10, 100, 10, 100, 0, 0}, {10, 100, 11, 101, 0, 0}, {1 << 40, 1, 0, 0, 1<<31 - 1, 1},
	} {
		q := &recvQueue{windowN: c.windowN, windowB: c.windowB, n: c.n, bytes: c.bytes, owedN: 4, owedB: 5}
		if n, b := q.initialCredit(); n != c.wantN || b != c.wantB || q.owedN != 0 || q.owedB != 0 {
			t.Errorf("%+v: %d datagrams, %d bytes, and %d, %d owed", c, n, b, q.owedN, q.owedB)
		}
	}
	q := &recvQueue{windowN: 10, windowB: 100}
	for i, step := range []struct{ n, b, wantN, wantB int }{
		{4, 49, 0, 0}, {1, 0, 5, 49}, // half of the datagrams
		{1, 49, 0, 0}, {1, 1, 2, 50}, // half of the bytes
		{0, 50, 0, 50}, {5, 0, 5, 0}, {4, 0, 0, 0}, {0, 49, 0, 0}, {6, 51, 10, 100},
	} {
		due := q.owe(step.n, step.b)
		if n, b := q.credit(); n != step.wantN || b != step.wantB || due != (n+b > 0) {
			t.Errorf("step %d: %v, %d and %d, want %d and %d", i, due, n, b, step.wantN, step.wantB)
		}
	}
}
