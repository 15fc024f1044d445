package accept

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/slowclose"
)

// failing is a listener whose Accept fails as it is told.
type failing struct {
	errs  []error
	calls int
}

func (f *failing) Accept() (net.Conn, error) {
	f.calls++
	if len(f.errs) == 0 {
		return nil, net.ErrClosed
	}
	err := f.errs[0]
	f.errs = f.errs[1:]
	if err == nil {
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

func (f *failing) Close() error   { return nil }
func (f *failing) Addr() net.Addr { return nil }

// TestNoErrorEndsIt: whatever accept4 may say, the next connection is taken.
func TestNoErrorEndsIt(t *testing.T) {
	var log bytes.Buffer
	var failed atomic.Uint64
	f := &failing{errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED, syscall.EINTR,
		syscall.EPERM, syscall.EPROTO, syscall.EIO, syscall.EINVAL, nil}}
	l := New(f, "test", slog.New(slog.NewTextHandler(&log, nil)))
	l.Failed = &failed
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	if n := failed.Load(); n != 10 || f.calls != 11 {
		t.Errorf("%d errors counted in %d calls", n, f.calls)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "EMFILE") && !strings.Contains(log.String(), "too many open files") {
		t.Errorf("the log has %d lines: %s", n, log.String())
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestPausesGrow: a loop that goes on failing does not spin.
func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{}
		for range 9 {
			f.errs = append(f.errs, syscall.EMFILE)
		}
		begun := time.Now()
		New(f, "test", nil).Accept()
		if d := time.Since(begun); d != (1<<9-1)*pauseMin {
			t.Errorf("nine errors took %v", d)
		}
		f = &failing{errs: []error{syscall.ECONNABORTED, nil}}
		l := New(f, "test", nil)
		begun = time.Now()
		if _, err := l.Accept(); err != nil || time.Since(begun) != 0 {
			t.Errorf("one connection that was gone: %v after %v", err, time.Since(begun))
		}
	})
}

// TestCloseEndsAPause: nobody waits for the end of one.
func TestCloseEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{}
		for range 1000 {
			f.errs = append(f.errs, syscall.EMFILE)
		}
		l := New(f, "test", nil)
		done := make(chan error, 1)
		go func() { _, err := l.Accept(); done <- err }()
		time.Sleep(20 * pauseMax) // the pauses are the longest
		synctest.Wait()
		begun := time.Now()
		l.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) || time.Since(begun) != 0 {
			t.Errorf("Accept goes on after Close for %v: %v", time.Since(begun), err)
		}
	})
}

// TestHold: nothing is accepted while Hold says so, and a listener that is closed meanwhile ends.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{errs: []error{nil, nil}}
		l := New(f, "test", nil)
		asked := 0
		l.Hold = func() bool { asked++; return asked <= 5 }
		begun := time.Now()
		if _, err := l.Accept(); err != nil || f.calls != 1 || time.Since(begun) != 5*holdLook {
			t.Errorf("%v after %v, %d calls", err, time.Since(begun), f.calls)
		}
		l.Hold = func() bool { return true }
		time.AfterFunc(time.Second, func() { l.Close() })
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || f.calls != 1 || time.Since(begun) != time.Second+5*holdLook {
			t.Errorf("closed while held: %v after %v, %d calls", err, time.Since(begun), f.calls)
		}
	})
}

// TestReserve: without a free descriptor a connection is taken and told why it ends.
func TestReserve(t *testing.T) {
	inner, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	reserve, err := NewReserve()
	if err != nil {
		t.Fatal(err)
	}
	defer reserve.Close()
	l := New(inner, "test", nil)
	l.Reserve = reserve
	l.Refuse = func(c net.Conn, err error) { c.Write([]byte("no: " + err.Error())) }
	client, err := net.Dial("unix", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	free := takeAll(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Accept()
	}()
	buf := make([]byte, 100)
	client.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := client.Read(buf)
	if err != nil || !strings.Contains(string(buf[:n]), "too many open files") {
		t.Errorf("the client was told %q, %v", buf[:n], err)
	}
	free()
	l.Close()
	<-ended
}

// takeAll leaves no descriptor, until free is called.
func takeAll(t *testing.T) (free func()) {
	t.Helper()
	var fds []int
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	used, _, _ := Room(was.Cur, 1, 0)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(used + 8), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
	for {
		fd, err := unix.Eventfd(0, 0)
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	if _, ok, _ := Room(uint64(used+8), 1, 0); ok {
		t.Error("there is room although nothing can be opened")
	}
	return func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

// TestRefusedTakesItsTime: a connection that is refused and takes for ever to be closed, because of
// a descriptor that its client has sent, does not keep others out.
func TestRefusedTakesItsTime(t *testing.T) {
	inner, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	reserve, err := NewReserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reserve.Close) // after that of the slow socket
	l := New(inner, "test", nil)
	defer l.Close()
	l.Reserve = reserve
	var refusals atomic.Int32
	l.Refuse = func(net.Conn, error) { refusals.Add(1) }
	var clients [2]net.Conn
	for i := range clients {
		if clients[i], err = net.Dial("unix", inner.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer clients[i].Close()
	}
	fd, _ := slowclose.Socket(t)
	slow := os.NewFile(uintptr(fd), "slow")
	if _, _, err := clients[0].(*net.UnixConn).WriteMsgUnix([]byte{1}, unix.UnixRights(int(slow.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	slow.Close() // not the last one
	free := takeAll(t)
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		accepted <- err
	}()
	time.Sleep(3 * refuseTime)
	if n := refusals.Load(); n != 1 {
		t.Errorf("%d are refused at a time", n)
	}
	free()
	select {
	case err := <-accepted:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("no connection is accepted any more")
	}
}

// TestRoom: the edge is exact.
func TestRoom(t *testing.T) {
	used, _, _ := Room(1<<20, 0, 0)
	for _, c := range []struct {
		limit      uint64
		need, keep int
		ok         bool
	}{{uint64(used + 9), 5, 4, true}, {uint64(used + 8), 5, 4, false}, {uint64(used), 0, 0, true}, {uint64(used), 1, 0, false}} {
		if _, ok, _ := Room(c.limit, c.need, c.keep); ok != c.ok {
			t.Errorf("%d of %d in use, %d wanted, %d kept: %v", used, c.limit, c.need, c.keep, ok)
		}
	}
	var l unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	fd, err := unix.Eventfd(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if more, _, _ := Room(1<<20, 0, 0); more != used+1 {
		t.Errorf("%d in use, then one more is %d", used, more)
	}
}
