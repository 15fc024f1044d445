package nbd

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
)

// TestNoDescriptorForALoop: a connection that a reactor cannot have is left as it was,
// for goroutines to serve.
func TestNoDescriptorForALoop(t *testing.T) {
	r, err := reactor.New(reactor.Options{CPU: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := connOf(t, fds[0]), connOf(t, fds[1])
	defer theirs.Close()
	defer ours.Close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	free, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(free.Fd())
	free.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lowest, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	l := newLoop(&conn{}, ours, r)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if l != nil {
		t.Fatal("a loop without a descriptor")
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if newLoop(&conn{}, a, r) != nil {
		t.Error("a loop of what is no socket")
	}
	if _, err := ours.Write([]byte("x")); err != nil {
		t.Errorf("the connection was closed: %v", err)
	}
}

// TestServedByAReactorThatEnds: a connection ends with the reactor that serves it, and so does
// one that comes to a reactor that has ended; nobody waits for either.
func TestServedByAReactorThatEnds(t *testing.T) {
	for _, late := range []bool{false, true} {
		r, err := reactor.New(reactor.Options{CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewServer(Options{Reactor: r})
		if err == nil {
			err = s.Add(Export{Name: "d", Device: memory(t, 1<<20)})
		}
		if err != nil {
			t.Fatal(err)
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, ours := connOf(t, fds[0]), connOf(t, fds[1])
		if late {
			r.Close()
		}
		served := make(chan error, 1)
		go func() { served <- s.ServeKernel(ours, "d") }()
		if !late {
			for s.Stats().Open == 0 {
				time.Sleep(time.Millisecond)
			}
			r.Close()
		}
		select {
		case err := <-served:
			if err == nil {
				t.Error("an end that nobody asked for is no error")
			}
		case <-time.After(20 * time.Second):
			t.Error("the connection goes on without its reactor")
		}
		theirs.Close()
		s.Close()
	}
}

// panicking is a device whose Submit panics, when it is done.
type panicking struct{ blk.Device }

func (d panicking) Submit(batch []*blk.Request) {
	d.Device.Submit(batch)
	panic("behind a submit")
}

// TestPanicOnAReactor: a panic of the work for a connection is its end, and of nothing else that its
// reactor serves.
func TestPanicOnAReactor(t *testing.T) {
	g := &guard.Guard{Log: slog.New(slog.DiscardHandler), Exit: func(int) { panic("the process would end") }}
	r, err := reactor.New(reactor.Options{CPU: -1, Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := NewServer(Options{Reactor: r, Guard: g})
	if err == nil {
		err = errors.Join(s.Add(Export{Name: "bad", Device: panicking{memory(t, 1<<20)}}), s.Add(Export{Name: "good", Device: memory(t, 1<<20)}))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	open := func(name string) (net.Conn, chan error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, ours := connOf(t, fds[0]), connOf(t, fds[1])
		theirs.SetDeadline(time.Now().Add(time.Minute))
		served := make(chan error, 1)
		go func() { served <- s.ServeKernel(ours, name) }()
		return theirs, served
	}
	good, _ := open("good")
	defer good.Close()
	bad, served := open("bad")
	defer bad.Close()
	bad.Write(command(cmdRead, 0, 1, 0, 4096, nil))
	select {
	case err := <-served:
		if err == nil {
			t.Error("an end that nobody asked for is no error")
		}
	case <-time.After(20 * time.Second):
		t.Error("the connection goes on behind a panic")
	}
	if n := g.Count(guard.Volume); n != 1 {
		t.Errorf("%d panics are counted", n)
	}
	good.Write(command(cmdRead, 0, 2, 0, 4096, nil))
	if n, err := good.Read(make([]byte, 1)); n != 1 {
		t.Errorf("another connection: %v", err)
	}
}
