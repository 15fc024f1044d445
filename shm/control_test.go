package shm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connected is a client, and the daemon's end before a reactor has it.
func connected(t *testing.T) (c, far *Conn) {
	t.Helper()
	l, err := Listen(filepath.Join(t.TempDir(), "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err = Dial(context.Background(), l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if far, err = l.AcceptConn(); err != nil {
		t.Fatal(err)
	}
	return c, far
}

// pair is a client that blocks and the daemon's raw end.
func pair(t *testing.T) (*Conn, *Control) {
	t.Helper()
	c, s := connected(t)
	k, err := s.Detach()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return c, k
}

func TestControlMessages(t *testing.T) {
	c, k := pair(t)
	if _, _, err := k.Recv(); err != ErrAgain {
		t.Fatalf("nothing was sent: %v", err)
	}
	for _, n := range []int{1, 100, MaxPiece - 1, MaxPiece, MaxPiece + 1, 1 << 20, MaxMessage} {
		want := bytes.Repeat([]byte{byte(n), 7}, n/2+1)[:n]
		errs := make(chan error, 1)
		go func() { errs <- c.WriteMessage(want) }()
		var got []byte
		for {
			m, _, err := k.Recv()
			if err == nil {
				got = m
				break
			}
			if err != ErrAgain {
				t.Fatal(err)
			}
			unix.Poll([]unix.PollFd{{Fd: int32(k.FD), Events: unix.POLLIN}}, 1000)
		}
		if err := <-errs; err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes to the daemon: %v", n, err)
		}
		if n > 1<<20 {
			continue
		}
		// The way back, with a daemon that cannot write it all at once.
		go func() {
			m, _, err := c.ReadMessage()
			if err == nil && !bytes.Equal(m, want) {
				err = errors.New("another message")
			}
			errs <- err
		}()
		done, err := k.Send(want)
		for !done && err == nil {
			if _, e := k.Send([]byte{1}); e == nil {
				t.Fatal("a second message in the middle of the first")
			}
			unix.Poll([]unix.PollFd{{Fd: int32(k.FD), Events: unix.POLLOUT}}, 1000)
			done, err = k.Flush()
		}
		if err != nil || k.Pending() {
			t.Fatal(err)
		}
		if err := <-errs; err != nil {
			t.Fatalf("%d bytes from the daemon: %v", n, err)
		}
	}
	cred, err := k.Cred()
	if err != nil || cred.UID != uint32(os.Getuid()) || cred.PID != uint32(os.Getpid()) {
		t.Errorf("peer %+v, %v", cred, err)
	}
	c.Close()
	if _, _, err := k.Recv(); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}

// openFDs counts descriptors of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestControlDescriptors(t *testing.T) {
	c, k := pair(t)
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	before := openFDs(t)
	if done, err := k.Send(bytes.Repeat([]byte{1}, MaxPiece+1), bell, bell, bell, bell); !done || err != nil {
		t.Fatal(done, err)
	}
	_, fds, err := c.ReadMessage()
	if err != nil || len(fds) != 4 {
		t.Fatal(fds, err)
	}
	Ring(fds[1])
	var count [8]byte
	if n, err := unix.Read(bell, count[:]); n != 8 || le.Uint64(count[:]) != 1 || err != nil {
		t.Error("the doorbell did not ring:", n, err, count)
	}
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Error("a received descriptor would pass an exec")
		}
		unix.Close(fd)
	}
	// What is too much is closed.
	five := unix.UnixRights(bell, bell, bell, bell, bell)
	if err := unix.Sendmsg(k.FD, []byte{1, 0, 0, 0, 9}, five, nil, 0); err != nil {
		t.Fatal(err)
	}
	_, fds, err = c.ReadMessage()
	if err != nil || len(fds) != 4 {
		t.Error(fds, err)
	}
	closeAll(fds)
	if err := k.sendRaw([]byte{1, 0, 0, 0}, five); err != nil { // no message: a protocol error, and nothing leaks
		t.Fatal(err)
	}
	if _, _, err := c.ReadMessage(); !errors.Is(err, unix.EBADMSG) {
		t.Error(err)
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, before %d", n, before)
	}
}

func (c *Control) sendRaw(b, oob []byte) error { return unix.Sendmsg(c.FD, b, oob, nil, 0) }

func TestControlBadPackets(t *testing.T) {
	long := append([]byte{1, 1, 0, 0}, make([]byte, MaxPiece)...)
	for name, packets := range map[string][][]byte{
		"short":              {{1}},
		"no message":         {{1, 0, 0, 0}},
		"another kind":       {{2, 0, 0, 0, 1}},
		"unknown flag":       {{1, 2, 0, 0, 1}},
		"reserved":           {{1, 0, 1, 0, 1}},
		"short piece":        {{1, 1, 0, 0, 1}},
		"too long a packet":  {append(long, 1)},
		"second piece short": {long, {1, 1, 0, 0, 1}},
		"empty last piece":   {long, {1, 0, 0, 0}},
	} {
		c, k := pair(t)
		for _, p := range packets {
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := k.Recv(); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkMessage(make([]byte, MaxMessage+1), nil); !errors.Is(err, unix.EMSGSIZE) {
		t.Error(err)
	}
}

// TestControlTooLong: a message that never ends is refused at its limit.
func TestControlTooLong(t *testing.T) {
	c, k := pair(t)
	go func() {
		piece := append([]byte{1, 1, 0, 0}, make([]byte, MaxPiece)...)
		for {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}()
	for {
		_, _, err := k.Recv()
		if err == ErrAgain {
			unix.Poll([]unix.PollFd{{Fd: int32(k.FD), Events: unix.POLLIN}}, 1000)
			continue
		}
		if !errors.Is(err, unix.EBADMSG) {
			t.Error(err)
		}
		break
	}
}

func TestListenStaleAndLive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o660 {
		t.Error(st.Mode())
	}
	if _, err := Listen(path, 0); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("beside a living one: %v", err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	l, err = Listen(path, 0)
	if err != nil {
		t.Fatalf("after a dead one: %v", err)
	}
	l.Close()
}

// TestConnDeadline: a goroutine gives up waiting and goes on later.
func TestConnDeadline(t *testing.T) {
	c, k := pair(t)
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, _, err := c.ReadMessage(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Time{})
	k.Send([]byte("x"))
	if m, _, err := c.ReadMessage(); err != nil || string(m) != "x" {
		t.Fatal(err)
	}
}

// TestReceivingTakesNoMemory: the memory that a small message is received in is used again.
func TestReceivingTakesNoMemory(t *testing.T) {
	if raceDetector {
		t.Skip("elsewhere: the race detector has pools drop what they are given; the memory phase of the tests is without it")
	}
	c, k := pair(t)
	m := []byte("message")
	bytesOf := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	before := bytesOf()
	for range 100 {
		if err := c.WriteMessage(m); err != nil {
			t.Fatal(err)
		}
		if got, _, err := k.Recv(); err != nil || !bytes.Equal(got, m) {
			t.Fatal(got, err)
		}
		if _, _, err := k.Recv(); err != ErrAgain { // which gives it back
			t.Fatal(err)
		}
	}
	if n := (bytesOf() - before) / 100; n > MaxPiece/4 {
		t.Errorf("%d bytes are allocated for each message", n)
	}
	if k.held != nil {
		t.Error("memory is kept though nothing has come")
	}
}
